/* SPDX-License-Identifier: Apache-2.0 */
/* recorder.h - the flight recorder: the last operations of a comm and their times.
 *
 * Design notes. Only the driver writes: a few plain stores per operation, without reading a clock.
 * Any thread may read at any time without a lock. The stamp of a record is 0 while it is rewritten;
 * a reader copies the record and then checks that the stamp is unchanged. Later changes, the end
 * and the status, are one store each.
 *
 * Reading a clock takes a large part of the time of the shortest operations. Their end is therefore
 * measured for only one of DDL__MEASURED operations; the others have DDL__SHORT instead. */
#ifndef DDL_ENGINE_RECORDER_RECORDER_H
#define DDL_ENGINE_RECORDER_RECORDER_H

#include "base/text.h"
#include "engine/calls/work.h"

enum {
    DDL__RECORDS = 1024,
    DDL__MEASURED = 64,
    DDL__SHORT = 1 /* in place of the end time of an operation that was too short to measure */
};

typedef enum ddl__matching {
    DDL__MATCH_ORDER,
    DDL__MATCH_NAME,
    DDL__MATCH_MESSAGE,
    DDL__MATCHINGS
} ddl__matching;

/* A copy of a record, for readers. */
typedef struct ddl__record {
    uint64_t number; /* number of the operation, counted in the order of starts */
    ddl__signature signature;
    int64_t submitted, started, ended; /* times of ddl__now; ended 0: running */
    ddl__matching matching;
    ddl_status status; /* DDL_INPROGRESS: running */
    int tag;           /* messages only */
} ddl__record;

typedef struct ddl__slot {
    atomic_ullong stamp; /* number + 1 */
    atomic_ullong words[2];
    atomic_llong submitted, started, ended;
    atomic_int status;
    atomic_llong matching_tag; /* tag * 4 + matching */
} ddl__slot;

typedef struct ddl__recorder {
    ddl__slot *slots;
    atomic_ullong next;         /* number of the next operation */
    atomic_ullong last_ordered; /* number + 1 of the last ordered operation; 0: none */
    /* number of operations that ended with DDL_OK, and the bytes of their calls */
    atomic_ullong ended;
    atomic_llong bytes;
} ddl__recorder;

/* Allocate the records. Return false if out of memory. */
bool ddl__recorder_open(ddl__recorder *recorder);
void ddl__recorder_close(ddl__recorder *recorder);

/* For the driver: DDL__RECORD_SET stores a field between the first and the last store of a stamp,
 * and DDL__RECORD_OWN loads a field that only the driver stores. Fences would suffice for the
 * order, but the thread sanitizer does not support them. */
#define DDL__RECORD_SET(field, value) atomic_store_explicit(&(field), value, memory_order_release)
#define DDL__RECORD_OWN(field)        atomic_load_explicit(&(field), memory_order_relaxed)

/* Called by the driver: record the start of a work with this signature. */
static inline void ddl__record_start(ddl__recorder *r, ddl_work *work, ddl__matching matching,
                                     const ddl__signature *signature, int64_t started)
{
    uint64_t number = DDL__RECORD_OWN(r->next);
    ddl__slot *slot = &r->slots[number % DDL__RECORDS];
    work->record = number + 1;
    DDL__RECORD_SET(slot->stamp, 0);
    DDL__RECORD_SET(slot->words[0], signature->words[0]);
    DDL__RECORD_SET(slot->words[1], signature->words[1]);
    DDL__RECORD_SET(slot->submitted, work->submitted);
    DDL__RECORD_SET(slot->started, started);
    DDL__RECORD_SET(slot->ended, 0);
    DDL__RECORD_SET(slot->status, DDL_INPROGRESS);
    DDL__RECORD_SET(slot->matching_tag, (long long)work->call.tag * 4 + matching);
    DDL__RECORD_SET(slot->stamp, number + 1);
    DDL__RECORD_SET(r->next, number + 1);
    if (matching == DDL__MATCH_ORDER)
        DDL__RECORD_SET(r->last_ordered, number + 1);
}

/* Called by the driver: record the end of a work; `ended` may be DDL__SHORT. */
static inline void ddl__record_end(ddl__recorder *r, const ddl_work *work, ddl_status status,
                                   int64_t ended)
{
    ddl__slot *slot = &r->slots[(work->record - 1) % DDL__RECORDS];
    if (!work->record || DDL__RECORD_OWN(slot->stamp) != work->record)
        return; /* not started, or overwritten by later records */
    DDL__RECORD_SET(slot->status, status);
    DDL__RECORD_SET(slot->ended, ended);
    if (status != DDL_OK)
        return;
    DDL__RECORD_SET(r->ended, DDL__RECORD_OWN(r->ended) + 1);
    DDL__RECORD_SET(r->bytes,
                    DDL__RECORD_OWN(r->bytes) + work->call.count * (int64_t)work->element);
}

/* Return how many operations have started, which is the number of the next. Any thread may call
 * this and the next three functions. */
uint64_t ddl__record_count(const ddl__recorder *recorder);

/* Copy the record of this number. Return false if there is none or if it is overwritten. */
bool ddl__record_read(const ddl__recorder *recorder, uint64_t number, ddl__record *to);

/* Copy the record of the operation by order that started last, or of the operation with this
 * sequence. */
bool ddl__record_last(const ddl__recorder *recorder, ddl__record *to);
bool ddl__record_find(const ddl__recorder *recorder, uint32_t sequence, ddl__record *to);

/* ---- trace.c: the records as texts and as a timeline ---- */

/* Describe a record, like "all-reduce(f32, 10, sum)" or "send(f32, 10, to rank 3, tag 7)". */
void ddl__describe_record(char *text, size_t size, const ddl__record *record);

/* Write all records as Chrome trace events, with times in microseconds of the system clock, so that
 * the files of several ranks can be shown together. Any thread may call this. */
void ddl__trace(const ddl__recorder *recorder, int rank, const char *name, ddl__text *to);

/* Write the parts of a trace like that of ddl__trace: the text before the events, and one event. An
 * operation that has not ended lasts until `now`. `epoch` is the offset from ddl__now to the system
 * clock, which ddl__trace_epoch returns. */
void ddl__trace_head(int rank, const char *name, ddl__text *to);
void ddl__trace_event(const ddl__record *record, int rank, int64_t epoch, int64_t now,
                      ddl__text *to);
int64_t ddl__trace_epoch(void);

#endif
