/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of members of a sparse comm that have no control connection. Ranks are processes; linked
 * with sparse_comms.c. */
#include <errno.h>

#include "base/test_points.h"
#include "processes.h"

#include "connect/wireup/wireup_state.h"

enum { SIZE = 5, ONE = 1, OTHER = 3 };

/* Behave as if a firewall dropped the packets. The previous barriers have opened the other link. */
static ddl_status cut_pair(ddl__test_point point, const void *subject)
{
    const ddl__hello *hello = subject;
    if (point != DDL__AT_PATH || hello->size < SIZE || hello->kind != DDL__CONN_FIRST_USE ||
        hello->lane != 1) /* the link of messages */
        return DDL_OK;
    bool is_pair =
        (hello->from == ONE && hello->to == OTHER) || (hello->from == OTHER && hello->to == ONE);
    if (!is_pair)
        return DDL_OK;
    errno = EHOSTUNREACH;
    return ddl__fail(DDL_EUNREACHABLE, "%s", strerror(EHOSTUNREACH));
}

/* One of two members that cannot reach each other is left out when the comm is shrunk: otherwise
 * the next comm would end in the same way. */
static void one_pair_is_cut(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int32_t word = rank;
    ddl_comm *next;
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_status status =
        rank == ONE ? ddl_send(comm, &word, 1, DDL_I32, OTHER, 0, NULL, NULL) : DDL_OK;
    while (status == DDL_OK)
        status = ddl_recv(comm, &word, 1, DDL_I32, (rank + 1) % SIZE, 1, NULL, NULL, NULL);
    REFUSED(status, DDL_EPEER, "rank 3 on ");
    status = ddl_comm_shrink(comm, NULL, &next);
    if (rank == OTHER) {
        CHECK(status == DDL_EMINORITY, "%d %s", status, ddl_last_error());
    } else {
        CHECK(status == DDL_OK, "rank %d: %d %s", rank, status, ddl_last_error());
        CHECK(ddl_comm_size(next) == SIZE - 1, "%d ranks go on", ddl_comm_size(next));
        OK(ddl_allreduce(next, NULL, &word, 1, DDL_I32, DDL_SUM, NULL, NULL));
        ddl_comm_destroy(next);
    }
    ddl_comm_destroy(comm);
}

static const process_test tests[] = {{"one_pair_is_cut", one_pair_is_cut, 0, DDL_LINK_TCP}};

int main(int argc, char **argv)
{
    ddl__test_hook = cut_pair;
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
