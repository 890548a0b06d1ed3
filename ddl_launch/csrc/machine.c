/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <stdlib.h>

#include "plan/builder.h"

ddl__topology *machine_topology(const ddl_machine *machine)
{
    size_t n = DDL__GROUPINGS * (size_t)machine->size;
    ddl__topology *t = calloc(1, sizeof *t + n * sizeof t->group[0]);
    if (!t)
        return NULL;
    t->size = machine->size;
    for (size_t i = 0; i < n; i++) {
        int grouping = (int)(i / (size_t)machine->size);
        t->group[i] = machine->groups[i];
        if (t->groups[grouping] <= t->group[i])
            t->groups[grouping] = t->group[i] + 1;
    }
    for (int level = 1; level < DDL__DIMENSIONS; level++)
        t->wires[level - 1] = (ddl__speed){machine->latency[level], machine->bandwidth[level]};
    t->machines = (t->groups[DDL__HOSTS] + machine->machine_hosts - 1) / machine->machine_hosts;
    int most = 0;
    for (int m = 0; m < t->machines; m++) {
        int ranks = 0;
        for (int r = 0; r < t->size; r++)
            ranks += ddl__topology_group(t, DDL__HOSTS, r) / machine->machine_hosts == m;
        most = ranks > most ? ranks : most;
    }
    t->oversubscription = machine->cores ? (double)most / machine->cores : 1;
    return t;
}

/* The request of rank 0, in place unless it is an ordered sum. */
static ddl__request request_of(const ddl_question *question, const ddl__topology *topology,
                               const ddl__order *order)
{
    ddl__request request = {.kind = (ddl__kind)question->kind,
                            .size = topology->size,
                            .count = question->count,
                            .element = (size_t)question->element,
                            .order = order->members ? order : NULL,
                            .wide = 1,
                            .in_place = !order->members,
                            .all_shared = topology->groups[DDL__HOSTS] == 1,
                            .topology = topology,
                            .window = MACHINE_WINDOW};
    if (ddl__request_elements(&request) >= ddl__packs_from(&request))
        request.wire = (ddl_wire)question->wire;
    return request;
}

ddl__plan *machine_plan(const ddl_question *question, const ddl__topology *topology,
                        const char *chosen, int r)
{
    ddl__order order = {question->workers, question->owners};
    ddl__request request = request_of(question, topology, &order);
    request.rank = r;
    if (question->algorithm)
        return ddl__plan_create_as(&request, question->algorithm);
    request.by = ddl__algorithm_named(chosen);
    return ddl__plan_create(&request);
}

double machine_estimate(const ddl_question *question, const ddl__topology *topology,
                        const char *name)
{
    ddl__order order = {question->workers, question->owners};
    ddl__request request = request_of(question, topology, &order);
    return ddl__algorithm_cost(ddl__algorithm_named(name), &request);
}
