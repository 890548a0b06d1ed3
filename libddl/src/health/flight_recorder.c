/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the flight record of a dead comm to the folder $DDL_TRACE_DIR. A separate thread writes
 * it, because the folder may be slow. If the detector waited for it, the members of all comms would
 * declare this process dead. The thread only reads data that no longer changes, and the flight
 * recorder, which any thread may read. The health outlives the thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "engine/recorder/recorder.h"
#include "health/health_state.h"

static void *write_flight_record(void *argument)
{
    enum { LINE = 512, HEAD = 4096 }; /* maximum bytes of an event, and of the rest */
    const ddl__health *h = argument;
    char path[4096];
    size_t capacity = (size_t)LINE * DDL__RECORDS + HEAD;
    ddl__text text = {.to = malloc(capacity), .capacity = capacity};
    if (!text.to)
        return NULL;
    ddl__trace(ddl__engine_recorder(h->engine), h->rank, h->names[h->rank], &text);
    snprintf(path, sizeof path, "%s/ddl-%016llx-rank%d.json", h->trace_dir,
             (unsigned long long)h->config.comm.words[0], h->rank);
    size_t length = text.length < capacity ? text.length : capacity - 1;
    FILE *file = fopen(path, "we");
    bool written = file && fwrite(text.to, 1, length, file) == length;
    written = file && !fclose(file) && written;
    if (!written)
        ddl__log(DDL__WARN, "%s: cannot write %s: %s", h->names[h->rank], path, strerror(errno));
    free(text.to);
    return NULL;
}

void ddl__flight_record_start(ddl__health *h)
{
    if (!h->trace_dir || h->timeline)
        return; /* the timeline contains these operations already */
    int error = ddl__thread_start(&h->writer, write_flight_record, h);
    h->writing = !error;
    if (error)
        ddl__log(DDL__WARN, "%s: cannot start a thread to write the flight record: %s",
                 h->names[h->rank], strerror(error));
}

void ddl__flight_record_join(ddl__health *h)
{
    if (h->writing)
        pthread_join(h->writer, NULL);
    h->writing = false;
}
