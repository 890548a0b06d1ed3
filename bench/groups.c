/* SPDX-License-Identifier: Apache-2.0 */
/* groups.c - time of many small f32 all-reduces between processes of this host: one by one, all
 * at once, by name, and as a group.
 *
 *   cc -O2 bench/groups.c -Ilibddl/include -Lbuild -lddl -o groups
 *   ./groups RANKS NUMBER BYTES [SECONDS]   DDL_LINKS=tcp for TCP over loopback
 *
 * Forks the ranks, pins rank r to core r, runs the four ways in turns, and prints the best and the
 * median time per all-reduce of each. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { ROUNDS_MAX = 20000, WAYS = 4 };
static const char *const ways[WAYS] = {"one by one", "all under way", "by name", "as a group"};

typedef struct job {
    ddl_comm *comm;
    ddl_group *group;
    ddl_work **works;
    float **data;
    int n;
    int64_t count;
} job;

static void wait_all(job *j)
{
    for (int i = 0; i < j->n; i++) {
        must(ddl_work_wait(j->works[i], -1));
        ddl_work_destroy(j->works[i]);
    }
}

/* One round. The maximum leaves the values unchanged. */
static void run(job *j, int way)
{
    for (int i = 0; i < j->n && way < 3; i++) {
        char name[32];
        ddl_options options = {.struct_size = sizeof options, .name = way == 2 ? name : NULL};
        snprintf(name, sizeof name, "tensor %d", i);
        must(ddl_allreduce(j->comm, NULL, j->data[i], j->count, DDL_F32, DDL_MAX, &options,
                           way ? &j->works[i] : NULL));
    }
    if (way == 3)
        must(ddl_group_submit(j->group, NULL, NULL));
    else if (way)
        wait_all(j);
}

static void measure(job *j, double seconds)
{
    static double samples[WAYS][ROUNDS_MAX];
    double start = now();
    int rounds = 0;
    for (int32_t go = 1; go; rounds++) {
        for (int way = 0; way < WAYS; way++) {
            must(ddl_barrier(j->comm, NULL, NULL));
            double before = now();
            run(j, way);
            samples[way][rounds] = (now() - before) / j->n;
        }
        go = rounds + 1 < ROUNDS_MAX && now() - start < seconds;
        must(ddl_broadcast(j->comm, &go, 1, DDL_I32, 0, NULL, NULL));
    }
    for (int way = 0; way < WAYS && ddl_comm_rank(j->comm) == 0; way++) {
        qsort(samples[way], (size_t)rounds, sizeof **samples, ascending);
        printf("%-14s best %8.2f us, median %8.2f us each\n", ways[way], samples[way][0] * 1e6,
               samples[way][rounds / 2] * 1e6);
    }
}

static void be_rank(int rank, int size, const char *url, int n, int64_t count, double seconds)
{
    pin(rank);
    ddl_endpoint *endpoint;
    job j = {.n = n, .count = count};
    must(ddl_endpoint_create(NULL, &endpoint));
    must(ddl_rendezvous(endpoint, url, rank, size, NULL, &j.comm));
    must(ddl_group_create(j.comm, &j.group));
    j.works = calloc((size_t)n, sizeof *j.works);
    j.data = calloc((size_t)n, sizeof *j.data);
    ddl_options collected = {.struct_size = sizeof collected, .group = j.group};
    for (int i = 0; i < n; i++) {
        j.data[i] = calloc((size_t)count + 1, sizeof **j.data);
        must(ddl_allreduce(j.comm, NULL, j.data[i], count, DDL_F32, DDL_MAX, &collected, NULL));
    }
    measure(&j, seconds);
    ddl_group_destroy(j.group);
    ddl_comm_destroy(j.comm);
    ddl_endpoint_destroy(endpoint);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s RANKS NUMBER BYTES [SECONDS]\n", argv[0]);
        return 2;
    }
    int size = atoi(argv[1]), failed = 0, status;
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", 20000 + (int)getpid() % 10000);
    for (int rank = 0; rank < size; rank++)
        if (fork() == 0) {
            be_rank(rank, size, url, atoi(argv[2]), atoll(argv[3]) / 4,
                    argc > 4 ? atof(argv[4]) : 3);
            return 0;
        }
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
