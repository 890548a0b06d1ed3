#include "nested_checker.h"
#include <stdio.h>
int main(int argc, char **argv)
{
    int dims[4] = {2, 2, 1, 1};
    for (int i = 1; i < argc && i < 5; i++) dims[i - 1] = atoi(argv[i]);
    ddl__topology *t;
    CHECK(!ddl__topology_declare(dims, &t), "declare");
    t->declared = false;
    ddl__ladder ladder;
    CHECK(ddl__ladder_create(&ladder, t, 0), "ladder");
    ddl__request q = {.kind = DDL__ALLREDUCE, .size = t->size, .count = argc > 5 ? atoi(argv[5]) : 5000, .element = 4, .topology = t, .segment_bytes = 2048, .window=8192};
    for (int i = 0; i < 4; i++) {
        q.in_place = i & 1;
        machine *m = machine_create(&q, true);
        const char *e = execute(m, i & 2, &ladder);
        printf("%s %s: steps %u segment %lld wire %lld local %lld of %lld\n", m->members[0].plan->name, e ? e : "right", m->members[0].plan->n_steps,
               (long long)m->members[0].plan->segment, (long long)m->members[0].wire, (long long)m->members[0].local, (long long)q.count * 4);
        machine_destroy(m);
    }
    return 0;
}
