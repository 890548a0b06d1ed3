/* SPDX-License-Identifier: Apache-2.0 */
/* message_ranks.h - messages between ranks of one process, with distinct contents, and the loop
 * over links, tests and numbers of ranks. */
#ifndef DDL_TESTS_MESSAGE_RANKS_H
#define DDL_TESTS_MESSAGE_RANKS_H

#include "ranks.h"

enum { MIB = 1 << 20 };

static uint64_t mixed(uint64_t k)
{
    k = (k ^ k >> 30) * 0xbf58476d1ce4e5b9;
    k = (k ^ k >> 27) * 0x94d049bb133111eb;
    return k ^ k >> 31;
}

/* Return content that distinguishes messages and positions. */
static unsigned char byte_of(uint64_t message, size_t i)
{
    return (unsigned char)(mixed(message) + i * 7 + i / 251);
}

static void fill(unsigned char *to, size_t bytes, uint64_t message)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = byte_of(message, i);
}

static void check_filled(const unsigned char *from, size_t bytes, uint64_t message)
{
    for (size_t i = 0; i < bytes; i++)
        CHECK(from[i] == byte_of(message, i), "message %ju of %zu bytes differs at %zu",
              (uintmax_t)message, bytes, i);
}

static void finish(ddl_work *work)
{
    OK(ddl_work_wait(work, -1));
    ddl_work_destroy(work);
}

static ddl_status send_bytes(ddl_comm *comm, const void *data, size_t n, int to, int tag,
                             ddl_work **work)
{
    return ddl_send(comm, data, (int64_t)n, DDL_U8, to, tag, NULL, work);
}

static ddl_status recv_bytes(ddl_comm *comm, void *data, size_t n, int from, int tag, int *sender,
                             ddl_work **work)
{
    return ddl_recv(comm, data, (int64_t)n, DDL_U8, from, tag, sender, NULL, work);
}

/* Return the number of message k from one rank to another. */
static uint64_t name_of(int from, int to, int k)
{
    return (uint64_t)from << 40 | (uint64_t)to << 20 | (uint64_t)k;
}

typedef struct message_test {
    const char *name;
    rank_fn *fn;
    int least, most; /* fewest and most ranks */
} message_test;

/* Run the tests. Arguments: the kind of links, then the test; without one, all of that kind. */
static inline int run_message_tests(int argc, char **argv, const message_test *tests, size_t n)
{
    uint32_t links = links_argument(argc, argv);
    for (size_t t = 0; t < n; t++) {
        if (argc > 2 && strcmp(argv[2], tests[t].name))
            continue;
        double start = seconds();
        int step = SANITIZED && tests[t].most > tests[t].least ? tests[t].most - tests[t].least : 1;
        for (int size = tests[t].least; size <= tests[t].most; size += step)
            run_ranks(size, links, tests[t].fn, NULL);
        printf("%-20s %.2f s\n", tests[t].name, seconds() - start);
        fflush(stdout);
    }
    return 0;
}

#endif
