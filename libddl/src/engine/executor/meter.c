/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/executor/meter.h"

#include "base/clock.h"

static void add(atomic_llong *counter, int64_t more)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more,
                          memory_order_relaxed);
}

static int outermost(const ddl__meter *meter, const uint32_t *ranks, uint32_t n, int level)
{
    for (uint32_t i = 0; i < n; i++)
        level = meter->levels[ranks[i]] > level ? meter->levels[ranks[i]] : level;
    return level;
}

/* Return the level of the work's current step, or of the last step if only user memory is left to
 * send. */
static int current_level(const ddl__meter *meter, const ddl_work *work)
{
    const ddl__plan *plan = work->plan;
    if (!plan->n_steps)
        return 0;
    const ddl__step *step =
        &plan->steps[work->step < plan->n_steps ? work->step : plan->n_steps - 1];
    int level = outermost(meter, plan->ranks + step->operand, step->operands, 0);
    return outermost(meter, plan->ranks + step->target, step->targets, level);
}

ddl__progress ddl__meter_run(ddl__meter *meter, ddl__runner *runner, ddl_work *work)
{
    if (work->call.uncounted)
        return ddl__run(runner, work);
    if (!meter->mark)
        meter->mark = ddl__now();
    int level = current_level(meter, work);
    ddl__progress progress = ddl__run(runner, work);
    int64_t now = ddl__now();
    add(&meter->spent[level], now - meter->mark);
    add(&meter->waited, progress == DDL__BLOCKED ? now - meter->mark : 0);
    add(&meter->operations, progress == DDL__FINISHED);
    meter->mark = progress == DDL__FINISHED ? 0 : now;
    return progress;
}
