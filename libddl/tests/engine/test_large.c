/* SPDX-License-Identifier: Apache-2.0 */
/* One all-reduce of 64 Mi f32 elements, on the link kind named by the argument. */
#include "ranks.h"

enum { COUNT = 64 << 20 };

static void sum(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    float *data = malloc(COUNT * sizeof *data);
    CHECK(data, "no memory");
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)((i + rank) % 1021);
    OK(ddl_allreduce(comm, NULL, data, COUNT, DDL_F32, DDL_SUM, NULL, NULL));
    for (int i = 0; i < COUNT; i++) {
        int want = 0;
        for (int r = 0; r < size; r++)
            want += (i + r) % 1021;
        CHECK(data[i] == (float)want, "rank %d element %d: %g, not %d", rank, i, (double)data[i],
              want);
    }
    free(data);
}

int main(int argc, char **argv)
{
    uint32_t links = links_argument(argc, argv);
    run_ranks(2, links, sum, NULL);
    run_ranks(3, links, sum, NULL);
}
