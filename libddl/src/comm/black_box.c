/* What a comm that dies leaves behind: its flight record, where $DDL_TRACE_DIR says. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/watch_state.h"
#include "engine/trace.h"

void ddl__trace_leave(const ddl__control *c)
{
    enum { LINE = 512, HEAD = 4096 }; /* bytes: more than an event takes */
    char path[4096];
    if (!c->trace_dir)
        return;
    size_t capacity = (size_t)LINE * DDL__RECORDS + HEAD;
    ddl__text text = {.to = malloc(capacity), .capacity = capacity};
    if (!text.to)
        return;
    ddl__trace(ddl__engine_recorder(c->engine), c->rank, c->names[c->rank], &text);
    snprintf(path, sizeof path, "%s/ddl-%016llx-rank%d.json", c->trace_dir,
             (unsigned long long)c->config.comm.words[0], c->rank);
    size_t length = text.length < capacity ? text.length : capacity - 1;
    FILE *file = fopen(path, "we");
    bool written = file && fwrite(text.to, 1, length, file) == length;
    written = file && !fclose(file) && written;
    if (!written)
        ddl__log(DDL__WARN, "%s: cannot write %s: %s", c->names[c->rank], path, strerror(errno));
    free(text.to);
}
