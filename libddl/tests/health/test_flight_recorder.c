/* SPDX-License-Identifier: Apache-2.0 */
/* A folder in which writing takes forever blocks no rank: while a dead comm's record is written
 * there, this process stays alive for the members of its other comms. */
#include "comm/comm.h"
#include "health/health_state.h"
#include "ranks.h"

enum { SIZE = 2, HEARTBEAT_MS = 50, DEAD_MS = 1500, LONG_MS = 2500, RECORD = 1 << 20 };

static char folder[64];

/* Let its record be written to a pipe that is not read yet. */
static void block(const ddl_comm *comm, char path[200])
{
    snprintf(path, 200, "%s/ddl-%016llx-rank0.json", folder,
             (unsigned long long)comm->health->config.comm.words[0]);
    CHECK(!mkfifo(path, 0600), "no pipe %s", path);
}

static void *read_record(void *argument)
{
    static char text[RECORD];
    const char *path = argument;
    FILE *file = fopen(path, "re");
    CHECK(file, "%s", path);
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    CHECK(n && strstr(text, "\"traceEvents\"") && !strcmp(text + n - 4, "\n]}\n"), "%zu bytes: %s",
          n, text);
    return NULL;
}

static ddl_comm *create(ranks *all, int rank, uint64_t tag)
{
    const void *addresses[SIZE] = {all->addresses[0], all->addresses[1]};
    ddl_comm_config config = {.struct_size = sizeof config,
                              .tag = tag,
                              .timeout_ms = 20000,
                              .heartbeat_ms = HEARTBEAT_MS,
                              .suspect_ms = DEAD_MS / 2,
                              .dead_ms = DEAD_MS};
    ddl_comm *comm;
    OK(ddl_comm_create(all->endpoints[rank], addresses, all->lengths, rank, SIZE, &config, &comm));
    return comm;
}

static void *run(void *argument)
{
    rank_thread *self = argument;
    char path[200], report[4096];
    size_t length;
    ddl_comm *dying = create(self->all, self->rank, 1), *other = create(self->all, self->rank, 2);
    if (self->rank == 0) {
        block(dying, path);
        OK(ddl_comm_abort(dying, "on purpose"));
    }
    double end = seconds() + 1e-3 * LONG_MS;
    for (int32_t all_stay = 1; all_stay; usleep(10000)) {
        all_stay = seconds() < end;
        OK(ddl_allreduce(other, NULL, &all_stay, 1, DDL_I32, DDL_MIN, NULL, NULL));
        OK(ddl_comm_report(other, report, sizeof report, &length));
    }
    OK(ddl_barrier(other, NULL, NULL));
    CHECK(ddl_comm_status(dying) == DDL_EABORTED, "%d", ddl_comm_status(dying));
    if (self->rank == 0) {
        pthread_t reader;
        CHECK(!pthread_create(&reader, NULL, read_record, path), "no thread");
        ddl_comm_destroy(dying);
        pthread_join(reader, NULL);
    } else {
        ddl_comm_destroy(dying);
    }
    ddl_comm_destroy(other);
    return NULL;
}

int main(void)
{
    static ranks all = {.size = SIZE};
    strcpy(folder, "/tmp/ddl-record-XXXXXX");
    CHECK(mkdtemp(folder), "%s", folder);
    setenv("DDL_TRACE_DIR", folder, 1);
    setenv("DDL_LOG", "off", 0);
    run_threads(&all, run);
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}
