/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h - ranks as threads of one process, each with its own endpoint and one common comm. */
#ifndef DDL_TESTS_RANKS_H
#define DDL_TESTS_RANKS_H

#include "check.h"
#include "ddl/ddl.h"
#include "tested_links.h"

enum { RANKS_MAX = 16 };

/* A value of `links`: ranks 0 and 1 share memory, the others are joined to all by TCP. */
#define LINKS_MIXED UINT32_MAX

/* Rank 0 is joined to all by TCP, the others share memory. */
#define LINKS_REVERSED (UINT32_MAX - 1)

/* Two hosts: the first half of the ranks and the others; or even and odd ranks. Ranks of one host
 * allow links within the process, ranks of the other host shared memory. So TCP is the only link
 * that both allow. */
#define LINKS_HOSTS       (UINT32_MAX - 2)
#define LINKS_INTERLEAVED (UINT32_MAX - 3)

/* The links that a program's first argument names; those within the process without one. */
static inline uint32_t links_argument(int argc, char **argv)
{
    static const struct {
        const char *name;
        uint32_t links;
    } kinds[] = {{"inproc", DDL_LINK_INPROC}, {"shm", DDL_LINK_SHM},
                 {"tcp", DDL_LINK_TCP},       {"mixed", LINKS_MIXED},
                 {"hosts", LINKS_HOSTS},      {"interleaved", LINKS_INTERLEAVED}};
    size_t i = 0;
    while (argc > 1 && i < sizeof kinds / sizeof *kinds && strcmp(argv[1], kinds[i].name) != 0)
        i++;
    CHECK(i < sizeof kinds / sizeof *kinds, "no links are named %s", argv[1]);
    return kinds[i].links;
}

typedef void rank_fn(ddl_comm *comm, void *argument);

typedef struct ranks {
    int size;
    ddl_comm_config config;
    rank_fn *fn;
    void *argument;
    ddl_endpoint *endpoints[RANKS_MAX];
    unsigned char addresses[RANKS_MAX][DDL_ADDRESS_MAX];
    size_t lengths[RANKS_MAX];
    atomic_int created;
} ranks;

typedef struct rank_thread {
    ranks *all;
    int rank;
    pthread_t thread;
} rank_thread;

static uint32_t kinds_of(uint32_t links, int rank, int size)
{
    switch (links) {
    case LINKS_MIXED: return rank < 2 ? 0 : DDL_LINK_TCP;
    case LINKS_REVERSED: return rank > 0 ? 0 : DDL_LINK_TCP;
    case LINKS_HOSTS:
        return DDL_LINK_TCP | (rank < (size + 1) / 2 ? DDL_LINK_INPROC : DDL_LINK_SHM);
    case LINKS_INTERLEAVED: return DDL_LINK_TCP | (rank % 2 ? DDL_LINK_INPROC : DDL_LINK_SHM);
    }
    return links;
}

static uint32_t links_of(uint32_t links, int rank, int size)
{
    return tested_links(kinds_of(links, rank, size));
}

static void *rank_main(void *argument)
{
    rank_thread *self = argument;
    ranks *all = self->all;
    const void *addresses[RANKS_MAX];
    for (int i = 0; i < all->size; i++)
        addresses[i] = all->addresses[i];
    ddl_comm_config config = all->config;
    config.links = links_of(config.links, self->rank, all->size);
    ddl_comm *comm;
    OK(ddl_comm_create(all->endpoints[self->rank], addresses, all->lengths, self->rank, all->size,
                       &config, &comm));
    /* A creation in progress fails when another rank ends the comm. */
    atomic_fetch_add(&all->created, 1);
    while (atomic_load(&all->created) < all->size)
        usleep(200);
    all->fn(comm, all->argument);
    ddl_comm_destroy(comm);
    return NULL;
}

/* Run `main` in a thread for each of all->size ranks, with an endpoint each, until all have
 * ended. */
static inline void run_threads(ranks *all, void *(*main)(void *))
{
    for (int i = 0; i < all->size; i++) {
        /* As if on another host: a sparse comm (connect/addresses/neighbours.h) relies on the
         * addresses. */
        uint32_t links = links_of(all->config.links, i, all->size);
        bool alone = links == DDL_LINK_TCP || links == DDL_LINK_UCX;
        if (alone)
            setenv("DDL_LINKS", "tcp", 1);
        OK(ddl_endpoint_create(NULL, &all->endpoints[i]));
        if (alone)
            unsetenv("DDL_LINKS");
        OK(ddl_endpoint_address(all->endpoints[i], all->addresses[i], DDL_ADDRESS_MAX,
                                &all->lengths[i]));
    }
    rank_thread threads[RANKS_MAX];
    for (int i = 0; i < all->size; i++) {
        threads[i] = (rank_thread){.all = all, .rank = i};
        CHECK(!pthread_create(&threads[i].thread, NULL, main, &threads[i]), "rank %d", i);
    }
    for (int i = 0; i < all->size; i++)
        pthread_join(threads[i].thread, NULL);
    for (int i = 0; i < all->size; i++)
        ddl_endpoint_destroy(all->endpoints[i]);
}

/* Run fn on `size` ranks joined by `links` (ddl_link_kind bits). */
static inline void run_ranks_with(int size, ddl_comm_config config, rank_fn *fn, void *argument)
{
    static ranks all; /* too large for some stacks; runs are not concurrent */
    memset(&all, 0, sizeof all);
    all.size = size;
    all.config = config;
    all.config.struct_size = sizeof all.config;
    all.config.timeout_ms = 60000;
    all.fn = fn;
    all.argument = argument;
    run_threads(&all, rank_main);
}

static inline void run_ranks(int size, uint32_t links, rank_fn *fn, void *argument)
{
    run_ranks_with(size, (ddl_comm_config){.links = links}, fn, argument);
}

#endif
