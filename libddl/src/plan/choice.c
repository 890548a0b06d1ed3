/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the algorithm for a request.
 *
 * The choice depends only on data that all members of a comm have, and not on measurements, because
 * the order of additions must be the same on all ranks and in every run. Over wires the predicted
 * costs decide. In shared memory, fixed size limits decide, because caches do not follow a model of
 * latency and bandwidth. The limits were determined by measurements with few ranks
 * (docs/lab/experiments.md). */
#include "plan/builder.h"

#include <string.h>

#define ENTRY(number, descriptor) {DDL__ALGORITHM_##number, &ddl__##descriptor},
static const ddl__algorithm_entry table[] = {DDL__ALGORITHM_TABLE(ENTRY, ENTRY)};
enum { ENTRIES = sizeof table / sizeof *table };

const char *ddl__algorithm_name(ddl__algorithm number)
{
    for (int i = 0; i < ENTRIES; i++)
        if (table[i].number == number)
            return table[i].descriptor->name;
    return "";
}

ddl__algorithm ddl__algorithm_named(const char *name)
{
    for (int i = 0; i < ENTRIES; i++)
        if (strcmp(table[i].descriptor->name, name) == 0)
            return table[i].number;
    return DDL__ALGORITHM_NONE;
}

static bool fits(const ddl__algorithm_entry *entry, const ddl__request *request)
{
    const ddl__algorithm_descriptor *d = entry->descriptor;
    ddl__algorithm alone = request->order ? DDL__ALGORITHM_ORDERED : DDL__ALGORITHM_LOCAL;
    bool by_size =
        request->size == 1 ? entry->number == alone : entry->number != DDL__ALGORITHM_LOCAL;
    bool packs = request->wire && request->size > 1;
    return by_size && packs == (entry->number == DDL__ALGORITHM_PACKED) &&
           ddl__request_is(request, d->kinds) && (!d->fits || d->fits(request)) &&
           (!request->order || (d->follows && d->follows(request)));
}

const ddl__algorithm_entry *ddl__algorithm_find(ddl__algorithm number, const ddl__request *request)
{
    for (int i = 0; i < ENTRIES; i++)
        if (table[i].number == number && fits(&table[i], request))
            return &table[i];
    return NULL;
}

bool ddl__algorithm_fits(ddl__algorithm number, const ddl__request *request)
{
    return ddl__algorithm_find(number, request);
}

double ddl__algorithm_cost(ddl__algorithm number, const ddl__request *request)
{
    const ddl__algorithm_entry *entry = ddl__algorithm_find(number, request);
    return entry ? ddl__cost_seconds(entry->descriptor, request) : 0;
}

/* Return the choice in shared memory and for declared levels, or DDL__ALGORITHM_NONE if the costs
 * decide. */
static ddl__algorithm choose_in_any_order(const ddl__request *request)
{
    int64_t bytes = request->count * (int64_t)request->element;
    bool one_shot = bytes <= DDL__ONE_SHOT_SHARED && ddl__one_shot_beats_direct(request);
    bool reduces = request->kind == DDL__ALLREDUCE || request->kind == DDL__REDUCE_TO_ROOT;
    bool declared = request->topology && request->topology->declared;
    if (request->size == 1)
        return DDL__ALGORITHM_LOCAL;
    if (request->wire)
        return DDL__ALGORITHM_PACKED;
    if (request->kind == DDL__BARRIER)
        return ddl__one_shot_beats_dissemination(request) ? DDL__ALGORITHM_ONE_SHOT
                                                          : DDL__ALGORITHM_DISSEMINATION;
    if (ddl__request_is(request, DDL__PAIRWISE_KINDS))
        return request->all_shared || request->sent ? DDL__ALGORITHM_PAIRWISE : DDL__ALGORITHM_NONE;
    if (reduces && request->all_shared && one_shot)
        return DDL__ALGORITHM_ONE_SHOT;
    if (request->kind == DDL__ALLREDUCE && declared)
        return !request->all_shared && bytes <= DDL__ONE_SHOT_DECLARED
                   ? DDL__ALGORITHM_ONE_SHOT
                   : DDL__ALGORITHM_HIERARCHICAL;
    if (request->kind == DDL__ALLREDUCE && request->all_shared && ddl__request_has_levels(request))
        return DDL__ALGORITHM_HIERARCHICAL;
    return request->all_shared ? DDL__ALGORITHM_DIRECT : DDL__ALGORITHM_NONE;
}

/* Return the choice for a request with an order, which the algorithm must follow. */
static ddl__algorithm choose_by_rule(const ddl__request *request)
{
    ddl__algorithm rule = choose_in_any_order(request);
    bool follows = !rule || !request->order || ddl__algorithm_fits(rule, request);
    return follows ? rule : DDL__ALGORITHM_ORDERED;
}

int ddl__plan_candidates(const ddl__request *request, ddl__candidate found[DDL__ALGORITHMS])
{
    int n = 0, best = 0;
    ddl__algorithm rule = choose_by_rule(request);
    for (int i = 0; i < ENTRIES; i++) {
        const ddl__algorithm_descriptor *d = table[i].descriptor;
        if (!fits(&table[i], request) || (d->competes && !d->competes(request)))
            continue;
        found[n] = (ddl__candidate){table[i].number, ddl__cost_seconds(d, request)};
        if (rule ? found[n].by == rule : found[n].seconds < found[best].seconds)
            best = n;
        n++;
    }
    for (ddl__candidate chosen = found[best]; best >= 0; best--)
        found[best] = best ? found[best - 1] : chosen;
    return n;
}

const ddl__algorithm_entry *ddl__algorithm_choose(const ddl__request *request)
{
    ddl__candidate found[DDL__ALGORITHMS];
    const ddl__algorithm_entry *asked = ddl__algorithm_find(request->by, request);
    if (asked)
        return asked;
    ddl__algorithm rule = choose_by_rule(request);
    if (!rule && ddl__plan_candidates(request, found))
        rule = found[0].by;
    return ddl__algorithm_find(rule, request);
}
