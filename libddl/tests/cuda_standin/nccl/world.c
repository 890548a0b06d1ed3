/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static world *worlds;

bool world_name(ncclUniqueId *id)
{
    unsigned long long number[2];
    memset(id, 0, sizeof *id);
    if (getrandom(number, sizeof number, 0) != sizeof number)
        return false;
    snprintf(id->internal, sizeof id->internal, "/nccl-standin-%016llx%016llx", number[0],
             number[1]);
    return true;
}

static world *map(const char *name, int size)
{
    world *w = calloc(1, sizeof *w);
    int fd = w ? shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0) {
        free(w);
        return NULL;
    }
    w->size = size;
    w->bytes = sizeof *w->file + (size_t)size * WORLD_AREA;
    w->file = ftruncate(fd, (off_t)w->bytes)
                  ? MAP_FAILED
                  : mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (w->file == MAP_FAILED) {
        free(w);
        return NULL;
    }
    memcpy(w->name, name, strlen(name) + 1);
    return w;
}

world *world_open(const ncclUniqueId *id, int size)
{
    char name[NCCL_UNIQUE_ID_BYTES];
    memcpy(name, id->internal, sizeof name);
    name[sizeof name - 1] = 0;
    if (size < 1 || size > WORLD_RANKS_MAX)
        return NULL;
    pthread_mutex_lock(&mutex);
    world *w = worlds;
    while (w && strcmp(w->name, name) != 0)
        w = w->next;
    if (!w && (w = map(name, size))) {
        w->next = worlds;
        worlds = w;
    }
    if (w)
        w->references++;
    pthread_mutex_unlock(&mutex);
    return w;
}

void world_close(world *w)
{
    pthread_mutex_lock(&mutex);
    bool last = !--w->references;
    if (last) {
        world **link = &worlds;
        while (*link != w)
            link = &(*link)->next;
        *link = w->next;
    }
    pthread_mutex_unlock(&mutex);
    if (!last)
        return;
    if (!world_is_complete(w))
        shm_unlink(w->name);
    munmap(w->file, w->bytes);
    free(w);
}

void world_join(world *w, int rank)
{
    atomic_store(&w->file->ranks[rank].process, (int)getpid());
    if (atomic_fetch_add(&w->file->joined, 1) + 1 == (unsigned)w->size)
        shm_unlink(w->name);
}

bool world_is_complete(const world *w)
{
    return atomic_load(&w->file->joined) >= (unsigned)w->size;
}

static void pause_briefly(void)
{
    const struct timespec time = {0, 20000};
    nanosleep(&time, NULL);
}

bool world_await(const world *w, uint64_t step, const atomic_bool *aborted)
{
    for (int r = 0; r < w->size; r++)
        while (atomic_load_explicit(&w->file->ranks[r].step, memory_order_acquire) < step) {
            if (atomic_load(aborted))
                return false;
            pause_briefly();
        }
    return !atomic_load(aborted);
}

bool world_step(world *w, int rank, uint64_t step, const atomic_bool *aborted)
{
    atomic_store_explicit(&w->file->ranks[rank].step, step, memory_order_release);
    return world_await(w, step, aborted);
}

void world_await_abort(const atomic_bool *aborted)
{
    while (!atomic_load(aborted))
        pause_briefly();
}

bool world_has_kind(world *w, int rank, unsigned kind)
{
    bool all = true;
    atomic_fetch_or(&w->file->ranks[rank].kinds, 1u << kind);
    for (int r = 0; r < w->size; r++)
        all = all && atomic_load(&w->file->ranks[r].kinds) >> kind & 1;
    return all;
}

/* True if the process lives. A process that has exited and was not waited for has no memory. */
static bool lives(int process)
{
    char path[64], text[32] = "";
    if (!process)
        return false;
    snprintf(path, sizeof path, "/proc/%d/statm", process);
    FILE *file = fopen(path, "r");
    bool found = file && fgets(text, sizeof text, file) && strncmp(text, "0 ", 2) != 0;
    if (file)
        fclose(file);
    return found;
}

void world_end(world *w, int rank)
{
    atomic_store(&w->file->ranks[rank].is_over, true);
    for (int r = 0; r < w->size; r++)
        while (!atomic_load(&w->file->ranks[r].is_over) &&
               lives(atomic_load(&w->file->ranks[r].process)))
            pause_briefly();
}
