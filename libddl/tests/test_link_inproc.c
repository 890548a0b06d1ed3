/* SPDX-License-Identifier: Apache-2.0 */
/* Links between threads: shared memory mapped once. */
#include "link_conformance.h"
#include "net/shm.h"

enum { ARENA = 2 * LARGEST };

typedef struct memory {
    ddl__arena *arenas[1 + LEAVES];
    ddl__link *first[2 * LEAVES]; /* those that have links beside them */
} memory;

/* Arena 0 is the centre's, with a reader for each leaf. */
static void create(star *s)
{
    memory *m = calloc(1, sizeof *m);
    ddl__arena **arenas = m->arenas;
    s->own = m;
    arenas[0] = ddl__arena_create(s->leaves, ARENA, ARENA);
    for (unsigned i = 0; i < s->leaves; i++) {
        arenas[1 + i] = ddl__arena_create(1, ARENA, ARENA);
        ddl__arena *centre = ddl__arena_share(arenas[0]);
        ddl__arena *leaf = ddl__arena_share(arenas[1 + i]);
        CHECK(centre && leaf, "%s", ddl__message());
        s->centre[i] = ddl__shm_link_create(arenas[0], i, leaf, 0, true);
        s->leaf[i] = ddl__shm_link_create(arenas[1 + i], 0, centre, i, true);
        CHECK(s->centre[i] && s->leaf[i], "%s", ddl__message());
    }
}

/* All the same, and a link beside each. */
static void create_beside(star *s)
{
    create(s);
    memory *m = s->own;
    for (unsigned i = 0; i < s->leaves; i++) {
        m->first[2 * i] = s->centre[i];
        m->first[2 * i + 1] = s->leaf[i];
        s->centre[i] = ddl__shm_link_beside(s->centre[i]);
        s->leaf[i] = ddl__shm_link_beside(s->leaf[i]);
        CHECK(s->centre[i] && s->leaf[i], "%s", ddl__message());
    }
}

static void destroy(star *s)
{
    memory *m = s->own;
    for (unsigned i = 0; i < 2 * LEAVES; i++)
        link_destroy(&m->first[i]);
    for (unsigned i = 0; i < 1 + LEAVES; i++)
        ddl__arena_drop(m->arenas[i]);
    free(m);
}

int main(void)
{
    ddl__link_conformance(&(star_factory){create, destroy, NULL});
    ddl__link_conformance_beside(&(star_factory){create_beside, destroy, NULL});
    return 0;
}
