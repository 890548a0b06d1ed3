/* SPDX-License-Identifier: Apache-2.0 */
/* Writes all operations of a comm to the folder $DDL_TIMELINE_DIR as they end. The driver writes
 * them to the flight recorder, which has room for the last operations only, so a separate thread
 * copies new operations every PERIOD. If the process is killed, the file lacks its end and the
 * operations of the last period. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "engine/recorder/recorder.h"
#include "health/health_state.h"

enum { PERIOD_MS = 20 };

struct ddl__timeline {
    const ddl__health *health;
    char *folder;
    FILE *file;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;                  /* under the lock */
    uint64_t first;             /* all operations before this number are written or missing */
    uint64_t missing;           /* operations that were overwritten before they were copied */
    bool written[DDL__RECORDS]; /* by number, from `first` on: the operation is already written */
};

/* Write the operations that have ended and, if `all`, those that have not. */
static void write_new(ddl__timeline *t, bool all)
{
    const ddl__recorder *recorder = ddl__engine_recorder(t->health->engine);
    int64_t now = ddl__now(), epoch = ddl__trace_epoch();
    uint64_t next = ddl__record_count(recorder);
    bool *written;
    for (; t->first + DDL__RECORDS < next; t->first++) {
        written = &t->written[t->first % DDL__RECORDS];
        t->missing += !*written;
        *written = false;
    }
    for (uint64_t i = t->first; i < next; i++) {
        char line[1024];
        ddl__text text = {.to = line, .capacity = sizeof line};
        ddl__record record;
        written = &t->written[i % DDL__RECORDS];
        if (*written || !ddl__record_read(recorder, i, &record) || (!record.ended && !all))
            continue;
        ddl__trace_event(&record, t->health->rank, epoch, now, &text);
        *written = true;
        fputs(line, t->file);
    }
    for (; t->first < next && t->written[t->first % DDL__RECORDS]; t->first++)
        t->written[t->first % DDL__RECORDS] = false;
    fflush(t->file);
}

static void *write_timeline(void *argument)
{
    ddl__timeline *t = argument;
    const ddl__health *h = t->health;
    const char *name = h->names[h->rank];
    char path[4096], head[DDL_NAME_MAX + 256];
    ddl__text text = {.to = head, .capacity = sizeof head};
    snprintf(path, sizeof path, "%s/ddl-%016llx-rank%d.json", t->folder,
             (unsigned long long)h->config.comm.words[0], h->rank);
    t->file = fopen(path, "we");
    if (!t->file) {
        ddl__log(DDL__WARN, "%s: cannot write %s: %s", name, path, strerror(errno));
        return NULL;
    }
    ddl__trace_head(h->rank, name, &text);
    fputs(head, t->file);
    for (bool stop = false; !stop;) {
        pthread_mutex_lock(&t->lock);
        if (!t->stop)
            ddl__cond_wait_until(&t->changed, &t->lock, ddl__deadline(PERIOD_MS));
        stop = t->stop;
        pthread_mutex_unlock(&t->lock);
        write_new(t, stop);
    }
    fprintf(t->file, "\n], \"missing\": %llu}\n", (unsigned long long)t->missing);
    if (ferror(t->file) | fclose(t->file))
        ddl__log(DDL__WARN, "%s: cannot write %s: %s", name, path, strerror(errno));
    return NULL;
}

static void timeline_free(ddl__timeline *t)
{
    if (!t)
        return;
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
    free(t->folder);
    free(t);
}

void ddl__timeline_start(ddl__health *h, const char *folder)
{
    if (!folder)
        return;
    ddl__timeline *t = calloc(1, sizeof *t);
    if (t) {
        t->health = h;
        t->folder = strdup(folder);
        pthread_mutex_init(&t->lock, NULL);
        ddl__cond_init(&t->changed);
    }
    int error = t && t->folder ? ddl__thread_start(&t->thread, write_timeline, t) : ENOMEM;
    if (error) {
        ddl__log(DDL__WARN, "%s: cannot start a thread to write the timeline: %s",
                 h->names[h->rank], strerror(error));
        timeline_free(t);
        return;
    }
    h->timeline = t;
}

void ddl__timeline_end(ddl__health *h)
{
    ddl__timeline *t = h->timeline;
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    timeline_free(t);
    h->timeline = NULL;
}
