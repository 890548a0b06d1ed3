/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "explore/world.h"

static const char *const names[TYPES] = {[DELIVER] = "receives from",
                                         [ADVANCE] = "advances",
                                         [SHRINK] = "shrinks",
                                         [CREATED] = "creates the comm",
                                         [UNCREATED] = "cannot create the comm",
                                         [CLOSE] = "closes",
                                         [GRACE] = "ends after the grace",
                                         [SILENCE] = "finds silent",
                                         [WITNESS] = "receives from the launcher the end of",
                                         [BELIEVE] = "believes the launcher about",
                                         [WAIT] = "has waited",
                                         [DIAL] = "dials",
                                         [MISS] = "misses",
                                         [UNREACHED] = "cannot connect to",
                                         [HEAL] = "is connected again with",
                                         [RESUME] = "resumes",
                                         [KILL] = "is killed",
                                         [CUT] = "is cut from",
                                         [STOP] = "is stopped",
                                         [ABORT] = "aborts",
                                         [EXPEL] = "expels",
                                         [LEAVE] = "leaves",
                                         [LATE] = "is late"};

void event_print(event e)
{
    bool is_of_pair = e.type == DELIVER || e.type == SILENCE || e.type == WITNESS ||
                      e.type == BELIEVE || e.type == DIAL || e.type == MISS || e.type == HEAL ||
                      e.type == UNREACHED || e.type == CUT || e.type == EXPEL;
    printf("  %d %s", e.a, names[e.type]);
    if (is_of_pair)
        printf(" %d", e.b);
    printf("%s\n", !e.flag ? "" : e.type == CUT ? ", by resets" : ", data is lost");
}

static void print_channel(const model *m, const world *w, int to, int from)
{
    static const char *const kinds[] = {"",         "HEARTBEAT",   "LEAVE",   "DEAD",     "EXPEL",
                                        "ASK",      "ANSWER",      "JOIN",    "VERDICT",  "DONE",
                                        "ASK_NAME", "ANSWER_NAME", "CONFIRM", "EXPELLED", "LOST",
                                        "GONE",     "VOUCH"};
    const message *all = cells(m, w);
    printf("  %d -> %d:", from, to);
    for (int cell = channel_of(m, w, to, from)->first; cell; cell = all[cell].next)
        if (all[cell].kind >= END_LOCAL)
            printf(" %s", all[cell].kind == RESET ? "RESET" : "END");
        else
            printf(" %s(%d)", kinds[all[cell].kind], all[cell].attempt);
    printf("\n");
}

void world_print(const model *m, world *w)
{
    static const char *const phases[] = {"running", "shrinking", "creating", "returned",
                                         "failed",  "closed",    "dead"};
    static const char *const states[] = {"alive", "left", "killed", "disconnected", "silent"};
    for (int i = 0; i < m->n; i++) {
        const node *n = &w->nodes[i];
        const ddl__membership *self = machine(m, w, i);
        printf("  %d (host %d): %s%s, attempt %d, list %llx;", i, m->host[i], phases[n->phase],
               n->stopped ? ", stopped" : "", n->attempt, (unsigned long long)n->list);
        for (int b = 0; b < m->n; b++)
            if (b != i && self->peers[b].state)
                printf(" %d %s%s", b, states[self->peers[b].state],
                       self->peers[b].may_continue ? " (may continue)" : "");
        printf("\n");
    }
    for (int i = 0; i < m->n * m->n; i++)
        if (w->nodes[i / m->n].pending >> i % m->n & 1)
            print_channel(m, w, i / m->n, i % m->n);
}
