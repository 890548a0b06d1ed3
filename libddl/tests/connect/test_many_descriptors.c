/* SPDX-License-Identifier: Apache-2.0 */
/* The soft limit of descriptors is raised only if a comm needs it. If the hard limit is too low,
 * the creation fails at once, with all numbers in the message. */
#include "processes.h"

enum { RANKS = 3, SOFT = 64, LIMIT_MS = 20000, ENOUGH = 4096 };

typedef struct board {
    unsigned char addresses[RANKS][DDL_ADDRESS_MAX];
    size_t lengths[RANKS];
    atomic_int ready;
} board;

static rlim_t soft_limit(void)
{
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
    return limit.rlim_cur;
}

/* Use up all descriptors except `left`. Only these are closed again, because the endpoint's thread
 * opens some meanwhile. */
static void use_up(unsigned left)
{
    int own[SOFT], n = 0;
    for (int fd; n < SOFT && (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;)
        own[n++] = fd;
    while (left-- && n)
        close(own[--n]);
}

static int member(board *b, int rank, uint32_t links, rlim_t hard, bool scarce)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    const void *addresses[RANKS];
    struct rlimit limit = {scarce ? SOFT : ENOUGH, hard};
    ddl_comm_config config = {.struct_size = sizeof config, .links = links, .timeout_ms = LIMIT_MS};
    for (int i = 0; i < RANKS; i++)
        addresses[i] = b->addresses[i];
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_endpoint_address(endpoint, b->addresses[rank], DDL_ADDRESS_MAX, &b->lengths[rank]));
    atomic_fetch_add(&b->ready, 1);
    for (double end = seconds() + 30; atomic_load(&b->ready) < RANKS; usleep(200))
        CHECK(seconds() < end, "not all come");
    if (scarce)
        use_up(hard == SOFT ? 3 : 10); /* peers may connect before us, and use up to four each */
    double start = seconds();
    ddl_status status =
        ddl_comm_create(endpoint, addresses, b->lengths, rank, RANKS, &config, &comm);
    if (hard < ENOUGH) {
        bool own = status == DDL_ESYSTEM && strstr(ddl_last_error(), "ulimit -Hn");
        bool told =
            strstr(ddl_last_error(), "could not create the comm: a comm of 3 members needs");
        CHECK(own || told, "rank %d: %d %s", rank, status, ddl_last_error());
        CHECK(seconds() - start < 0.5e-3 * LIMIT_MS, "after %g s", seconds() - start);
        return 0;
    }
    CHECK(status == DDL_OK, "rank %d: %s", rank, ddl_last_error());
    CHECK(scarce ? soft_limit() > SOFT && soft_limit() < 4 * SOFT : soft_limit() == ENOUGH,
          "the limit is %llu", (unsigned long long)soft_limit());
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
    return 0;
}

static void test(uint32_t links, rlim_t hard, bool scarce)
{
    pid_t pids[RANKS];
    board *b = map_shared(sizeof *b);
    fflush(NULL);
    for (int rank = 0; rank < RANKS; rank++)
        if (!(pids[rank] = fork()))
            _exit(member(b, rank, links, hard, scarce));
    await_exits(pids, RANKS);
    munmap(b, sizeof *b);
}

int main(void)
{
    struct rlimit limit;
    setenv("DDL_LOG", "off", 0);
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
    if (limit.rlim_max < ENOUGH)
        return 77;
    for (uint32_t links = DDL_LINK_SHM; links <= DDL_LINK_TCP; links *= 2) {
        test(links, ENOUGH, true);
        test(links, ENOUGH, false);
    }
    test(DDL_LINK_TCP, SOFT, true);
}
