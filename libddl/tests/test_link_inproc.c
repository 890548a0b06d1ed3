/* Links between threads: shared memory mapped once. */
#include <sys/socket.h>

#include "link_conformance.h"
#include "net/shm.h"

enum { ARENA = 2 * LARGEST };

/* Arena 0 is the centre's, with a reader for each leaf. */
static void create(star *s)
{
    ddl__arena **arenas = calloc(1 + LEAVES, sizeof(ddl__arena *));
    s->own = arenas;
    arenas[0] = ddl__arena_create(s->leaves, ARENA);
    for (unsigned i = 0; i < s->leaves; i++) {
        arenas[1 + i] = ddl__arena_create(1, ARENA);
        ddl__arena *centre = ddl__arena_share(arenas[0]);
        ddl__arena *leaf = ddl__arena_share(arenas[1 + i]);
        int fds[2];
        CHECK(centre && leaf && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s",
              ddl__message());
        s->centre[i] = ddl__shm_link_create(arenas[0], i, leaf, 0, fds[0], true);
        s->leaf[i] = ddl__shm_link_create(arenas[1 + i], 0, centre, i, fds[1], true);
        CHECK(s->centre[i] && s->leaf[i], "%s", ddl__message());
    }
}

static void destroy(star *s)
{
    ddl__arena **arenas = s->own;
    for (unsigned i = 0; i < 1 + LEAVES; i++)
        ddl__arena_drop(arenas[i]);
    free(arenas);
}

int main(void)
{
    ddl__link_conformance(&(star_factory){create, destroy});
    return 0;
}
