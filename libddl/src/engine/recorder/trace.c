/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/recorder/recorder.h"

#include <time.h>

#include "base/clock.h"
#include "engine/calls/describe.h"

/* The length in nanoseconds with which an operation is drawn that was too short to be measured. */
enum { SHORT_NS = 1000 };

void ddl__describe_record(char *text, size_t size, const ddl__record *record)
{
    if (record->matching != DDL__MATCH_MESSAGE) {
        ddl__describe_whole(text, size, &record->signature);
        return;
    }
    ddl__call call = ddl__call_of(&record->signature);
    call.tag = record->tag;
    ddl__describe_call(text, size, &call);
}

void ddl__trace_event(const ddl__record *r, int rank, int64_t epoch, int64_t now, ddl__text *to)
{
    static const char *const matchings[DDL__MATCHINGS] = {"by order", "by name", "message"};
    char operation[DDL__CALL_MAX];
    ddl__describe_record(operation, sizeof operation, r);
    int64_t length = r->ended == DDL__SHORT ? SHORT_NS : (r->ended ? r->ended : now) - r->started;
    ddl__text_add(to, ",\n{\"name\": ");
    ddl__text_quote(to, operation);
    ddl__text_add(to, ", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": ",
                  matchings[r->matching], rank, r->matching);
    ddl__text_thousandths(to, r->started + epoch);
    ddl__text_add(to, ", \"dur\": ");
    ddl__text_thousandths(to, length);
    ddl__text_add(to, ", \"args\": {\"number\": %llu", (unsigned long long)r->number);
    if (r->matching != DDL__MATCH_MESSAGE)
        ddl__text_add(to, ", \"sequence\": %llu",
                      (unsigned long long)(r->signature.words[0] >> 32));
    ddl__text_add(to, ", \"queued_us\": ");
    ddl__text_thousandths(to, r->started - r->submitted);
    ddl__text_add(to, ", \"status\": ");
    ddl__text_quote(to, r->ended ? ddl__strerror(r->status) : "under way");
    ddl__text_add(to, "%s}}", r->ended == DDL__SHORT ? ", \"short\": true" : "");
}

/* Read both clocks several times, and use the fastest reading: on a busy core, a slow one may be
 * wrong by milliseconds. */
int64_t ddl__trace_epoch(void)
{
    int64_t epoch = 0, least = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        struct timespec t;
        int64_t before = ddl__now();
        clock_gettime(CLOCK_REALTIME, &t);
        int64_t after = ddl__now();
        if (after - before >= least)
            continue;
        least = after - before;
        epoch = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - before - least / 2;
    }
    return epoch;
}

void ddl__trace_head(int rank, const char *name, ddl__text *to)
{
    ddl__text_add(to,
                  "{\"traceEvents\": [\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, "
                  "\"args\": {\"name\": ",
                  rank);
    ddl__text_quote(to, name);
    ddl__text_add(to, "}}");
}

void ddl__trace(const ddl__recorder *recorder, int rank, const char *name, ddl__text *to)
{
    int64_t now = ddl__now(), epoch = ddl__trace_epoch();
    uint64_t next = ddl__record_count(recorder);
    ddl__trace_head(rank, name, to);
    for (uint64_t i = next > DDL__RECORDS ? next - DDL__RECORDS : 0; i < next; i++) {
        ddl__record record;
        if (ddl__record_read(recorder, i, &record))
            ddl__trace_event(&record, rank, epoch, now, to);
    }
    ddl__text_add(to, "\n]}\n");
}
