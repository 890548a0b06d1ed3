/* SPDX-License-Identifier: Apache-2.0 */
/* A comm is aborted while its members read each other's buffers in place. All members get that
 * error, not one that is a consequence of it. Ranks are processes. */
#include "processes.h"
#include "shared_buffers.h"

enum { SIZE = 3, ABORTS = 1, BYTES = 2 << 20 };

static void *abort_soon(void *comm)
{
    usleep((unsigned)getpid() * 7919 % 20000);
    OK(ddl_comm_abort(comm, "on purpose"));
    return NULL;
}

static void aborted(ddl_comm *comm)
{
    pthread_t thread;
    char *buffer = allocate(BYTES);
    bool aborts = ddl_comm_rank(comm) == ABORTS;
    CHECK(!aborts || !pthread_create(&thread, NULL, abort_soon, comm), "thread");
    ddl_status status = DDL_OK;
    while (status == DDL_OK)
        status = ddl_allreduce(comm, NULL, buffer, BYTES / 4, DDL_U32, DDL_SUM, NULL, NULL);
    REFUSED(status, DDL_EABORTED, "on purpose");
    if (aborts)
        pthread_join(thread, NULL);
    ddl_comm_destroy(comm); /* otherwise a slow rank sees the process exit before the abort */
    ddl_free(buffer);
}

int main(int argc, char **argv)
{
    const process_test test = {"aborted", aborted, .links = DDL_LINK_SHM};
    int rounds = argc > 1 ? atoi(argv[1]) : 60;
    setenv("DDL_LOG", "off", 0); /* the comms die on purpose */
    for (int i = 0; i < rounds; i++)
        run_silent_test(&test, SIZE);
}
