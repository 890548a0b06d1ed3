/* SPDX-License-Identifier: Apache-2.0 */
/* test_named_polls.c - the peers that one pass over the messages polls. The links only count
 * polls. */
#include "check.h"
#include "engine/messages/messages.h"

enum { SIZE = 40 };

static int looks[SIZE];
static ddl__link links[SIZE];

static bool count_look(ddl__link *link, ddl__signature *signature, size_t *bytes)
{
    looks[link - links]++;
    return false;
}

static ddl__link_pending drained(ddl__link *link)
{
    return DDL__LINK_DRAINED;
}

static const ddl__link_ops ops = {.kind = "counting", .next = count_look, .flush = drained};

/* Run one pass. `want`: the ranks that are polled. */
static void expect(ddl__messages *m, const int *want, int n, const char *when)
{
    memset(looks, 0, sizeof looks);
    ddl__messages_run(m);
    for (int i = 0, at = 0; i < SIZE; i++) {
        bool wanted = at < n && want[at] == i;
        CHECK(!looks[i] == !wanted, "%s: %d looks at rank %d", when, looks[i], i);
        at += wanted;
    }
}

static void test_rank(int rank)
{
    static const int root[] = {0};
    static const int open[] = {1, 7, 30}, loud[] = {1, 30};
    int others[SIZE], n = 0;
    ddl__link *all[SIZE];
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    atomic_uint unsent = 0;
    for (int i = 0; i < SIZE; i++) {
        links[i] = (ddl__link){.ops = &ops, .fd = -1};
        all[i] = i == rank ? NULL : &links[i];
        if (i != rank)
            others[n++] = i;
    }
    ddl__messages *m = ddl__messages_create(rank, SIZE, all, NULL, &lock, &unsent);
    CHECK(m, "no memory");
    expect(m, NULL, 0, "nothing is under way");
    ddl__messages_set_named(m, true, false);
    expect(m, rank ? root : others, rank ? 1 : n, "a name is announced");
    ddl__messages_set_named(m, true, true);
    if (rank)
        expect(m, others, n, "a named operation runs");
    expect(m, NULL, 0, "no link is open");
    for (int i = 0; i < 3; i++)
        links[open[i]].fd = 0;
    ddl__messages_links_changed(m);
    expect(m, others, n, "links were opened");
    expect(m, open, 3, "three links are open");
    links[7].quiet = true;
    expect(m, loud, 2, "one of them is quiet");
    links[7].quiet = false;
    ddl__messages_set_named(m, false, false);
    expect(m, NULL, 0, "it has ended");
    ddl__messages_destroy(m);
}

int main(void)
{
    test_rank(3);
    test_rank(0);
}
