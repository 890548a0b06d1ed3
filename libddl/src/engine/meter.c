#include "engine/meter.h"

#include "base/clock.h"

void ddl__meter_account(ddl__meter *meter, const ddl_work *work, bool ran)
{
    const ddl__step *step = &work->plan->steps[work->step];
    const uint32_t *ranks = work->plan->ranks;
    int level = 0;
    int64_t now = ddl__now(), spent = now - meter->mark;
    for (uint32_t i = 0; i < step->operands; i++)
        if (meter->levels[ranks[step->operand + i]] > level)
            level = meter->levels[ranks[step->operand + i]];
    for (uint32_t i = 0; i < step->targets; i++)
        if (meter->levels[ranks[step->target + i]] > level)
            level = meter->levels[ranks[step->target + i]];
    meter->mark = now;
    meter->spent[level] += spent;
    meter->waited += ran ? 0 : spent;
}
