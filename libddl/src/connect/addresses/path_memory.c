/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/addresses/path_memory.h"

#include <stdlib.h>
#include <string.h>

static ddl__dead_path *find(const ddl__path_memory *memory, const ddl__interface *theirs,
                            ddl__path path)
{
    const ddl__interface *to = &theirs[path.theirs];
    for (unsigned i = 0; i < memory->n_dead; i++) {
        ddl__dead_path *dead = &memory->dead[i];
        if (dead->ours == path.ours && dead->theirs.family == to->family &&
            !memcmp(dead->theirs.bytes, to->bytes, sizeof to->bytes))
            return dead;
    }
    return NULL;
}

/* Append a path. If out of memory, the path is not recorded and will be tried again. */
static void append(ddl__path_memory *memory, ddl__dead_path dead)
{
    if (memory->n_dead == memory->capacity) {
        unsigned capacity = memory->capacity ? 2 * memory->capacity : 8;
        ddl__dead_path *more = realloc(memory->dead, capacity * sizeof *more);
        if (!more)
            return;
        memory->dead = more;
        memory->capacity = capacity;
    }
    memory->dead[memory->n_dead++] = dead;
}

bool ddl__path_memory_add(ddl__path_memory *memory, const ddl__interface *theirs, ddl__path path,
                          bool answers)
{
    ddl__dead_path *dead = find(memory, theirs, path);
    if (answers && dead)
        *dead = memory->dead[--memory->n_dead];
    if (!answers && !dead)
        append(memory, (ddl__dead_path){path.ours, theirs[path.theirs]});
    if (path.ours < 0)
        return false;
    bool is_first = !answers && !memory->fails[path.ours];
    memory->answers[path.ours] = memory->answers[path.ours] || answers;
    memory->fails[path.ours] = memory->fails[path.ours] || !answers;
    return is_first;
}

static bool is_dead(const ddl__path_memory *memory, const ddl__interface *theirs, ddl__path path)
{
    if (path.ours >= 0 && memory->fails[path.ours] && !memory->answers[path.ours])
        return true;
    return find(memory, theirs, path) != NULL;
}

void ddl__path_memory_sort(const ddl__path_memory *memory, const ddl__interface *theirs,
                           ddl__paths *paths)
{
    ddl__path last[2 * DDL__INTERFACES_MAX];
    unsigned n = 0, n_last = 0, at_once = 0;
    for (unsigned i = 0; i < paths->n; i++) {
        bool dead = is_dead(memory, theirs, paths->path[i]);
        at_once += i < paths->at_once && !dead;
        if (dead)
            last[n_last++] = paths->path[i];
        else
            paths->path[n++] = paths->path[i];
    }
    memcpy(&paths->path[n], last, n_last * sizeof *last);
    if (paths->at_once)
        paths->at_once = at_once ? at_once : 1;
}

void ddl__path_memory_free(ddl__path_memory *memory)
{
    free(memory->dead);
}
