/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/executor/loans.h"

bool ddl__loans_flush(const ddl__runner *runner)
{
    bool empty = true;
    for (int i = 0; i < runner->size; i++)
        if (runner->links[i] && runner->links[i]->ops->lend)
            empty = runner->links[i]->ops->flush(runner->links[i]) && empty;
    return empty;
}

void ddl__loans_abandon(const ddl__runner *runner, const ddl_work *work)
{
    if (work->call.hold) /* a device's memory, of which nothing counts any more */
        return;
    if (work->lends && work->plan->returns && work->regions[1].base && !ddl__loans_flush(runner))
        ddl__region_detach(runner->regions, &work->regions[1], work->out,
                           (size_t)work->call.count * work->element);
}
