/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/plan_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/calls/describe.h"

enum { LINE = 256 };

typedef struct entry {
    int size, class;
    ddl__kind kind;
    ddl__algorithm by;
} entry;

/* Return false if the line is not a valid choice. */
static bool parse_entry(const char *line, entry *e)
{
    char kind[LINE], by[LINE], rest[LINE];
    long long bytes;
    if (sscanf(line, "%d %255s %lld %255s %255s", &e->size, kind, &bytes, by, rest) != 4)
        return false;
    e->kind = ddl__kind_named(kind);
    e->by = ddl__algorithm_named(by);
    e->class = ddl__class_of(bytes);
    return e->size > 0 && e->kind && (int)e->kind < DDL__CHOICE_KINDS && e->by && bytes > 0;
}

static bool is_comment(const char *line)
{
    return line[0] == '#' || line[strspn(line, " \t\n")] == 0;
}

ddl_status ddl__plan_file_read(const char *path, int size, ddl__choices *choices)
{
    char line[LINE];
    ddl_status status = DDL_OK;
    FILE *file = fopen(path, "re");
    if (!file && errno == ENOENT)
        return DDL_OK;
    if (!file)
        return ddl__fail(DDL_ESYSTEM, "cannot read DDL_PLAN_FILE=\"%s\": %s", path,
                         strerror(errno));
    for (int number = 1; status == DDL_OK && fgets(line, sizeof line, file); number++) {
        entry e;
        line[strcspn(line, "\n")] = 0;
        if (is_comment(line))
            continue;
        if (!parse_entry(line, &e))
            status = ddl__fail(DDL_EINVAL,
                               "DDL_PLAN_FILE=\"%s\", line %d: \"%s\" is not a choice such as "
                               "\"4 all-reduce 65536 halving\"",
                               path, number, line);
        else if (e.size == size)
            choices->by[e.kind][e.class] = (uint8_t)e.by;
    }
    fclose(file);
    return status;
}

/* Copy all lines except the choices for comms of this size. */
static void copy_others(const char *path, int size, FILE *to)
{
    char line[LINE];
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        entry e;
        if (!parse_entry(line, &e) || e.size != size)
            fputs(line, to);
    }
    if (file)
        fclose(file);
}

ddl_status ddl__plan_file_write(const char *path, int size, const ddl__choices *choices)
{
    char fresh[4096];
    /* write to a file with a unique name, because two comms may write at the same time */
    snprintf(fresh, sizeof fresh, "%s.XXXXXX", path);
    int fd = mkostemp(fresh, O_CLOEXEC);
    FILE *file = fd < 0 || fchmod(fd, 0644) ? NULL : fdopen(fd, "w");
    if (!file && fd >= 0) {
        close(fd);
        unlink(fresh);
    }
    if (!file)
        return ddl__fail(DDL_ESYSTEM, "cannot write DDL_PLAN_FILE=\"%s\": %s", path,
                         strerror(errno));
    if (access(path, F_OK) != 0)
        fputs("# ranks, operation, bytes from which on, plan: found by -mode p\n", file);
    copy_others(path, size, file);
    for (int kind = 0; kind < DDL__CHOICE_KINDS; kind++)
        for (int class = 0; class < DDL__CLASSES; class ++)
            if (choices->by[kind][class])
                fprintf(file, "%d %s %lld %s\n", size, ddl__kind_name((ddl__kind)kind),
                        (long long)1 << class,
                        ddl__algorithm_name((ddl__algorithm)choices->by[kind][class]));
    bool good = !ferror(file);
    good = !fclose(file) && good && !rename(fresh, path);
    if (good)
        return DDL_OK;
    int error = errno;
    unlink(fresh);
    return ddl__fail(DDL_ESYSTEM, "cannot write DDL_PLAN_FILE=\"%s\": %s", path, strerror(error));
}
