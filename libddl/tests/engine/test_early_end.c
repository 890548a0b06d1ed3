/* SPDX-License-Identifier: Apache-2.0 */
/* A rank exits right after its creation, or soon, without a leave message, while the others may
 * still be creating theirs: each of them gets an error that names it, and none dies of it.
 *
 *     test_early_end [times [ranks]]
 *
 * As a rank of ddlrun it is one of them, and fails as a program would (tests/early_end.py). */
#include "processes.h"

enum { VICTIM = 1 };

/* Check on the other ranks for an error of their creation, or of an operation, that names the
 * victim. */
static void survive(ddl_status status, ddl_comm *comm, const char *name)
{
    while (status == DDL_OK) {
        float one = 1;
        status = ddl_allreduce(comm, NULL, &one, 1, DDL_F32, DDL_SUM, NULL, NULL);
    }
    CHECK(status == DDL_EPEER && strstr(ddl_last_error(), name), "%d %s", status, ddl_last_error());
}

static void run_rank(int rank, int size, const char *url, int operations)
{
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 30000};
    ddl_endpoint *endpoint;
    ddl_comm *comm = NULL;
    char name[32];
    snprintf(name, sizeof name, "rank %d on ", VICTIM);
    OK(ddl_endpoint_create(NULL, &endpoint));
    ddl_status status = ddl_rendezvous(endpoint, url, rank, size, &config, &comm);
    if (rank == VICTIM) {
        CHECK(status == DDL_OK, "%d %s", status, ddl_last_error());
        for (int i = 0; i < operations; i++)
            OK(ddl_barrier(comm, NULL, NULL));
        _exit(0);
    }
    if (status == DDL_OK && operations)
        for (int i = 0; i < operations && status == DDL_OK; i++)
            status = ddl_barrier(comm, NULL, NULL);
    survive(status, comm, name);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    exit(0);
}

static void run_once(int size, int operations)
{
    char url[64];
    pid_t pids[PROCESSES_MAX];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        pids[rank] = fork();
        CHECK(pids[rank] >= 0, "fork");
        if (!pids[rank])
            run_rank(rank, size, url, operations);
    }
    for (int rank = 0; rank < size; rank++) {
        int status;
        CHECK(waitpid(pids[rank], &status, 0) == pids[rank], "waitpid");
        CHECK(status == 0, "rank %d of %d ended with %x", rank, size, (unsigned)status);
    }
}

/* Run as a rank of ddlrun, whose output tests/early_end.py checks. */
static int be_rank_of_ddlrun(int rank)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm = NULL;
    OK(ddl_endpoint_create(NULL, &endpoint));
    ddl_status status = ddl_rendezvous(endpoint, NULL, -1, 0, NULL, &comm);
    if (rank == VICTIM && status == DDL_OK) {
        fprintf(stderr, "it gives up\n");
        return 3;
    }
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    fprintf(stderr, "%s\n", ddl_last_error());
    return 4;
}

int main(int argc, char **argv)
{
    if (getenv("DDL_RENDEZVOUS"))
        return be_rank_of_ddlrun(atoi(getenv("DDL_RANK")));
    int times = argc > 1 ? atoi(argv[1]) : SANITIZED ? 20 : 60;
    int size = argc > 2 ? atoi(argv[2]) : 4;
    setenv("DDL_LOG", "off", 0); /* the comms die on purpose */
    alarm(290);
    for (int i = 0; i < times; i++)
        run_once(size, i % 4 ? 0 : 20);
}
