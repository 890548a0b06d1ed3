/* SPDX-License-Identifier: Apache-2.0 */
/* A comm's report, flight record and counters, the warning about a stalled operation, and the file
 * that a dead comm writes. Ranks are processes. */
#include "processes.h"

enum { SIZE = 3, LATE = 2, TEXT = 1 << 20 };

static char text[TEXT], folder[64];
static float data[10];

#define HAS(words)                                                                                 \
    CHECK(strstr(text, words), "rank %d lacks %s: %s", ddl_comm_rank(comm), words, text)

static void read_file(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0, "no %s", path);
    ssize_t n = read(fd, text, TEXT - 1);
    CHECK(n >= 0, "%s cannot be read", path);
    text[n] = 0;
    close(fd);
}

/* Wait until an operation's stall is reported. */
static void await_warning(const char *name)
{
    double end = seconds() + 20;
    do {
        CHECK(seconds() < end, "no warning in %s: %s", name, text);
        usleep(10000);
        read_file(name);
    } while (!strstr(text, "has waited for "));
}

static void stalls(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    size_t length, again;
    ddl_work *work;
    char name[200];
    snprintf(name, sizeof name, "%s/log%d", folder, rank);
    CHECK(freopen(name, "w", stderr), "%s", name);
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank == LATE)
        await_ready(SIZE - 1);
    OK(ddl_allreduce(comm, NULL, data, 10, DDL_F32, DDL_SUM, NULL, &work));
    if (rank != LATE) {
        await_warning(rank ? "log1" : "log0");
        HAS("all-reduce(f32, 10, sum) as operation 2 has waited for ");
        HAS("not called by rank 2; rank 2 on ");
        HAS(" has completed barrier as operation 1");
        CHECK(ddl_work_test(work) == DDL_INPROGRESS, "complete");
        OK(ddl_comm_report(comm, text, TEXT, &length));
        CHECK(length == strlen(text), "%zu, %zu", length, strlen(text));
        HAS("\"pending\": [\n{\"operation\": \"all-reduce(f32, 10, sum)\", \"sequence\": 2");
        HAS("\"missing\": [2]");
        HAS("\"lent_bytes\": 0, \"scratch_bytes\": 0, ");
        HAS("\"state\": \"alive\", \"cause\": \"\"");
        HAS("\"operation\": \"barrier\", \"sequence\": 1, \"ended\": true");
        OK(ddl_comm_trace(comm, text, TEXT, &length));
        HAS("\"name\": \"all-reduce(f32, 10, sum)\", \"cat\": \"by order\", \"ph\": \"X\"");
        HAS("\"status\": \"under way\"");
        CHECK(ddl_comm_trace(comm, text, 10, &again) == DDL_EINVAL && again > 10, "%zu", again);
        become_ready();
    }
    while (ddl_work_test(work) == DDL_INPROGRESS)
        usleep(1000);
    OK(ddl_work_wait(work, -1));
    ddl_work_destroy(work);
    OK(ddl_comm_trace(comm, text, TEXT, &length));
    char *event = strstr(text, "\"all-reduce(f32, 10, sum)\"");
    CHECK(event, "%s", text);
    event[strcspn(event, "\n")] = 0;
    CHECK(rank == LATE || !strstr(event, "\"short\""), "it waited: %s", event);
    ddl_counters counters = {.struct_size = sizeof counters};
    OK(ddl_comm_counters(comm, &counters));
    CHECK(counters.operations == 3 && counters.bytes >= 40 && counters.pending == 0, "%llu %llu",
          (unsigned long long)counters.operations, (unsigned long long)counters.bytes);
    ddl_comm_destroy(comm);
}

static int late_by_name;

static ddl_work *reduce_by_name(ddl_comm *comm, const char *name)
{
    ddl_options options = {.struct_size = sizeof options, .name = name};
    ddl_work *work;
    OK(ddl_allreduce(comm, NULL, data, 10, DDL_F32, DDL_SUM, &options, &work));
    return work;
}

/* All waiting ranks report which ranks have not called the name, although only rank 0 knows that,
 * and may not have called it itself. */
static void stalls_by_name(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    size_t length;
    char name[200], words[200];
    snprintf(name, sizeof name, "%s/log%d", folder, rank);
    CHECK(freopen(name, "w", stderr), "%s", name);
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_work *work = reduce_by_name(comm, "grad/2");
    OK(ddl_work_wait(work, -1));
    ddl_work_destroy(work);
    if (rank == late_by_name)
        await_ready(SIZE - 1);
    work = reduce_by_name(comm, "grad/3");
    if (rank != late_by_name) {
        snprintf(name, sizeof name, "log%d", rank);
        await_warning(name);
        HAS("all-reduce(f32, 10, sum) named \"grad/3\" has waited for ");
        snprintf(words, sizeof words, "s: not called by rank %d; rank %d on ", late_by_name,
                 late_by_name);
        HAS(words);
        HAS(" last called \"grad/2\", and has completed barrier as operation 1");
        CHECK(!strstr(strstr(text, "has waited") + 1, "has waited"), "warned twice: %s", text);
        CHECK(ddl_work_test(work) == DDL_INPROGRESS, "complete");
        OK(ddl_comm_report(comm, text, TEXT, &length));
        HAS("\"pending\": [\n{\"operation\": \"all-reduce(f32, 10, sum)\", \"name\": \"grad/3\", "
            "\"waiting_s\": ");
        if (rank == 0) {
            HAS(", \"missing\": [2]}");
            HAS("], \"missing\": [2], \"members\"");
            HAS("\"last_name\": \"grad/2\"");
        }
        become_ready();
    }
    OK(ddl_work_wait(work, -1));
    ddl_work_destroy(work);
    ddl_comm_destroy(comm);
}

/* More operations than the recorder holds, from all lanes: it contains the last ones. */
static void many(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    size_t length;
    ddl_options named = {.struct_size = sizeof named, .name = "gradient"};
    for (int i = 0; i < 2000; i++)
        OK(ddl_allreduce(comm, NULL, data, 1 + i % 10, DDL_F32, DDL_MAX, NULL, NULL));
    OK(ddl_allreduce(comm, NULL, data, 3, DDL_F32, DDL_MAX, &named, NULL));
    OK(ddl_sendrecv(comm, data, 4, (rank + 1) % SIZE, 5, data + 4, 4, (rank + SIZE - 1) % SIZE, 5,
                    DDL_F32, NULL, NULL));
    OK(ddl_comm_trace(comm, text, TEXT, &length));
    HAS("\"cat\": \"by name\"");
    HAS("\"cat\": \"message\"");
    HAS("\"sequence\": 2000,");
    HAS("tag 5)\"");
    int events = 0;
    for (const char *at = text; (at = strstr(at, "\"ph\": \"X\"")); at++)
        events++;
    CHECK(events >= 1000 && events <= 1024, "%d events", events);
    ddl_comm_destroy(comm);
}

static void dies(ddl_comm *comm)
{
    OK(ddl_allreduce(comm, NULL, data, 7, DDL_F32, DDL_SUM, NULL, NULL));
    if (ddl_comm_rank(comm) == LATE)
        kill(getpid(), SIGKILL);
    CHECK(ddl_barrier(comm, NULL, NULL) == DDL_EPEER, "%s", ddl_last_error());
    size_t length;
    OK(ddl_comm_report(comm, text, TEXT, &length));
    HAS("\"status\": -40, \"message\": \"rank 2 on ");
    for (double end = seconds() + 20; !strstr(text, "\"state\": \"dead\"") && seconds() < end;) {
        usleep(10000);
        OK(ddl_comm_report(comm, text, TEXT, &length));
    }
    HAS("\"state\": \"dead\", \"cause\": \"its ");
    ddl_counters counters = {.struct_size = sizeof counters};
    OK(ddl_comm_counters(comm, &counters));
    CHECK(counters.deaths == 1, "%llu", (unsigned long long)counters.deaths);
    ddl_comm_destroy(comm);
}

static int count_files(const char *pattern)
{
    char command[200], answer[16] = "";
    snprintf(command, sizeof command, "ls %s/%s | wc -l", folder, pattern);
    FILE *pipe = popen(command, "r");
    CHECK(pipe && fgets(answer, sizeof answer, pipe), "%s", command);
    pclose(pipe);
    return atoi(answer);
}

int main(void)
{
    strcpy(folder, "/tmp/ddl-report-XXXXXX");
    CHECK(mkdtemp(folder), "%s", folder);
    setenv("DDL_STALL_WARN_MS", "300", 1);
    for (uint32_t links = DDL_LINK_SHM; links <= DDL_LINK_TCP; links *= 2) {
        run_process_test(&(process_test){"stalls", stalls, 0, links}, SIZE);
        for (late_by_name = 0; late_by_name < SIZE; late_by_name += LATE)
            run_process_test(&(process_test){"by name", stalls_by_name, 0, links}, SIZE);
        run_process_test(&(process_test){"many", many, 0, links}, SIZE);
    }
    setenv("DDL_LOG", "off", 1); /* the comms die on purpose */
    setenv("DDL_TRACE_DIR", folder, 1);
    run_process_test(&(process_test){"dies", dies, 1 << LATE, DDL_LINK_TCP}, SIZE);
    CHECK(count_files("ddl-*-rank[01].json") == 2, "%d", count_files("ddl-*"));
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}
