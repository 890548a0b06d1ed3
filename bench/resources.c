/* SPDX-License-Identifier: Apache-2.0 */
/* resources.c - memory of a rank, and start-up time.
 *
 *   cc -O2 bench/resources.c -Ilibddl/include -Lbuild -lddl -o resources
 *   ./resources memory RANKS   bytes by which a comm and operations of up to 64 MiB increase a
 *                              rank's PSS
 *   ./resources flat COUNT     bytes by which COUNT operations increase a rank's PSS, 2 ranks
 *   ./resources create RANKS   seconds from the last rank's call of ddl_comm_create to the last
 *                              return; the median of ten
 *   ./resources spawn RANKS    seconds from before the first fork to the end of the last rank's
 *                              first all-reduce; the median of ten
 *
 * All ranks are processes of this host. Prints one number. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "bench.h"

/* WARM_UP operations write every page of the rings, which are allocated on first use. */
enum { RANKS_MAX = 64, ROUNDS = 10, LARGEST = 64 << 20, WARM_UP = 10000 };

/* Shared by all ranks. */
typedef struct board {
    unsigned char addresses[RANKS_MAX][DDL_ADDRESS_MAX];
    size_t lengths[RANKS_MAX];
    double entered[RANKS_MAX], returned[RANKS_MAX], grown[RANKS_MAX];
    atomic_int arrived;
} board;

static board *shared;

/* The `n`th barrier of all ranks, without libddl. */
static void barrier(int size, int n)
{
    atomic_fetch_add(&shared->arrived, 1);
    while (atomic_load(&shared->arrived) < n * size)
        usleep(200);
}

static ddl_comm *join(ddl_endpoint **endpoint, int rank, int size)
{
    const void *addresses[RANKS_MAX];
    ddl_comm *comm;
    must(ddl_endpoint_create(NULL, endpoint));
    must(ddl_endpoint_address(*endpoint, shared->addresses[rank], DDL_ADDRESS_MAX,
                              &shared->lengths[rank]));
    for (int i = 0; i < size; i++)
        addresses[i] = shared->addresses[i];
    barrier(size, 1);
    shared->entered[rank] = now();
    must(ddl_comm_create(*endpoint, addresses, shared->lengths, rank, size, NULL, &comm));
    shared->returned[rank] = now();
    return comm;
}

static void leave(ddl_endpoint *endpoint, ddl_comm *comm)
{
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
}

static void be_rank_create(int rank, int size, long unused)
{
    (void)unused;
    ddl_endpoint *endpoint;
    ddl_comm *comm = join(&endpoint, rank, size);
    leave(endpoint, comm);
}

/* Runs operations of all sizes up to that of the buffer. */
static void be_rank_memory(int rank, int size, long unused)
{
    (void)unused;
    ddl_endpoint *endpoint;
    char *send = malloc(LARGEST), *recv = malloc(LARGEST);
    memset(send, 1,
           LARGEST); /* not zeros: a compiler would make a calloc of that, which takes no memory */
    memset(recv, 1, LARGEST);
    double before = pss();
    ddl_comm *comm = join(&endpoint, rank, size);
    for (int64_t n = 8; n <= LARGEST / 4; n *= 8) {
        must(ddl_allreduce(comm, send, recv, n, DDL_F32, DDL_SUM, NULL, NULL));
        must(ddl_allgather(comm, send, recv, n / size, DDL_F32, NULL, NULL));
        must(ddl_alltoall(comm, send, recv, n / size, DDL_F32, NULL, NULL));
    }
    barrier(size, 2); /* PSS divides shared pages by their users: all must still be there */
    shared->grown[rank] = pss() - before;
    barrier(size, 3);
    leave(endpoint, comm);
}

static void be_rank_flat(int rank, int size, long count)
{
    ddl_endpoint *endpoint;
    float data[256] = {0};
    double before = 0;
    ddl_comm *comm = join(&endpoint, rank, size);
    for (long i = 0; i < count + WARM_UP; i++) {
        if (i == WARM_UP)
            before = pss();
        must(ddl_allreduce(comm, NULL, data, 256, DDL_F32, DDL_SUM, NULL, NULL));
    }
    barrier(size, 2);
    shared->grown[rank] = pss() - before;
    barrier(size, 3);
    leave(endpoint, comm);
}

static void fail_unless(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "resources: %s failed\n", what);
    exit(1);
}

static void wait_all(void)
{
    for (int status; wait(&status) > 0;)
        fail_unless(status == 0, "a rank");
}

static void fork_ranks(int size, void (*fn)(int, int, long), long argument)
{
    memset(shared, 0, sizeof *shared);
    for (int rank = 0; rank < size; rank++)
        if (fork() == 0) {
            fn(rank, size, argument);
            exit(0);
        }
    wait_all();
}

static double latest(const double *times, int n)
{
    double last = times[0];
    for (int i = 1; i < n; i++)
        last = times[i] > last ? times[i] : last;
    return last;
}

static double create_once(int size)
{
    fork_ranks(size, be_rank_create, 0);
    return latest(shared->returned, size) - latest(shared->entered, size);
}

/* A rank of `spawn`, which is a separate program. Prints the time at which it was ready. */
static int be_spawned(void)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    float one = 1;
    must(ddl_endpoint_create(NULL, &endpoint));
    must(ddl_rendezvous(endpoint, NULL, -1, 0, NULL, &comm));
    must(ddl_allreduce(comm, NULL, &one, 1, DDL_F32, DDL_SUM, NULL, NULL));
    printf("%.9f\n", now());
    fflush(stdout);
    leave(endpoint, comm);
    return 0;
}

static double spawn_once(int size)
{
    static int port = 0;
    char text[64];
    double ready = 0, t;
    int ends[2];
    fail_unless(pipe(ends) == 0, "pipe");
    port = port ? port + 1 : 20000 + (int)getpid() % 10000;
    snprintf(text, sizeof text, "tcp://127.0.0.1:%d", port);
    setenv("DDL_RENDEZVOUS", text, 1);
    snprintf(text, sizeof text, "%d", size);
    setenv("DDL_SIZE", text, 1);
    double start = now();
    for (int rank = 0; rank < size; rank++)
        if (fork() == 0) {
            snprintf(text, sizeof text, "%d", rank);
            setenv("DDL_RANK", text, 1);
            dup2(ends[1], 1);
            execl("/proc/self/exe", "resources", "spawned", NULL);
            _exit(1);
        }
    close(ends[1]);
    FILE *from = fdopen(ends[0], "r");
    while (fscanf(from, "%lf", &t) == 1)
        ready = t > ready ? t : ready;
    fclose(from);
    wait_all();
    return ready - start;
}

static double median_of(double (*once)(int), int size)
{
    double taken[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        taken[i] = once(size);
    qsort(taken, ROUNDS, sizeof *taken, ascending);
    return taken[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "spawned"))
        return be_spawned();
    long number = argc > 2 ? atol(argv[2]) : 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fail_unless(shared != MAP_FAILED, "mmap");
    int size = number <= RANKS_MAX ? (int)number : 0;
    if (!strcmp(what, "memory") && size > 0) {
        fork_ranks(size, be_rank_memory, 0);
        printf("%.0f\n", latest(shared->grown, size));
    } else if (!strcmp(what, "flat") && number > 0) {
        fork_ranks(2, be_rank_flat, number);
        printf("%.0f\n", latest(shared->grown, 2));
    } else if (!strcmp(what, "create") && size > 0) {
        printf("%.6f\n", median_of(create_once, size));
    } else if (!strcmp(what, "spawn") && size > 0) {
        printf("%.6f\n", median_of(spawn_once, size));
    } else {
        fprintf(stderr, "usage: %s memory|create|spawn RANKS, or flat COUNT\n", argv[0]);
        return 2;
    }
    return 0;
}
