/* SPDX-License-Identifier: Apache-2.0 */
/* allreduce.c - time of one in-place f32 all-reduce between processes of this host, from C.
 *
 *   cc -O2 bench/allreduce.c -Ilibddl/include -Lbuild -lddl -o allreduce
 *   ./allreduce RANKS BYTES [SECONDS [SEGMENT]]   DDL_LINKS=tcp for TCP over loopback
 *
 * Forks the ranks; with RANKS 0 the process is the rank that DDL_RENDEZVOUS, DDL_RANK and DDL_SIZE
 * describe. Pins rank r to core r, rewrites the buffers before and checks them after each
 * iteration, and prints the fastest and the median time. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { SAMPLES_MAX = 1000000 };

static void measure(ddl_comm *comm, size_t bytes, double seconds)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    size_t n = bytes / sizeof(float);
    float *buffer = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    double *samples = malloc(SAMPLES_MAX * sizeof *samples), start = now();
    int taken = 0;
    if (!buffer || !samples)
        abort();
    for (int32_t go = 1; go;) {
        /* Small sizes run in batches, since reading the clock costs time. */
        int batch = bytes <= 4096 ? 100 : 1;
        for (size_t i = 0; i < n; i++)
            buffer[i] = (float)(rank + 1);
        must(ddl_barrier(comm, NULL, NULL));
        double t = now();
        for (int i = 0; i < batch; i++)
            must(ddl_allreduce(comm, NULL, buffer, (int64_t)n, DDL_F32, i ? DDL_MAX : DDL_SUM, NULL,
                               NULL));
        t = (now() - t) / batch;
        for (size_t i = 0; i < n; i++)
            if (buffer[i] != (float)(size * (size + 1) / 2)) {
                fprintf(stderr, "wrong: rank %d element %zu is %g\n", rank, i, (double)buffer[i]);
                exit(1);
            }
        samples[taken++] = t;
        go = now() - start < seconds && taken < SAMPLES_MAX;
        must(ddl_broadcast(comm, &go, 1, DDL_I32, 0, NULL, NULL));
    }
    qsort(samples, (size_t)taken, sizeof *samples, ascending);
    if (rank == 0)
        printf(
            "%d ranks, %zu bytes: best %.2f us, median %.2f us, %.2f GB/s at best (%d samples)\n",
            size, bytes, samples[0] * 1e6, samples[taken / 2] * 1e6,
            (double)bytes / samples[0] / 1e9, taken);
    free(buffer);
    free(samples);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s RANKS BYTES [SECONDS [SEGMENT]]\n", argv[0]);
        return 2;
    }
    int size = atoi(argv[1]), rank = 0, failed = 0;
    double seconds = argc > 3 ? atof(argv[3]) : 2;
    bool alone = size == 0; /* the other ranks are started elsewhere */
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", 20000 + (int)getpid() % 20000);
    for (int r = 1; r < size && rank == 0; r++)
        if (fork() == 0)
            rank = r;
    pin(alone && getenv("DDL_RANK") ? atoi(getenv("DDL_RANK")) : rank);
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    must(ddl_endpoint_create(NULL, &endpoint));
    ddl_comm_config config = {.struct_size = sizeof config,
                              .segment_bytes = argc > 4 ? (uint64_t)atoll(argv[4]) : 0};
    must(ddl_rendezvous(endpoint, alone ? NULL : url, alone ? -1 : rank, size, &config, &comm));
    measure(comm, (size_t)atoll(argv[2]), seconds);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    for (int status; rank == 0 && wait(&status) > 0;)
        failed |= status;
    return failed != 0;
}
