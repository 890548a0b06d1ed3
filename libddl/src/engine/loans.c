#include "engine/loans.h"

/* Steps of a work that lends are not interleaved: it sends without copying. */
void ddl__loans_find(const ddl__runner *runner, ddl_work *work)
{
    const ddl__plan *plan = work->plan;
    const size_t segment = (size_t)plan->segment * work->element;
    const bool pulls_in_place = work->in == work->out && !plan->returns;
    if (!ddl__regions_exist(runner->regions) ||
        segment < (pulls_in_place ? DDL__LEND_LEAST_IN_PLACE : DDL__LEND_LEAST))
        return;
    work->regions[0] = ddl__regions_find(runner->regions, work->in);
    work->regions[1] = ddl__regions_find(runner->regions, work->out);
    work->lends = work->regions[0].base || work->regions[1].base;
    if (work->lends)
        work->interleaving = DDL__INTERLEAVE_NEVER;
}

static const ddl__region *region_of(const ddl_work *work, const void *memory, size_t bytes)
{
    for (unsigned i = 0; i < 2; i++)
        if (ddl__region_has(&work->regions[i], memory, bytes))
            return &work->regions[i];
    return NULL;
}

bool ddl__loans_may(const ddl_work *work, const void *memory, size_t bytes)
{
    return region_of(work, memory, bytes);
}

ddl__loan_outcome ddl__loans_publish(const ddl__runner *runner, const ddl_work *work,
                                     const ddl__step *step, const void *memory, size_t bytes)
{
    ddl__link *link = runner->links[work->plan->ranks[step->target + work->published]];
    if (link->borrowed)
        return link->ops->give_back(link, bytes, &work->signature) ? DDL__LOAN_MADE
                                                                   : DDL__LOAN_FULL;
    const ddl__region *region =
        step->stable && link->ops->lend ? region_of(work, memory, bytes) : NULL;
    const bool returns = step->returns && step->kind == DDL__PUBLISH;
    return region && link->ops->lend(link, region, memory, bytes, &work->signature, returns)
               ? DDL__LOAN_MADE
               : DDL__LOAN_REFUSED;
}

unsigned ddl__loans_count_others(const ddl__runner *runner, unsigned n)
{
    unsigned others = 0;
    while (others < n && !runner->targets[others]->borrowed)
        others++;
    return others;
}

bool ddl__loans_find_returns(ddl__runner *runner, ddl_work *work, const ddl__step *step)
{
    runner->n_returns = 0;
    for (uint32_t i = 0; i < step->targets; i++) {
        ddl__link *link = runner->links[work->plan->ranks[step->target + i]];
        void *memory = link->ops->lend ? link->ops->borrow(link) : NULL;
        if (memory)
            runner->returns[runner->n_returns++] = memory;
    }
    if (runner->n_returns && !work->lends) {
        work->regions[0] = work->regions[1] = (ddl__region){.base = NULL};
        work->lends = true;
    }
    return runner->n_returns;
}

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
    if (work->lends && work->plan->returns && work->regions[1].base && !ddl__loans_flush(runner))
        ddl__region_detach(runner->regions, &work->regions[1], work->out,
                           (size_t)work->call.count * work->element);
}
