/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "explore/creation/world.h"

uint64_t world_hash(const world *w)
{
    uint64_t h = 0x9e3779b97f4a7c15;
    const unsigned char *at = (const unsigned char *)w;
    for (size_t i = 0; i + 8 <= sizeof *w; i += 8) {
        uint64_t word;
        memcpy(&word, at + i, 8);
        h = (h ^ word) * 0xff51afd7ed558ccd;
        h ^= h >> 32;
    }
    return h;
}

void event_print(event e)
{
    static const char *const names[TYPES] = {"receives from",
                                             "begins a call",
                                             "answers",
                                             "looks for facts",
                                             "leaves the child",
                                             "learns that the parent has failed",
                                             "has doubted for long enough",
                                             "is in the wrong call for too long",
                                             "is killed",
                                             "aborts the parent",
                                             "aborts the child",
                                             "is late",
                                             "fails by itself"};
    printf("  %d %s", e.a, names[e.type]);
    if (is_of_pairs(e.type))
        printf(" %d", e.b);
    printf(e.which ? ", message %d\n" : "\n", e.which);
}

void world_print(const model *m, const world *w)
{
    static const char *const phases[] = {"idle",          "connecting", "exchanging", "committing",
                                         "has the child", "done",       "ended",      "dead"};
    static const char *const states[] = {"none", "dialed", "open", "closed"};
    for (int a = 0; a < m->n; a++) {
        const node *n = &w->nodes[a];
        printf("  %d: %s, call %d, child %d, number %u, used %d %d;", a, phases[n->phase], n->call,
               n->family, n->creation.number, n->used[0], n->used[1]);
        for (int b = 0; b < m->n; b++)
            if (b != a)
                printf(" %d %s", b, states[n->links[b].state]);
        printf("\n");
    }
}
