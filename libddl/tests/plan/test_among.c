/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduces among some of the ranks: the plan equals the plan of a comm of only these ranks, with
 * their ranks in the whole comm. */
#include "check.h"
#include "plan/plan.h"
#include "plan_values.h"

enum { SIZE_MAX_HERE = 24 };

/* Choose some ranks of `size`, in ascending order. */
static int choose(int size, int *ranks)
{
    int n = 0;
    for (int r = 0; r < size; r++)
        if (random_below(2) || (n == 0 && r == size - 1))
            ranks[n++] = r;
    return n;
}

static void check_ranks(const ddl__among *among, const uint32_t *found, const uint32_t *own,
                        uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        CHECK(found[i] == (uint32_t)among->ranks[own[i]], "rank %u is %u, not %d", own[i], found[i],
              among->ranks[own[i]]);
}

static void check_plan(const ddl__plan *plan, const ddl__plan *own, const ddl__request *request)
{
    CHECK(plan->by == own->by && plan->n_steps == own->n_steps && plan->waves == own->waves &&
              plan->segment == own->segment && plan->scratch == own->scratch,
          "another plan: %s, not %s", plan->name, own->name);
    CHECK(plan->divisor == request->size, "an average of %d", plan->divisor);
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        CHECK(!memcmp(&plan->steps[i], &own->steps[i], sizeof *plan->steps), "step %u differs", i);
        const ddl__step *step = &plan->steps[i];
        check_ranks(request->among, plan->ranks + step->operand, own->ranks + step->operand,
                    step->operands);
        check_ranks(request->among, plan->ranks + step->target, own->ranks + step->target,
                    step->targets);
    }
}

int main(void)
{
    int several = 0;
    for (int i = 0; i < 2000; i++) {
        int ranks[SIZE_MAX_HERE], size = 1 + (int)random_below(SIZE_MAX_HERE);
        ddl__among among = {.n = choose(size, ranks), .ranks = ranks};
        among.rank = (int)random_below((uint64_t)among.n);
        ddl__request request = {.kind = DDL__ALLREDUCE,
                                .rank = ranks[among.rank],
                                .size = size,
                                .count = (int64_t)random_below(1 << random_below(22)),
                                .element = (size_t)1 << random_below(4),
                                .in_place = random_below(2),
                                .all_shared = random_below(2),
                                .window = random_below(2) ? 1 << 20 : 0,
                                .among = &among};
        ddl__request alone = request;
        alone.rank = among.rank;
        alone.size = among.n;
        alone.among = NULL;
        ddl__plan *plan = ddl__plan_create(&request), *own = ddl__plan_create(&alone);
        CHECK(plan && own, "no plan");
        check_plan(plan, own, &request);
        several += among.n > 1 && plan->n_steps > 1;
        ddl__plan_destroy(plan);
        ddl__plan_destroy(own);
    }
    CHECK(several > 1000, "only %d plans among several ranks", several);
}
