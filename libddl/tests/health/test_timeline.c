/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline has each operation of a comm once, or counts it as missing. */
#include "ranks.h"

enum { SIZE = 2, OPERATIONS = 5000, TEXT = 1 << 22 };

static char folder[64];

static void run(ddl_comm *comm, void *argument)
{
    (void)argument;
    for (int i = 0; i < OPERATIONS; i++)
        OK(ddl_barrier(comm, NULL, NULL));
}

static size_t count(const char *text, const char *words)
{
    size_t n = 0;
    for (; (text = strstr(text, words)); text++)
        n++;
    return n;
}

static void check_file(const char *path)
{
    static char text[TEXT];
    FILE *file = fopen(path, "re");
    CHECK(file, "%s", path);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *end = strstr(text, "\n], \"missing\": ");
    CHECK(end, "the file has no end");
    size_t missing = strtoul(end + strlen("\n], \"missing\": "), NULL, 10);
    size_t events = count(text, "\"ph\": \"X\""), last = count(text, "\"number\": 5000,");
    /* The creation of a comm of two ranks has one operation. */
    CHECK(events + missing == OPERATIONS + 1 && last == 1, "%zu events, %zu missing, %zu last",
          events, missing, last);
    CHECK(events >= 1024, "%zu events", events);
}

int main(void)
{
    char command[200], path[200];
    strcpy(folder, "/tmp/ddl-timeline-XXXXXX");
    CHECK(mkdtemp(folder), "%s", folder);
    setenv("DDL_TIMELINE_DIR", folder, 1);
    run_ranks(SIZE, 0, run, NULL);
    snprintf(command, sizeof command, "ls %s/ddl-*-rank[01].json", folder);
    FILE *names = popen(command, "re");
    CHECK(names, "no ls");
    int files = 0;
    while (fgets(path, sizeof path, names)) {
        path[strcspn(path, "\n")] = 0;
        check_file(path);
        files++;
    }
    pclose(names);
    CHECK(files == SIZE, "%d files", files);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}
