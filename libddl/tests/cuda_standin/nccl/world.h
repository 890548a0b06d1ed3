/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - where the ranks of a communicator of the stand-in meet: a file that all map.
 *
 * Each rank has an area in it, and a number of how far it has come. The wait for the others is like
 * that of a kernel: nothing but an abort by this rank ends it. */
#ifndef NCCL_STANDIN_WORLD_H
#define NCCL_STANDIN_WORLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl_abi.h"

enum { WORLD_RANKS_MAX = 64, WORLD_AREA = 64 << 10, WORLD_SAID = 4 };

/* Of one rank. */
typedef struct world_rank {
    _Alignas(64) atomic_ullong step;
    atomic_int process;        /* 0: it has not joined */
    atomic_uint kinds;         /* of operations that it has called, as bits */
    atomic_bool is_over;       /* it ends its communicator */
    uint64_t said[WORLD_SAID]; /* to the others, before the next step */
} world_rank;

typedef struct world_file {
    atomic_uint joined;
    world_rank ranks[WORLD_RANKS_MAX];
    unsigned char areas[][WORLD_AREA];
} world_file;

typedef struct world {
    struct world *next; /* of this process: ranks that are threads share one mapping */
    unsigned references;
    int size;
    size_t bytes;
    char name[NCCL_UNIQUE_ID_BYTES];
    world_file *file;
} world;

/* Make the name of a new world. */
bool world_name(ncclUniqueId *id);

/* Map it; the first one makes it. NULL: it cannot. */
world *world_open(const ncclUniqueId *id, int size);
void world_close(world *w);

/* Count this rank as there. Whether all are: then the file needs no name any more. */
void world_join(world *w, int rank);
bool world_is_complete(const world *w);

/* Wait until all ranks have taken this step. False: aborted. */
bool world_await(const world *w, uint64_t step, const atomic_bool *aborted);

/* Take this rank's next step, and wait until all ranks have. False: aborted. */
bool world_step(world *w, int rank, uint64_t step, const atomic_bool *aborted);

/* Whether all ranks have called an operation of this kind. */
bool world_has_kind(world *w, int rank, unsigned kind);

/* Wait until all ranks that live end their communicators, too. */
void world_end(world *w, int rank);

void world_await_abort(const atomic_bool *aborted);

#endif
