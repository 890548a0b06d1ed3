/* SPDX-License-Identifier: Apache-2.0 */
/* In a sparse comm, members of one host share memory when they first use it. Here all comms count
 * as sparse (sparse_comms.c). Ranks are processes. */
#include <dirent.h>

#include "connect/wireup_state.h"
#include "processes.h"
#include "survivors.h"

/* Barriers and the creation use the pairs that are 1, 2 and 4 places apart in the ring. So rank 0
 * and the victim have not shared memory before. */
enum { SIZE = 8, VICTIM = 3, LARGE = 3 << 20, ROUNDS = 20 };

static atomic_int *arrived;
static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 40000};

/* Where this process dies, or fails, while memory is being shared. */
typedef enum moment {
    NEVER,
    BEFORE_DIALING,
    AFTER_DIALING,
    BEFORE_ANSWERING,
    AFTER_ANSWERING,
    CANNOT_DIAL
} moment;
static atomic_int dies;

static void die_at(moment at)
{
    if (atomic_load(&dies) == (int)at)
        raise(SIGKILL);
}

ddl_status __real_ddl__dial_start(const ddl__wireup *w, ddl__dial_attempt *d, int fd,
                                  const ddl__hello *hello);
ddl_status __wrap_ddl__dial_start(const ddl__wireup *w, ddl__dial_attempt *d, int fd,
                                  const ddl__hello *hello);
ddl_status __wrap_ddl__dial_start(const ddl__wireup *w, ddl__dial_attempt *d, int fd,
                                  const ddl__hello *hello)
{
    die_at(BEFORE_DIALING);
    if (atomic_load(&dies) == CANNOT_DIAL && hello->kind == DDL__CONN_FIRST_MEMORY) {
        close(fd);
        return ddl__fail(DDL_EUNREACHABLE, "no memory");
    }
    ddl_status status = __real_ddl__dial_start(w, d, fd, hello);
    die_at(AFTER_DIALING);
    return status;
}

bool __real_ddl__answer_prove(const ddl__job *job, const ddl__session *session,
                              ddl__auth_label label, ddl__hello *answer);
bool __wrap_ddl__answer_prove(const ddl__job *job, const ddl__session *session,
                              ddl__auth_label label, ddl__hello *answer);
bool __wrap_ddl__answer_prove(const ddl__job *job, const ddl__session *session,
                              ddl__auth_label label, ddl__hello *answer)
{
    if (label == DDL__AUTH_MEMBER)
        die_at(BEFORE_ANSWERING);
    return __real_ddl__answer_prove(job, session, label, answer);
}

void __real_ddl__shm_link_connect(ddl__link *link, int fd, ddl__arena *peer);
void __wrap_ddl__shm_link_connect(ddl__link *link, int fd, ddl__arena *peer);
void __wrap_ddl__shm_link_connect(ddl__link *link, int fd, ddl__arena *peer)
{
    die_at(AFTER_ANSWERING);
    __real_ddl__shm_link_connect(link, fd, peer);
}

/* The `n`th barrier of all ranks, without libddl. */
static void reach_step(int n)
{
    double end = seconds() + 40;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < n * SIZE) {
        CHECK(seconds() < end, "not all come");
        usleep(200);
    }
}

/* The unix connections of this process. */
static int count_connections(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder, "no /proc");
    for (const struct dirent *entry; (entry = readdir(folder));) {
        struct sockaddr_storage peer;
        socklen_t length = sizeof peer;
        n += !getpeername(atoi(entry->d_name), (struct sockaddr *)&peer, &length) &&
             peer.ss_family == AF_UNIX;
    }
    closedir(folder);
    return n;
}

/* Their number once none comes or goes: of two ends that dial at once, one drops its connection. */
static int settled_connections(void)
{
    int n = count_connections();
    for (int same = 0; same < 100; same++) {
        usleep(2000);
        int now = count_connections();
        same = now == n ? same : 0;
        n = now;
    }
    return n;
}

static void exchange(ddl_comm *comm, int peer)
{
    int32_t out = ddl_comm_rank(comm), in = -1;
    ddl_work *sending;
    OK(ddl_send(comm, &out, 1, DDL_I32, peer, 0, NULL, &sending));
    OK(ddl_recv(comm, &in, 1, DDL_I32, peer, 0, NULL, NULL, NULL));
    OK(ddl_work_wait(sending, -1));
    CHECK(in == peer, "%d from %d", in, peer);
}

/* Ranks that have sent each other nothing share no memory. Then all pairs open at once, both ends
 * of each. */
static int opens_what_is_used(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    bool uses = rank == 0 || rank == VICTIM;
    reach_step(1);
    int before = settled_connections();
    reach_step(2);
    if (uses)
        exchange(comm, VICTIM - rank);
    reach_step(3);
    int after = settled_connections();
    CHECK(after == before + uses, "rank %d: %d connections, before %d", rank, after, before);
    reach_step(4);
    int32_t out[SIZE], in[SIZE];
    for (int i = 0; i < SIZE; i++)
        out[i] = rank * SIZE + i;
    OK(ddl_alltoall(comm, out, in, 1, DDL_I32, NULL, NULL));
    for (int i = 0; i < SIZE; i++)
        CHECK(in[i] == i * SIZE + rank, "%d from %d", in[i], i);
    reach_step(5);
    int all = settled_connections();
    CHECK(all > after, "rank %d: %d connections, before %d", rank, all, after);
    reach_step(6);
    OK(ddl_alltoall(comm, out, in, 1, DDL_I32, NULL, NULL));
    reach_step(7);
    int same = settled_connections();
    CHECK(same == all, "rank %d: %d connections, before %d", rank, same, all);
    reach_step(8);
    ddl_comm_destroy(comm);
    return 0;
}

/* More than the ring between them holds, both ways at once, and small messages behind. */
static int begins_with_much(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), peer = VICTIM - rank;
    if (rank == 0 || rank == VICTIM) {
        unsigned char *out = malloc(LARGE), *in = calloc(1, LARGE);
        ddl_work *sending;
        CHECK(out && in, "memory");
        for (int i = 0; i < LARGE; i++)
            out[i] = (unsigned char)(i % 251 + rank);
        OK(ddl_send(comm, out, LARGE, DDL_U8, peer, 0, NULL, &sending));
        OK(ddl_recv(comm, in, LARGE, DDL_U8, peer, 0, NULL, NULL, NULL));
        OK(ddl_work_wait(sending, -1));
        for (int i = 0; i < LARGE; i++)
            CHECK(in[i] == (unsigned char)(i % 251 + peer), "byte %d", i);
        for (int i = 0; i < ROUNDS; i++)
            exchange(comm, peer);
        free(out);
        free(in);
    }
    ddl_comm_destroy(comm);
    return 0;
}

/* What was sent arrives although the sender leaves at once. */
static int sends_and_leaves(ddl_comm *comm)
{
    int32_t word = 41;
    if (ddl_comm_rank(comm) == 0) {
        OK(ddl_send(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL));
    } else if (ddl_comm_rank(comm) == VICTIM) {
        usleep(300000);
        OK(ddl_recv(comm, &word, 1, DDL_I32, 0, 0, NULL, NULL, NULL));
        CHECK(word == 41, "%d", word);
    }
    ddl_comm_destroy(comm);
    return 0;
}

/* The victim dies while it opens its link with rank 0, or rank 0 with it. All others learn who has
 * died, and go on. */
static int dies_opening(ddl_comm *comm, moment at, bool victim_dials)
{
    int rank = ddl_comm_rank(comm);
    int32_t word = 0;
    ddl_comm *next;
    reach_step(1);
    if (rank == VICTIM)
        atomic_store(&dies, (int)at);
    reach_step(2);
    if (rank == VICTIM && victim_dials)
        ddl_send(comm, &word, 1, DDL_I32, 0, 0, NULL, NULL);
    if (rank == VICTIM)
        pause();
    ddl_status status = DDL_OK;
    if (rank == 0 && !victim_dials)
        status = ddl_send(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL);
    if (rank == 0 && status == DDL_OK)
        status = ddl_recv(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL, NULL);
    if (rank != 0)
        status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EPEER && strstr(ddl_last_error(), "rank 3 on "), "rank %d: %d %s", rank,
          status, ddl_last_error());
    OK(ddl_comm_shrink(comm, &config, &next));
    OK(ddl_barrier(next, NULL, NULL));
    ddl_comm_destroy(comm);
    ddl_comm_destroy(next);
    return 0;
}

static int dies_before_dialing(ddl_comm *comm)
{
    return dies_opening(comm, BEFORE_DIALING, true);
}

static int dies_after_dialing(ddl_comm *comm)
{
    return dies_opening(comm, AFTER_DIALING, true);
}

static int dies_before_answering(ddl_comm *comm)
{
    return dies_opening(comm, BEFORE_ANSWERING, false);
}

static int dies_after_answering(ddl_comm *comm)
{
    return dies_opening(comm, AFTER_ANSWERING, false);
}

/* A member is gone when it is first received from. */
static int absent(ddl_comm *comm, int signal, const char *said)
{
    int rank = ddl_comm_rank(comm);
    int32_t word = 0;
    reach_step(1);
    if (rank == VICTIM && signal)
        raise(signal);
    if (rank == VICTIM) {
        ddl_comm_destroy(comm);
        return 0;
    }
    ddl_status status = ddl_recv(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL, NULL);
    CHECK(status == DDL_EPEER && strstr(ddl_last_error(), "rank 3 on ") &&
              strstr(ddl_last_error(), said),
          "rank %d: %d %s", rank, status, ddl_last_error());
    ddl_comm_destroy(comm);
    return 0;
}

static int is_killed(ddl_comm *comm)
{
    return absent(comm, SIGKILL, "");
}

static int leaves(ddl_comm *comm)
{
    return absent(comm, 0, "left the comm");
}

/* Memory cannot be shared with a member that lives. */
static int cannot_share(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int32_t word = 0;
    reach_step(1);
    if (rank == 0)
        atomic_store(&dies, CANNOT_DIAL);
    ddl_status status =
        rank == 0 ? ddl_send(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL) : DDL_OK;
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EPEER && strstr(ddl_last_error(), "rank 3 on ") &&
              strstr(ddl_last_error(), "cannot be reached by rank 0 on "),
          "rank %d: %d %s", rank, status, ddl_last_error());
    ddl_comm_destroy(comm);
    return 0;
}

static const process_test tests[] = {
    {"opens what is used", opens_what_is_used, 0, true},
    {"begins with much", begins_with_much, 0, true},
    {"sends and leaves", sends_and_leaves, 0, true},
    {"dies before dialing", dies_before_dialing, 1 << VICTIM, true},
    {"dies after dialing", dies_after_dialing, 1 << VICTIM, true},
    {"dies before answering", dies_before_answering, 1 << VICTIM, true},
    {"dies after answering", dies_after_answering, 1 << VICTIM, true},
    {"is killed", is_killed, 1 << VICTIM, true},
    {"leaves", leaves, 0, true},
    {"cannot share", cannot_share, 0, true},
};

int main(int argc, char **argv)
{
    setenv("DDL_LOG", "off", 0); /* the comms die on purpose */
    arrived =
        mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(arrived != MAP_FAILED, "no shared memory");
    for (size_t t = 0; t < sizeof tests / sizeof *tests; t++)
        if (is_asked_for(&tests[t], argc, argv)) {
            atomic_store(arrived, 0);
            run_process_test(&tests[t], SIZE, DDL_LINK_SHM);
        }
    return 0;
}
