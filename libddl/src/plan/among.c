/* SPDX-License-Identifier: Apache-2.0 */
/* Among: an all-reduce among some of the ranks, for example one rank of each host. It uses the plan
 * of a comm that consists of only these ranks. */
#include "plan/builder.h"

/* Return the request in the numbering of these ranks. */
ddl__request ddl__among_request(const ddl__request *request)
{
    ddl__request own = *request;
    own.rank = request->among->rank;
    own.size = request->among->n;
    own.topology = NULL;
    own.among = NULL;
    return own;
}

static uint32_t count_ranks(const ddl__plan *plan)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const ddl__step *step = &plan->steps[i];
        uint32_t operands = step->operands ? step->operand + step->operands : 0;
        uint32_t targets = step->targets ? step->target + step->targets : 0;
        n = operands > n ? operands : n;
        n = targets > n ? targets : n;
    }
    return n;
}

/* Convert the plan to ranks of the whole comm. An average divides by the number of all ranks,
 * because each operand is already a sum. */
void ddl__among_renumber(const ddl__request *request, ddl__plan *plan)
{
    for (uint32_t i = 0, n = count_ranks(plan); i < n; i++)
        plan->ranks[i] = (uint32_t)request->among->ranks[plan->ranks[i]];
    plan->divisor = request->size;
}
