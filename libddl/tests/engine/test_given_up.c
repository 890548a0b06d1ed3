/* SPDX-License-Identifier: Apache-2.0 */
/* A rank abandons an in-place operation while a peer is about to store its result in the buffer.
 * The caller gets a buffer to which no rank writes any more, and whose other parts are unchanged.
 * Operations on other comms with memory of the same allocation still get their results. */
#include "base/fold.h"
#include "reduce/reduce.h"
#include "shared_buffers.h"

enum { SIZE = 2, BYTES = 1 << 20, MARK = 0x5a, WARM_UP = 3 };

/* Pipes: rank 1 reports that it is about to reduce, and waits. */
static int inside[2], go[2], over[2];
static bool armed;

static void tell(int pipe)
{
    CHECK(write(pipe, "x", 1) == 1, "write");
}

static void await(int pipe)
{
    char c;
    CHECK(read(pipe, &c, 1) == 1, "read");
}

WRAP(void, ddl__reduce,
     (const ddl__kernels *kernels, ddl_dtype dtype, ddl_op op, void *dst, void *copy,
      bool nontemporal, const void *const *operands, size_t n, size_t count, int64_t divisor))
{
    if (armed) {
        armed = false;
        CHECK(copy, "nobody wants the result");
        tell(inside[1]);
        await(go[0]);
    }
    __real_ddl__reduce(kernels, dtype, op, dst, copy, nontemporal, operands, n, count, divisor);
}

static void check_bytes(const char *from, size_t n, char value)
{
    for (size_t i = 0; i < n; i++)
        CHECK(from[i] == value, "byte %zu is %d, not %d", i, from[i], value);
}

/* A second comm uses half of the allocated memory: before, meanwhile and afterwards. */
static void given_up(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    char *first = allocate(2 * BYTES), *second = first + BYTES;
    ddl_comm *other;
    ddl_work *work;
    OK(ddl_comm_duplicate(comm, NULL, &other));
    for (int i = 0; i < WARM_UP; i++) {
        OK(ddl_allreduce(comm, NULL, first, BYTES, DDL_U8, DDL_MAX, NULL, NULL));
        OK(ddl_allreduce(other, NULL, second, BYTES, DDL_U8, DDL_MAX, NULL, NULL));
    }
    memset(first, 1 + rank, BYTES);
    memset(second, 3 + rank, BYTES);
    OK(ddl_barrier(other, NULL, NULL));
    armed = rank == 1;
    OK(ddl_allreduce(comm, NULL, first, BYTES, DDL_U8, DDL_SUM, NULL, &work));
    if (!rank) {
        await(inside[0]);
        OK(ddl_comm_abort(comm, "on purpose"));
    }
    CHECK(ddl_work_wait(work, -1) == DDL_EABORTED, "%s", ddl_last_error());
    ddl_work_destroy(work);
    if (!rank) { /* rank 1 is still in its reduction */
        memset(first, MARK, BYTES);
        tell(go[1]);
        await(over[0]);
        check_bytes(first, BYTES, MARK);
    } else {
        tell(over[1]);
    }
    check_bytes(second, BYTES, (char)(3 + rank));
    for (int i = 0; i < WARM_UP; i++) {
        memset(second, 3 + rank, BYTES);
        OK(ddl_allreduce(other, NULL, second, BYTES, DDL_U8, DDL_SUM, NULL, NULL));
        check_bytes(second, BYTES, 7);
    }
    ddl_comm_destroy(other);
    ddl_comm_destroy(comm);
    ddl_free(first);
    ddl_endpoint_destroy(process_endpoint);
}

int main(void)
{
    const process_test test = {"given up", given_up, .links = DDL_LINK_SHM};
    setenv("DDL_LOG", "off", 0);
    CHECK(!pipe(inside) && !pipe(go) && !pipe(over), "no pipes");
    run_process_test(&test, SIZE);
}
