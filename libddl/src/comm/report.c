/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "engine/calls/describe.h"
#include "engine/recorder/recorder.h"

/* Add the operations that have started and have not ended, the oldest first. Return false if there
 * are none. */
static bool add_pending(const ddl__recorder *recorder, ddl__text *to)
{
    int64_t now = ddl__now();
    uint64_t next = ddl__record_count(recorder);
    bool first = true;
    for (uint64_t i = next > DDL__RECORDS ? next - DDL__RECORDS : 0; i < next; i++) {
        ddl__record record;
        char operation[DDL__CALL_MAX];
        if (!ddl__record_read(recorder, i, &record) || record.ended)
            continue;
        ddl__describe_record(operation, sizeof operation, &record);
        ddl__text_add(to, "%s\n{\"operation\": ", first ? "" : ",");
        ddl__text_quote(to, operation);
        ddl__text_add(
            to, ", \"sequence\": %u, \"waiting_s\": ", (unsigned)(record.signature.words[0] >> 32));
        ddl__text_thousandths(to, (now - record.submitted) / 1000000);
        ddl__text_add(to, "}");
        first = false;
    }
    return !first;
}

/* Add the named operations that wait until all ranks have called them. */
static void add_named(ddl_comm *comm, bool first, ddl__text *to)
{
    ddl__waiting *waiting = malloc(DDL__WAITING_MAX * sizeof *waiting);
    int n = waiting ? ddl__engine_waiting(comm->engine, waiting, DDL__WAITING_MAX) : 0;
    int64_t now = ddl__now();
    for (int i = 0; i < n; i++, first = false) {
        const ddl__waiting *w = &waiting[i];
        char operation[DDL__CALL_MAX], last[DDL_NAME_MAX];
        ddl__describe_whole(operation, sizeof operation, &w->signature);
        ddl__text_add(to, "%s\n{\"operation\": ", first ? "" : ",");
        ddl__text_quote(to, operation);
        ddl__text_add(to, ", \"name\": ");
        ddl__text_quote(to, w->name);
        ddl__text_add(to, ", \"waiting_s\": ");
        ddl__text_thousandths(to, (now - w->submitted) / 1000000);
        if (comm->rank == 0) {
            const char *comma = "";
            ddl__text_add(to, ", \"missing\": [");
            for (int rank = 1; rank < comm->size; rank++)
                if (ddl__engine_name_is_missing(comm->engine, w->name, rank, last)) {
                    ddl__text_add(to, "%s%d", comma, rank);
                    comma = ", ";
                }
            ddl__text_add(to, "]");
        }
        ddl__text_add(to, "}");
    }
    free(waiting);
}

void ddl__comm_counters(ddl_comm *comm, ddl_counters *counters)
{
    const ddl__recorder *recorder = ddl__engine_recorder(comm->engine);
    counters->operations = atomic_load_explicit(&recorder->ended, memory_order_relaxed);
    counters->bytes = (uint64_t)atomic_load_explicit(&recorder->bytes, memory_order_relaxed);
    counters->pending = ddl__engine_snapshot(comm->engine).pending;
    if (!comm->health)
        return;
    ddl__health_add_counters(comm->health, counters);
}

void ddl__report_json(ddl_comm *comm, ddl__text *to)
{
    ddl__snapshot snapshot = ddl__engine_snapshot(comm->engine);
    ddl_counters counters = {0};
    ddl__comm_counters(comm, &counters);
    ddl__text_add(to, "{\"rank\": %d, \"size\": %d, \"name\": ", comm->rank, comm->size);
    ddl__text_quote(to, comm->names[comm->rank]);
    ddl__text_add(to, ", \"status\": %d, \"message\": ", snapshot.status);
    ddl__text_quote(to, snapshot.text);
    ddl__text_add(
        to,
        ", \"operations\": %llu, \"bytes\": %llu, \"lent_bytes\": %llu, \"scratch_bytes\": %llu"
        ", \"submitted\": %llu, \"wire\": \"%s\", \"pending\": [",
        (unsigned long long)counters.operations, (unsigned long long)counters.bytes,
        (unsigned long long)snapshot.lent, (unsigned long long)snapshot.scratch,
        (unsigned long long)counters.pending, ddl__wire_name(ddl__comm_wire(comm)));
    bool any = add_pending(ddl__engine_recorder(comm->engine), to);
    add_named(comm, !any, to);
    ddl__text_add(to, "], ");
    if (comm->health)
        ddl__health_report(comm->health, to);
    else
        ddl__text_add(to, "\"missing\": [], \"members\": []");
    ddl__text_add(to, "}\n");
}
