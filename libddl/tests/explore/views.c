/* SPDX-License-Identifier: Apache-2.0 */
/* The views of the model that explore/real compares with its processes. */
#include "explore/world.h"

member_view world_view(const model *m, const world *w, int rank)
{
    const node *n = &w->nodes[rank];
    const ddl__membership *self = machine(m, w, rank);
    member_view view = {.ended = n->ended, .creates = n->phase == CREATING};
    view.phase = n->phase == RUNNING                              ? IS_RUNNING
                 : n->phase == SHRINKING || n->phase == CREATING  ? IS_SHRINKING
                 : n->phase == DEAD                               ? HAS_ENDED
                 : n->failed || n->phase == FAILED || !n->created ? HAS_FAILED
                                                                  : HAS_RETURNED;
    view.may_create = view.creates && creation_may_succeed(w, rank);
    view.list = view.creates || view.phase == HAS_RETURNED ? n->list : 0;
    for (int b = 0; b < m->n; b++)
        view.states[b] = self->peers[b].state;
    return view;
}

int world_next_kind(const model *m, const world *w, int to, int from)
{
    const channel *c = channel_of(m, w, to, from);
    int kind = c->first ? cells(m, w)[c->first].kind : 0;
    return kind >= END_LOCAL ? END_OF_CONNECTION : kind;
}
