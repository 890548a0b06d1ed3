/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - the file that all ranks of a communicator of the stand-in map.
 *
 * Each rank has an area in it, and a count of its steps. The wait for the others is like that of a
 * kernel: only an abort by this rank ends it. */
#ifndef NCCL_STANDIN_WORLD_H
#define NCCL_STANDIN_WORLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl_abi.h"

enum { WORLD_RANKS_MAX = 64, WORLD_AREA = 64 << 10, WORLD_SAID = 4 };

/* The state of one rank. */
typedef struct world_rank {
    _Alignas(64) atomic_ullong step;
    atomic_int process;        /* 0: not joined */
    atomic_uint kinds;         /* kinds of operations that it has called, as bits */
    atomic_bool is_over;       /* it is ending its communicator */
    uint64_t said[WORLD_SAID]; /* values for the others, published by the next step */
} world_rank;

typedef struct world_file {
    atomic_uint joined;
    world_rank ranks[WORLD_RANKS_MAX];
    unsigned char areas[][WORLD_AREA];
} world_file;

typedef struct world {
    /* the next world of this process: ranks that are threads share one mapping */
    struct world *next;
    unsigned references;
    int size;
    size_t bytes;
    char name[NCCL_UNIQUE_ID_BYTES];
    world_file *file;
} world;

/* Make the name of a new world. */
bool world_name(ncclUniqueId *id);

/* Map the world; the first rank creates it. Return NULL on failure. */
world *world_open(const ncclUniqueId *id, int size);
void world_close(world *w);

/* Count this rank as joined. When all ranks have joined, the file's name is removed. */
void world_join(world *w, int rank);
bool world_is_complete(const world *w);

/* Wait until all ranks have taken this step. Return false if aborted. */
bool world_await(const world *w, uint64_t step, const atomic_bool *aborted);

/* Take this rank's next step, and wait until all ranks have. Return false if aborted. */
bool world_step(world *w, int rank, uint64_t step, const atomic_bool *aborted);

/* Return true if all ranks have called an operation of this kind. */
bool world_has_kind(world *w, int rank, unsigned kind);

/* Wait until all living ranks end their communicators, too. */
void world_end(world *w, int rank);

void world_await_abort(const atomic_bool *aborted);

#endif
