/* SPDX-License-Identifier: Apache-2.0 */
/* In a sparse comm, members of one host share memory when they first use it. Here all comms count
 * as sparse (sparse_comms.c). Ranks are processes. */
#include <dirent.h>

/* Barriers and the creation use the pairs that are 1, 2 and 4 places apart in the ring. So rank 0
 * and the victim have not shared memory before. */
enum { SIZE = 8, VICTIM = 3, LARGE = 3 << 20, ROUNDS = 20 };
#include "opening_links.h"

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

void __real_ddl__shm_link_connect(ddl__link *link, int fd, ddl__arena *peer);
void __wrap_ddl__shm_link_connect(ddl__link *link, int fd, ddl__arena *peer);
void __wrap_ddl__shm_link_connect(ddl__link *link, int fd, ddl__arena *peer)
{
    die_at(AFTER_ANSWERING);
    __real_ddl__shm_link_connect(link, fd, peer);
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

/* Ranks that have sent each other nothing share no memory. Then all pairs open at once, both ends
 * of each. */
static int opens_what_is_used(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    bool uses = rank == 0 || rank == VICTIM;
    reach_step(1, SIZE);
    int before = settled_connections();
    reach_step(2, SIZE);
    if (uses)
        exchange(comm, VICTIM - rank);
    reach_step(3, SIZE);
    int after = settled_connections();
    CHECK(after == before + uses, "rank %d: %d connections, before %d", rank, after, before);
    reach_step(4, SIZE);
    int32_t out[SIZE], in[SIZE];
    for (int i = 0; i < SIZE; i++)
        out[i] = rank * SIZE + i;
    OK(ddl_alltoall(comm, out, in, 1, DDL_I32, NULL, NULL));
    for (int i = 0; i < SIZE; i++)
        CHECK(in[i] == i * SIZE + rank, "%d from %d", in[i], i);
    reach_step(5, SIZE);
    int all = settled_connections();
    CHECK(all > after, "rank %d: %d connections, before %d", rank, all, after);
    reach_step(6, SIZE);
    OK(ddl_alltoall(comm, out, in, 1, DDL_I32, NULL, NULL));
    reach_step(7, SIZE);
    int same = settled_connections();
    CHECK(same == all, "rank %d: %d connections, before %d", rank, same, all);
    reach_step(8, SIZE);
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

/* Memory cannot be shared with a member that lives. */
static int cannot_share(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int32_t word = 0;
    reach_step(1, SIZE);
    if (rank == 0)
        atomic_store(&dies, CANNOT_DIAL);
    ddl_status status =
        rank == 0 ? ddl_send(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL) : DDL_OK;
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EPEER && strstr(ddl_last_error(), victim_name()) &&
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
