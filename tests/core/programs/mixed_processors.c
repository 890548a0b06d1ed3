/* SPDX-License-Identifier: Apache-2.0 */
/* mixed_processors.c - one rank of a job whose hosts have different processors. It checks sums that
 * are exact, and prints a digest of those that are rounded, which must be equal on all ranks. */
#include <ddl/ddl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { LARGE = 100003 };

static uint64_t digest = 14695981039346656037u; /* FNV-1a */

static bool good(ddl_status status)
{
    if (status != DDL_OK)
        fprintf(stderr, "%s: %s\n", ddl_strerror(status), ddl_last_error());
    return status == DDL_OK;
}

static void add_to_digest(const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ byte[i]) * 1099511628211u;
}

static bool check(bool right, const char *what, int64_t count)
{
    if (!right)
        fprintf(stderr, "%s of %lld elements is wrong\n", what, (long long)count);
    return right;
}

static bool run(ddl_comm *comm, int64_t count)
{
    static int64_t integers[LARGE];
    static float floats[LARGE];
    static uint16_t halves[LARGE], gathered[8 * 5];
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t ranks = (int64_t)size * (size + 1) / 2;
    bool right = true;
    for (int64_t i = 0; i < count; i++) {
        integers[i] = (i << 32) * (rank + 1);
        floats[i] = 1.0f / (float)(i + rank + 1);
        halves[i] = 0x3f80; /* 1 as bf16 */
    }
    if (!good(ddl_allreduce(comm, integers, integers, count, DDL_I64, DDL_SUM, NULL, NULL)) ||
        !good(ddl_allreduce(comm, floats, floats, count, DDL_F32, DDL_AVERAGE, NULL, NULL)) ||
        !good(ddl_allreduce(comm, halves, halves, count, DDL_BF16, DDL_SUM, NULL, NULL)))
        return false;
    for (int64_t i = 0; i < count; i++)
        right = right && integers[i] == (i << 32) * ranks && halves[i] == 0x4040; /* 3 as bf16 */
    add_to_digest(floats, (size_t)count * sizeof *floats);
    uint16_t own[5] = {0, 1, 2, 3, (uint16_t)(256 * rank)};
    if (!good(ddl_allgather(comm, own, gathered, 5, DDL_U16, NULL, NULL)) ||
        !good(ddl_broadcast(comm, floats, count, DDL_F32, 1, NULL, NULL)))
        return false;
    for (int i = 0; i < 5 * size; i++)
        right = right && gathered[i] == (i % 5 == 4 ? 256 * (i / 5) : i % 5);
    add_to_digest(floats, (size_t)count * sizeof *floats);
    return check(right, "a result", count);
}

int main(void)
{
    ddl_endpoint *endpoint = NULL;
    ddl_comm *comm = NULL;
    bool right = good(ddl_endpoint_create(NULL, &endpoint)) &&
                 good(ddl_rendezvous(endpoint, NULL, -1, 0, NULL, &comm)) && run(comm, 5) &&
                 run(comm, LARGE);
    if (right)
        printf("rank %d of %d: %016llx\n", ddl_comm_rank(comm), ddl_comm_size(comm),
               (unsigned long long)digest);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return right ? 0 : 1;
}
