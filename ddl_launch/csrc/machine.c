#include "machine.h"

#include <stdlib.h>

ddl__topology *ddl_topology_of(const ddl_machine *machine)
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

ddl__request ddl_request_of(const ddl_machine *machine, const ddl_question *question,
                            const ddl__topology *topology)
{
    return (ddl__request){.kind = (ddl__kind)question->kind,
                          .size = machine->size,
                          .count = question->count,
                          .element = (size_t)question->element,
                          .in_place = true,
                          .all_shared = topology->groups[DDL__HOSTS] == 1,
                          .topology = topology,
                          .window = DDL_WINDOW};
}
