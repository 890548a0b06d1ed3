/* SPDX-License-Identifier: Apache-2.0 */
/* Comms that are created repeatedly, with different settings on each side, while unauthenticated
 * clients connect, or while a member dies or fails. */
#include "entries.h"
#include "processes.h"
#include "ranks.h"

enum { CYCLES = 60 };

typedef struct side {
    ddl_endpoint *endpoint;
    const void *addresses[2];
    size_t lengths[2];
    int rank, cycles;
    ddl_comm_config config;
    ddl_status last;
    pthread_t thread;
} side;

/* Create, use and destroy one comm repeatedly, with the same explicit tag. */
static void *cycle(void *argument)
{
    side *s = argument;
    for (int i = 0; i < s->cycles; i++) {
        ddl_comm *comm;
        int32_t one = 1;
        s->last =
            ddl_comm_create(s->endpoint, s->addresses, s->lengths, s->rank, 2, &s->config, &comm);
        if (s->last != DDL_OK)
            return NULL;
        OK(ddl_allreduce(comm, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
        CHECK(one == 2, "%d", one);
        CHECK(ddl_comm_local_size(comm) == (s->config.links == DDL_LINK_TCP ? 1 : 2),
              "cycle %d: %d ranks share memory", i, ddl_comm_local_size(comm));
        ddl_comm_destroy(comm);
    }
    return NULL;
}

static void open_sides(side sides[2])
{
    static unsigned char addresses[2][DDL_ADDRESS_MAX];
    memset(sides, 0, 2 * sizeof *sides);
    for (int r = 0; r < 2; r++) {
        OK(ddl_endpoint_create(NULL, &sides[r].endpoint));
        OK(ddl_endpoint_address(sides[r].endpoint, addresses[r], DDL_ADDRESS_MAX,
                                &sides[r].lengths[r]));
        sides[!r].lengths[r] = sides[r].lengths[r];
        sides[0].addresses[r] = sides[1].addresses[r] = addresses[r];
        sides[r].rank = r;
        sides[r].cycles = 1;
        sides[r].config =
            (ddl_comm_config){.struct_size = sizeof(ddl_comm_config), .timeout_ms = 20000};
    }
}

static void run_sides(side sides[2])
{
    for (int r = 0; r < 2; r++)
        CHECK(!pthread_create(&sides[r].thread, NULL, cycle, &sides[r]), "thread");
    for (int r = 0; r < 2; r++)
        pthread_join(sides[r].thread, NULL);
}

static void close_sides(side sides[2])
{
    for (int r = 0; r < 2; r++)
        ddl_endpoint_destroy(sides[r].endpoint);
}

static void again(void)
{
    static const uint32_t kinds[] = {DDL_LINK_INPROC, DDL_LINK_SHM, DDL_LINK_TCP, 0};
    for (int k = 0; k < 4; k++) {
        side sides[2];
        open_sides(sides);
        for (int r = 0; r < 2; r++) {
            sides[r].config.links = kinds[k];
            sides[r].config.tag = 7;
            sides[r].cycles = CYCLES;
        }
        run_sides(sides);
        CHECK(sides[0].last == DDL_OK && sides[1].last == DDL_OK, "kind %d: %d, %d", k,
              sides[0].last, sides[1].last);
        close_sides(sides);
    }
}

/* One side allows only TCP, the other all kinds of links: they use TCP. */
static void different_kinds(ddl_comm *comm, void *argument)
{
    OK(ddl_barrier(comm, NULL, NULL));
}

/* A creation that the other side abandons leaks nothing, and the next one succeeds. */
static void failures_leave_nothing(void)
{
    side sides[2];
    open_sides(sides);
    const char *files = "/proc/self/fd";
    int before = count_entries(files);
    for (int i = 0; i < 10; i++) {
        sides[1].config.timeout_ms = 30;
        cycle(&sides[1]);
        CHECK(sides[1].last == DDL_ETIMEDOUT, "%d", sides[1].last);
    }
    for (int i = 0; i < 2000 && count_entries(files) > before; i++)
        usleep(10000);
    CHECK(count_entries(files) <= before, "%d descriptors, %d before", count_entries(files),
          before);
    sides[1].config.timeout_ms = 20000;
    run_sides(sides);
    CHECK(sides[0].last == DDL_OK && sides[1].last == DDL_OK, "%d, %d", sides[0].last,
          sides[1].last);
    close_sides(sides);
}

/* Rank 0 dies and rank 2 never connects: rank 1 fails at once, and its error names rank 0. */
static void member_dies(void)
{
    unsigned char addresses[3][DDL_ADDRESS_MAX];
    size_t lengths[3];
    const void *list[3] = {addresses[0], addresses[1], addresses[2]};
    int pipes[3][2], status;
    pid_t pids[3];
    for (int r = 0; r < 3; r++)
        CHECK(!pipe(pipes[r]), "pipe");
    fflush(NULL);
    int to_all[3][2];
    for (int r = 0; r < 3; r++)
        CHECK(!pipe(to_all[r]), "pipe");
    for (int r = 0; r < 3; r++) {
        if ((pids[r] = fork()))
            continue;
        ddl_endpoint *endpoint;
        ddl_comm *comm;
        size_t n;
        OK(ddl_endpoint_create(NULL, &endpoint));
        OK(ddl_endpoint_address(endpoint, addresses[r], DDL_ADDRESS_MAX, &n));
        CHECK(write(pipes[r][1], &n, sizeof n) == sizeof n &&
                  write(pipes[r][1], addresses[r], DDL_ADDRESS_MAX) == DDL_ADDRESS_MAX,
              "write");
        CHECK(read(to_all[r][0], lengths, sizeof lengths) == sizeof lengths &&
                  read(to_all[r][0], addresses, sizeof addresses) == sizeof addresses,
              "read");
        if (r == 2)
            pause();
        ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};
        double start = seconds();
        ddl_status got = ddl_comm_create(endpoint, list, lengths, r, 3, &config, &comm);
        CHECK(got == DDL_EPEER && strstr(ddl_last_error(), "rank 0 on ") && seconds() - start < 15,
              "%d \"%s\" after %g s", got, ddl_last_error(), seconds() - start);
        _exit(0);
    }
    for (int r = 0; r < 3; r++)
        CHECK(read(pipes[r][0], &lengths[r], sizeof *lengths) == sizeof *lengths &&
                  read(pipes[r][0], addresses[r], DDL_ADDRESS_MAX) == DDL_ADDRESS_MAX,
              "read");
    for (int r = 0; r < 3; r++)
        CHECK(write(to_all[r][1], lengths, sizeof lengths) == sizeof lengths &&
                  write(to_all[r][1], addresses, sizeof addresses) == sizeof addresses,
              "write");
    usleep(1500000);
    kill(pids[0], SIGKILL);
    CHECK(waitpid(pids[1], &status, 0) == pids[1] && status == 0, "rank 1 ended with %x", status);
    kill(pids[2], SIGKILL);
    waitpid(pids[0], NULL, 0);
    waitpid(pids[2], NULL, 0);
}

/* Processes that know each other's addresses; some of them cannot create the comm. */
typedef struct failing {
    int rank, late; /* rank: the rank that fails; late: the rank that starts after that; -1: none */
    bool memory; /* it fails because it has no memory for its links, not because of its settings */
    uint32_t links;
} failing;

typedef struct board {
    atomic_int here, failed;
    unsigned char addresses[4][DDL_ADDRESS_MAX];
    size_t lengths[4];
} board;

static board *open_board(void)
{
    board *b = map_shared(sizeof *b);
    fflush(NULL);
    return b;
}

static void close_board(board *b, const pid_t *pids, int n)
{
    await_exits(pids, n);
    munmap(b, sizeof *b);
}

/* Make the creation fail: for lack of shared memory, if nothing else is allowed, when the rank
 * already has a slot at its endpoint; or by its settings, before that. */
static void restrict_memory(bool memory, bool restricted)
{
    struct rlimit files = {restricted ? 4096 : RLIM_INFINITY, RLIM_INFINITY};
    if (memory)
        CHECK(!setrlimit(RLIMIT_FSIZE, &files), "setrlimit");
    else if (restricted)
        setenv("DDL_HEARTBEAT_MS", "often", 1);
    else
        unsetenv("DDL_HEARTBEAT_MS");
}

/* Check that the creation fails soon and for that reason, and that the next one succeeds. */
static int create_with_failing(board *b, const failing *f, int rank)
{
    enum { SOON_S = 10 };
    const void *list[3] = {b->addresses[0], b->addresses[1], b->addresses[2]};
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    setenv("DDL_LOG", "off", 0);
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_endpoint_address(endpoint, b->addresses[rank], DDL_ADDRESS_MAX, &b->lengths[rank]));
    await_all(&b->here, 3);
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000, .links = f->links};
    if (rank == f->rank)
        restrict_memory(f->memory, true);
    if (rank == f->rank && f->late < 0)
        usleep(300000); /* the others are already waiting */
    while (rank == f->late && !atomic_load(&b->failed))
        usleep(1000);
    double start = seconds();
    ddl_status got = ddl_comm_create(endpoint, list, b->lengths, rank, 3, &config, &comm);
    atomic_fetch_add(&b->failed, rank == f->rank);
    char words[40];
    snprintf(words, sizeof words, "rank %d on ", f->rank);
    const char *why = f->memory ? "shared memory" : "DDL_HEARTBEAT_MS", *text = ddl_last_error();
    CHECK(got == (f->memory ? DDL_ESYSTEM : DDL_EINVAL) && strstr(text, why) &&
              (rank == f->rank || strstr(text, words)),
          "rank %d, with rank %d failing: %d \"%s\"", rank, f->rank, got, text);
    CHECK(seconds() - start < SOON_S, "after %g s", seconds() - start);
    await_all(&b->here, 6);
    if (rank == f->rank)
        restrict_memory(f->memory, false);
    OK(ddl_comm_create(endpoint, list, b->lengths, rank, 3, &config, &comm));
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return 0;
}

static void member_fails(void)
{
    static const failing cases[] = {
        {0, -1, false, 0},           {1, -1, false, 0}, {2, -1, false, DDL_LINK_TCP},
        {2, 0, false, DDL_LINK_TCP}, {0, 2, false, 0},  {1, 0, true, DDL_LINK_SHM},
        {2, -1, true, DDL_LINK_SHM},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pid_t pids[3];
        board *b = open_board();
        for (int rank = 0; rank < 3; rank++)
            if (!(pids[rank] = fork()))
                _exit(create_with_failing(b, &cases[i], rank));
        close_board(b, pids, 3);
    }
}

/* ---- a member that fails sends notices to the others' endpoints, one of which is stopped ---- */

enum { STOPPED = 2 };

static ddl_status create_in_time(ddl_endpoint *endpoint, const board *b, int rank, uint32_t links,
                                 ddl_comm **comm)
{
    const void *list[] = {b->addresses[0], b->addresses[1], b->addresses[2], b->addresses[3]};
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000, .links = links};
    return ddl_comm_create(endpoint, list, b->lengths, rank, 4, &config, comm);
}

/* Rank 1 fails at first and notifies rank 0. Rank 0 notifies all ranks by its links, long before it
 * notifies rank 3, which then already knows and is at its next attempt. */
static int create_after_failing(board *b, int rank, bool memory)
{
    /* Only one address, so that trying all addresses of the stopped rank leaves time for the
     * others. */
    ddl_endpoint_config config = {.struct_size = sizeof config, .host = "127.0.0.1"};
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    uint32_t links = memory ? DDL_LINK_SHM : 0;
    setenv("DDL_LOG", "off", 0);
    OK(ddl_endpoint_create(&config, &endpoint));
    OK(ddl_endpoint_address(endpoint, b->addresses[rank], DDL_ADDRESS_MAX, &b->lengths[rank]));
    await_all(&b->here, 4);
    if (rank == STOPPED) {
        raise(SIGSTOP);
    } else {
        if (rank == 1) {
            usleep(300000); /* the others are already waiting */
            restrict_memory(memory, true);
        }
        ddl_status got = create_in_time(endpoint, b, rank, links, &comm);
        const char *why = memory ? "shared memory" : "DDL_HEARTBEAT_MS";
        CHECK(got == (memory ? DDL_ESYSTEM : DDL_EINVAL) && strstr(ddl_last_error(), why),
              "rank %d: %d \"%s\"", rank, got, ddl_last_error());
        if (rank == 1)
            restrict_memory(memory, false);
        atomic_fetch_add(&b->failed, 1);
    }
    OK(create_in_time(endpoint, b, rank, links, &comm));
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return 0;
}

static void late_notice_fails_no_other_attempt(bool memory)
{
    int status;
    pid_t pids[4];
    board *b = open_board();
    for (int rank = 0; rank < 4; rank++)
        if (!(pids[rank] = fork()))
            _exit(create_after_failing(b, rank, memory));
    CHECK(waitpid(pids[STOPPED], &status, WUNTRACED) == pids[STOPPED] && WIFSTOPPED(status), "%x",
          status);
    for (int i = 0; i < 10000 && atomic_load(&b->failed) < 3; i++)
        usleep(1000);
    usleep(100000); /* the others are creating the comm again */
    kill(pids[STOPPED], SIGCONT);
    close_board(b, pids, 4);
}

/* Ranks 1 and 2 fail at first. Each gets the other's notice, perhaps only after its own failure, in
 * its next attempt: ranks that keep trying soon succeed. */
static int create_among_failing(board *b, int rank)
{
    const void *list[3] = {b->addresses[0], b->addresses[1], b->addresses[2]};
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    setenv("DDL_LOG", "off", 0);
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_endpoint_address(endpoint, b->addresses[rank], DDL_ADDRESS_MAX, &b->lengths[rank]));
    await_all(&b->here, 3);
    if (rank)
        restrict_memory(false, true);
    REFUSED(ddl_comm_create(endpoint, list, b->lengths, rank, 3, &config, &comm), DDL_EINVAL,
            "DDL_HEARTBEAT_MS");
    await_all(&b->here, 6);
    if (rank)
        restrict_memory(false, false);
    double start = seconds();
    int tries = 1;
    while (tries < 6 && ddl_comm_create(endpoint, list, b->lengths, rank, 3, &config, &comm))
        tries++;
    CHECK(tries < 6 && seconds() - start < 10, "%d tries in %g s: %s", tries, seconds() - start,
          ddl_last_error());
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return 0;
}

static void several_fail(void)
{
    pid_t pids[3];
    board *b = open_board();
    for (int rank = 0; rank < 3; rank++)
        if (!(pids[rank] = fork()))
            _exit(create_among_failing(b, rank));
    close_board(b, pids, 3);
}

static char url[64];

static void *join(void *argument)
{
    int rank = *(int *)argument;
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 10000};
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_rendezvous(endpoint, url, rank, 3, &config, &comm));
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return NULL;
}

static void leave_early(int rank)
{
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 1000};
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    OK(ddl_endpoint_create(NULL, &endpoint));
    REFUSED(ddl_rendezvous(endpoint, url, rank, 3, &config, &comm), DDL_ETIMEDOUT,
            "not all ranks joined in time");
    ddl_endpoint_destroy(endpoint);
}

/* A rank that left the rendezvous before all ranks had joined may join again, and does not count
 * meanwhile, even if its leaving is noticed only after all have joined. */
static void left_rank_may_rejoin(bool before_all)
{
    int numbers[3] = {0, 1, 2};
    pthread_t threads[3];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    CHECK(!pthread_create(&threads[0], NULL, join, &numbers[0]), "thread");
    leave_early(1);
    CHECK(!pthread_create(&threads[2 - before_all], NULL, join, &numbers[2 - before_all]),
          "thread");
    usleep(200000);
    CHECK(!pthread_create(&threads[1 + before_all], NULL, join, &numbers[1 + before_all]),
          "thread");
    for (int r = 0; r < 3; r++)
        pthread_join(threads[r], NULL);
}

/* More silent clients connect than there are slots, and they connect before the ranks. */
static void silent_clients_delay_no_rank(void)
{
    enum { SILENT = 80 };
    int port = free_port(), fds[SILENT], numbers[3] = {0, 1, 2};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    pthread_t threads[3];
    double start = seconds();
    CHECK(!pthread_create(&threads[0], NULL, join, &numbers[0]), "thread");
    for (int i = 0; i < SILENT; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        while (connect(fds[i], (struct sockaddr *)&to, sizeof to))
            usleep(1000);
    }
    for (int r = 1; r < 3; r++)
        CHECK(!pthread_create(&threads[r], NULL, join, &numbers[r]), "thread");
    for (int r = 0; r < 3; r++)
        pthread_join(threads[r], NULL);
    CHECK(seconds() - start < 15, "%g s", seconds() - start);
    for (int i = 0; i < SILENT; i++)
        close(fds[i]);
}

static void *wait_for_missing(void *argument)
{
    int rank = *(int *)argument;
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = rank ? 20000 : 2000};
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    OK(ddl_endpoint_create(NULL, &endpoint));
    REFUSED(ddl_rendezvous(endpoint, url, rank, 4, &config, &comm), DDL_ETIMEDOUT,
            "have ranks 0-1 of 4, waiting for 2-3");
    ddl_endpoint_destroy(endpoint);
    return NULL;
}

/* Missing ranks are named in the error of rank 0, and in the errors of the ranks that joined. */
static void missing_ranks_are_named(void)
{
    int numbers[2] = {0, 1};
    pthread_t threads[2];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    for (int r = 0; r < 2; r++)
        CHECK(!pthread_create(&threads[r], NULL, wait_for_missing, &numbers[r]), "thread");
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
}

int main(void)
{
    member_dies(); /* forks, so before there are threads */
    member_fails();
    late_notice_fails_no_other_attempt(false);
    late_notice_fails_no_other_attempt(true);
    several_fail();
    again();
    run_ranks(3, LINKS_MIXED, different_kinds, NULL);
    run_ranks(3, LINKS_REVERSED, different_kinds, NULL);
    failures_leave_nothing();
    silent_clients_delay_no_rank();
    missing_ranks_are_named();
    left_rank_may_rejoin(false);
    left_rank_may_rejoin(true);
}
