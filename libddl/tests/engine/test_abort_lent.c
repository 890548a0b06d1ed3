/* SPDX-License-Identifier: Apache-2.0 */
/* A comm is aborted while its members read each other's buffers in place. All members get that
 * error, not one that is a consequence of it. Ranks are processes. */
#include "processes.h"
#include "shared_buffers.h"

enum { SIZE = 3, ABORTS = 1, BYTES = 2 << 20 };
static int rounds = 60;

static void *abort_soon(void *comm)
{
    usleep((unsigned)getpid() * 7919 % 20000);
    OK(ddl_comm_abort(comm, "on purpose"));
    return NULL;
}

static int aborted(ddl_comm *comm)
{
    pthread_t thread;
    char *buffer = allocate(BYTES);
    bool aborts = ddl_comm_rank(comm) == ABORTS;
    CHECK(!aborts || !pthread_create(&thread, NULL, abort_soon, comm), "thread");
    ddl_status status = DDL_OK;
    while (status == DDL_OK)
        status = ddl_allreduce(comm, NULL, buffer, BYTES / 4, DDL_U32, DDL_SUM, NULL, NULL);
    CHECK(status == DDL_EABORTED && strstr(ddl_last_error(), "on purpose"), "%d %s", status,
          ddl_last_error());
    if (aborts)
        pthread_join(thread, NULL);
    ddl_comm_destroy(comm); /* otherwise a slow rank sees the process exit before the abort */
    ddl_free(buffer);
    return 0;
}

int main(int argc, char **argv)
{
    setenv("DDL_LOG", "off", 0); /* the comms die on purpose */
    rounds = argc > 1 ? atoi(argv[1]) : rounds;
    for (int i = 0; i < rounds; i++) {
        int status[PROCESSES_MAX];
        run_processes(SIZE, DDL_LINK_SHM, aborted, 60, status);
        for (int rank = 0; rank < SIZE; rank++)
            CHECK(!status[rank], "rank %d ended with %x", rank, (unsigned)status[rank]);
    }
    return 0;
}
