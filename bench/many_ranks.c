/* SPDX-License-Identifier: Apache-2.0 */
/* many_ranks.c - what a comm of many ranks costs, and what happens when one of them is killed.
 *
 *   cc -O2 bench/many_ranks.c -Ilibddl/include -Lbuild -lddl -o many_ranks
 *   ./many_ranks RANKS shm|tcp [ROUNDS [alive]]
 *
 * All ranks are processes of this host that meet by rendezvous. Prints three columns: the median of
 * the rounds, the worst round, and the median of the means. A round's figure is that of its worst
 * rank, a mean is taken over its ranks. With `alive` no rank is killed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "bench.h"

enum {
    RANKS_MAX = 1024,
    ROUNDS_MAX = 20,
    FIRST_PORT = 21000,
    SETTLE_S = 2,
    IDLE_S = 5,
    LIMIT_S = 300
};

typedef enum figure {
    CREATE,
    CPU,
    DESCRIPTORS,
    PSS,
    IDLE,
    KNOW,
    SHRINK,
    GO_ON,
    FIGURES,
    FIGURES_ALIVE = KNOW
} figure;

static const struct {
    const char *name;
    double scale;
} shown[FIGURES] = {
    {"creation, from the last entry to the last return [s]", 1},
    {"processor time of creation [ms]", 1e3},
    {"descriptors before the first operation", 1},
    {"memory, PSS [MiB]", 1.0 / (1 << 20)},
    {"an idle rank [% of a core]", 100},
    {"from a kill until all know [s]", 1},
    {"shrink, from the first entry to the last return [s]", 1},
    {"barrier of the survivors [s]", 1},
};

/* Shared by all ranks. */
typedef struct board {
    pthread_barrier_t together;
    double entered[RANKS_MAX], returned[RANKS_MAX], knew[RANKS_MAX];
    double shrinks[RANKS_MAX], shrunk[RANKS_MAX], killed;
    double ranks[RANKS_MAX][FIGURES];
} board;

static board *shared;
static int alive;

/* A barrier of all ranks, without libddl. They sleep: the processor is that of the slower ones. */
static void barrier(void)
{
    pthread_barrier_wait(&shared->together);
}

static double processor_time(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int count_descriptors(void)
{
    int n = -3; /* ".", "..", and the folder's own */
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        n++;
    if (folder)
        closedir(folder);
    return n;
}

static void be_rank(int rank, int size, uint32_t links, const char *url)
{
    double *own = shared->ranks[rank], begun, used;
    int descriptors = count_descriptors(), victim = size / 3;
    const ddl_comm_config config = {
        .struct_size = sizeof config, .links = links, .timeout_ms = 250000};
    ddl_endpoint *endpoint;
    ddl_comm *comm, *next;
    must(ddl_endpoint_create(NULL, &endpoint));
    barrier();
    used = processor_time();
    shared->entered[rank] = now();
    must(ddl_rendezvous(endpoint, url, rank, size, &config, &comm));
    shared->returned[rank] = now();
    own[CPU] = processor_time() - used;
    barrier(); /* PSS divides shared pages by their users: all must be there */
    own[DESCRIPTORS] = count_descriptors() - descriptors;
    own[PSS] = pss();
    sleep(SETTLE_S);
    begun = now();
    used = processor_time();
    sleep(IDLE_S);
    own[IDLE] = (processor_time() - used) / (now() - begun);
    barrier();
    if (alive) {
        ddl_comm_destroy(comm);
        ddl_endpoint_destroy(endpoint);
        return;
    }
    if (rank == victim) {
        usleep(100000);
        shared->killed = now();
        kill(getpid(), SIGKILL);
    }
    while (ddl_comm_status(comm) == DDL_OK)
        usleep(1000);
    shared->knew[rank] = now();
    shared->shrinks[rank] = now();
    must(ddl_comm_shrink(comm, &config, &next));
    shared->shrunk[rank] = now();
    begun = now();
    must(ddl_barrier(next, NULL, NULL));
    own[GO_ON] = now() - begun;
    ddl_comm_destroy(comm);
    ddl_comm_destroy(next);
    ddl_endpoint_destroy(endpoint);
}

static double most(const double *values, int n, int without)
{
    double found = 0;
    for (int i = 0; i < n; i++)
        found = i != without && values[i] > found ? values[i] : found;
    return found;
}

static double least(const double *values, int n, int without)
{
    double found = 1e300;
    for (int i = 0; i < n; i++)
        found = i != without && values[i] < found ? values[i] : found;
    return found;
}

static void run_round(int round, int size, uint32_t links, double figures[FIGURES],
                      double means[FIGURES])
{
    char url[64];
    int status, bad = 0, victim = size / 3;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", FIRST_PORT + (getpid() + round) % 8000);
    memset(shared, 0, sizeof *shared);
    pthread_barrierattr_t among_processes;
    pthread_barrierattr_init(&among_processes);
    pthread_barrierattr_setpshared(&among_processes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->together, &among_processes, (unsigned)size);
    pthread_barrierattr_destroy(&among_processes);
    fflush(NULL);
    for (int rank = 0; rank < size; rank++)
        if (!fork()) {
            alarm(LIMIT_S); /* a rank that fails leaves the others at a barrier */
            be_rank(rank, size, links, url);
            _exit(0);
        }
    for (int rank = 0; rank < size; rank++)
        bad += wait(&status) > 0 && status != 0;
    if (bad != !alive)
        fprintf(stderr, "%d ranks failed, besides those killed\n", bad - !alive);
    for (int f = 0; f < FIGURES; f++)
        for (int rank = 0; rank < size; rank++) {
            double one = shared->ranks[rank][f];
            figures[f] = one > figures[f] ? one : figures[f];
            means[f] += one / size;
        }
    figures[CREATE] = most(shared->returned, size, -1) - most(shared->entered, size, -1);
    figures[KNOW] = most(shared->knew, size, victim) - shared->killed;
    figures[SHRINK] = most(shared->shrunk, size, victim) - least(shared->shrinks, size, victim);
    means[CREATE] = figures[CREATE]; /* these are of all ranks together */
    means[KNOW] = figures[KNOW];
    means[SHRINK] = figures[SHRINK];
}

int main(int argc, char **argv)
{
    static double figures[FIGURES][ROUNDS_MAX], means[FIGURES][ROUNDS_MAX];
    int size = argc > 2 ? atoi(argv[1]) : 0, rounds = argc > 3 ? atoi(argv[3]) : 5;
    if (size < 3 || size > RANKS_MAX || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: many_ranks RANKS shm|tcp [ROUNDS [alive]]\n");
        return 2;
    }
    alive = argc > 4 && !strcmp(argv[4], "alive");
    uint32_t links = strcmp(argv[2], "tcp") ? DDL_LINK_SHM : DDL_LINK_TCP;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    for (int round = 0; round < rounds; round++) {
        double worst[FIGURES] = {0}, mean[FIGURES] = {0};
        run_round(round, size, links, worst, mean);
        for (int f = 0; f < FIGURES; f++) {
            figures[f][round] = worst[f] * shown[f].scale;
            means[f][round] = mean[f] * shown[f].scale;
        }
    }
    for (int f = 0; f < (alive ? FIGURES_ALIVE : FIGURES); f++) {
        qsort(figures[f], (size_t)rounds, sizeof **figures, ascending);
        qsort(means[f], (size_t)rounds, sizeof **means, ascending);
        printf("%-56s %10.3f %10.3f %10.3f\n", shown[f].name, figures[f][rounds / 2],
               figures[f][rounds - 1], means[f][rounds / 2]);
    }
    return 0;
}
