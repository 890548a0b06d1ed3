/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of a large job are distributed along a tree. Here small jobs use the tree, too, and
 * a rank dies or fails at one point of it. Ranks are processes that only run the rendezvous. */
#include "base/clock.h"
#include "base/test_points.h"
#include "connect/rendezvous/rendezvous.h"
#include "processes.h"

enum { SIZE = 11, MANY = 70 };

/* The fault of a rank. */
typedef enum flaw {
    NONE,
    DIES_BEFORE_ASKING,  /* it knows which rank to ask */
    DIES_BEFORE_GIVING,  /* it has the list, and others wait for it */
    FAILS_BEFORE_ASKING, /* its process continues */
    ASKS_LATE
} flaw;

typedef struct board {
    ddl_status status[MANY];
    char text[MANY][DDL__MESSAGE_MAX];
    double took[MANY];
    uint64_t list[MANY];
    atomic_int lists_sent, done;
    int giver_of[MANY];
} board;

static board *b;
static char url[64];
static int self, wrong_rank;
static flaw wrong;
static atomic_bool small_is_large;
static int limit_ms = 20000, warn_ms;
static FILE *said; /* all ranks' stderr, if warn_ms is not 0 */

WRAP(int, ddl__rendezvous_giver, (int rank, int size))
{
    return small_is_large ? rank & (rank - 1) : __real_ddl__rendezvous_giver(rank, size);
}

static ddl_status disturb(ddl__test_point point, const void *subject)
{
    ddl__rendezvous_record *giver = (void *)(uintptr_t)subject; /* of this call alone */
    bool is_wrong = self == wrong_rank;
    if (point == DDL__AT_GIVING) {
        if (is_wrong && wrong == DIES_BEFORE_GIVING)
            raise(SIGKILL);
        atomic_fetch_add(&b->lists_sent, 1);
    }
    if (point != DDL__AT_ASKING)
        return DDL_OK;
    b->giver_of[self] = giver->rank;
    if (is_wrong && wrong == DIES_BEFORE_ASKING)
        raise(SIGKILL);
    if (is_wrong && wrong == ASKS_LATE)
        usleep(1200000); /* the rank that gives it the list checks twice whether it is there */
    if (is_wrong && wrong == FAILS_BEFORE_ASKING) {
        ddl__address address = {.endpoint = {{1, 2}}, .host = "nowhere"};
        giver->length = (uint16_t)ddl__address_encode(&address, giver->address);
    }
    return DDL_OK;
}

/* Run the rendezvous, and stay until all ranks that can complete it have. */
static void be_rank(int size, const char *secret, bool encrypts)
{
    ddl_endpoint_config own = {.struct_size = sizeof own,
                               .secret = secret,
                               .encrypt = encrypts ? 1 : -1,
                               .interfaces = "lo"};
    ddl_endpoint *endpoint;
    OK(ddl_endpoint_create(&own, &endpoint));
    ddl__rendezvous_plan plan = {.endpoint = endpoint,
                                 .rank = self,
                                 .size = size,
                                 .begun = ddl__now(),
                                 .deadline = ddl__deadline(limit_ms),
                                 .warn_at = warn_ms ? ddl__deadline(warn_ms) : DDL__NEVER};
    double begun = seconds();
    if (warn_ms)
        CHECK(dup2(fileno(said), 2) == 2, "dup2");
    b->status[self] = ddl__rendezvous_run(&plan, url);
    b->took[self] = seconds() - begun;
    if (b->status[self] != DDL_OK)
        snprintf(b->text[self], sizeof b->text[self], "%s", ddl__message());
    const unsigned char *at = plan.list, *bytes;
    size_t left = plan.list_bytes, length;
    ddl__digest all = {{0, 0}};
    int n = 0;
    for (; at && (bytes = ddl__rendezvous_list_next(&at, &left, &length)); n++) {
        ddl__address address;
        ddl__interface ips[DDL__INTERFACES_MAX];
        OK(ddl__address_decode(&address, ips, bytes, length));
        ddl__digest_add(&all, &address.endpoint, sizeof address.endpoint);
        CHECK(n != self ||
                  ddl__digest_equal(address.endpoint, ddl__endpoint_address(endpoint)->endpoint),
              "another address is ours");
    }
    CHECK(b->status[self] != DDL_OK || (n == size && !left), "%d addresses, %zu bytes left", n,
          left);
    b->list[self] = all.words[0];
    free(plan.list);
    atomic_fetch_add(&b->done, 1);
    int killed = wrong == DIES_BEFORE_ASKING || wrong == DIES_BEFORE_GIVING;
    for (double end = seconds() + 20; atomic_load(&b->done) < size - killed;) {
        CHECK(seconds() < end, "only %d have met", atomic_load(&b->done));
        usleep(1000);
    }
    ddl_endpoint_destroy(endpoint);
    _exit(0);
}

static void run(int size, const char *secret, bool encrypts, int rank, flaw how)
{
    pid_t pids[MANY];
    memset(b, 0, sizeof *b);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    wrong_rank = rank;
    wrong = how;
    fflush(NULL);
    for (self = 0; self < size; self++) {
        b->status[self] = DDL_INPROGRESS;
        if (!(pids[self] = fork()))
            be_rank(size, secret, encrypts);
    }
    for (int i = 0; i < size; i++) {
        int status;
        CHECK(waitpid(pids[i], &status, 0) == pids[i], "waitpid");
        bool killed = i == rank && (how == DIES_BEFORE_ASKING || how == DIES_BEFORE_GIVING);
        CHECK(killed ? WIFSIGNALED(status) : status == 0, "rank %d ended with %#x", i,
              (unsigned)status);
    }
}

static void check_all_met(int size)
{
    for (int r = 0; r < size; r++)
        CHECK(b->status[r] == DDL_OK && b->list[r] == b->list[0], "rank %d: %d: %s", r,
              b->status[r], b->text[r]);
    CHECK(atomic_load(&b->lists_sent) == size - 1, "%d lists", atomic_load(&b->lists_sent));
}

static void test_tree(void)
{
    run(SIZE, NULL, false, -1, NONE);
    check_all_met(SIZE);
    static const int giver[SIZE] = {0, 0, 0, 2, 0, 4, 4, 6, 0, 8, 8};
    for (int r = 0; r < SIZE; r++)
        CHECK(b->giver_of[r] == giver[r], "rank %d gives rank %d the list", b->giver_of[r], r);
    run(SIZE, "ours", true, -1, NONE);
    check_all_met(SIZE);
    run(SIZE, NULL, false, 7, ASKS_LATE);
    check_all_met(SIZE);
    CHECK(b->took[7] > 1.2, "it asked after %.1f s", b->took[7]);
}

/* A large job has a tree, a small one has none. */
static void test_sizes(void)
{
    small_is_large = false;
    run(SIZE, NULL, false, -1, NONE);
    check_all_met(SIZE);
    CHECK(b->giver_of[7] == 0, "few have a tree");
    run(MANY, NULL, false, -1, NONE);
    check_all_met(MANY);
    CHECK(b->giver_of[7] == 6 && b->giver_of[66] == 64, "many have none");
    small_is_large = true;
}

/* Return true for ranks that get the list from `of`, directly or not. */
static bool is_behind(int rank, int of)
{
    while (rank > of)
        rank &= rank - 1;
    return rank == of;
}

/* Ranks behind a failed rank learn of it without waiting for the time limit, and all other ranks
 * complete the rendezvous: the creation of the comm detects the missing rank. */
static void test_flaw(int rank, flaw how, const char *words)
{
    run(SIZE, NULL, false, rank, how);
    for (int r = 0; r < SIZE; r++) {
        bool behind = is_behind(r, rank);
        if (r == rank && how != FAILS_BEFORE_ASKING)
            continue;
        CHECK((b->status[r] == DDL_OK) == !behind, "rank %d: %d: %s", r, b->status[r], b->text[r]);
        CHECK(b->took[r] < 15, "rank %d waited for %.1f s", r, b->took[r]);
        CHECK(!behind || strstr(b->text[r], words), "rank %d: %s", r, b->text[r]);
    }
}

/* Rank 4 waits for rank 6, which has not asked any rank, and warns once. */
static void test_warning(void)
{
    char text[1 << 12];
    CHECK(said = tmpfile(), "tmpfile");
    warn_ms = 2000;
    run(SIZE, NULL, false, 6, FAILS_BEFORE_ASKING);
    warn_ms = 0;
    size_t n = (size_t)pread(fileno(said), text, sizeof text - 1, 0);
    CHECK(n < sizeof text, "pread");
    text[n] = 0;
    const char *found = strstr(text, "rank 6 and 0 others have not fetched the list");
    CHECK(found && strstr(text, "rank 4 on ") && !strstr(found, "has waited"), "%s", text);
    fclose(said);
}

int main(void)
{
    ddl__test_hook = disturb;
    b = map_shared(sizeof *b);
    small_is_large = true;
    test_tree();
    test_sizes();
    test_flaw(4, DIES_BEFORE_GIVING, "did not get the addresses from rank ");
    test_flaw(10, DIES_BEFORE_ASKING, "");
    test_flaw(6, DIES_BEFORE_ASKING, "did not get the addresses from rank 6");
    limit_ms = 5000; /* the rank that gives it the list waits for it */
    test_flaw(6, FAILS_BEFORE_ASKING, "rank 6 did not get the addresses from rank 4 on nowhere");
    test_warning();
}
