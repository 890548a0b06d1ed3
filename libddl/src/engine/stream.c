#include "engine/stream.h"

#include <stdlib.h>

#include "base/dtype.h"
#include "engine/staging.h"

bool ddl__stream_open(ddl__stream *stream, int rank, int size, ddl__link **links)
{
    size_t n = (size_t)size;
    ddl__runner *runner = &stream->runner;
    stream->tail = &stream->head;
    runner->rank = rank;
    runner->size = size;
    runner->links = links;
    runner->kernels = ddl__kernels_best();
    runner->zero_copy = calloc(n, sizeof *runner->zero_copy);
    runner->targets = calloc(n, sizeof *runner->targets);
    runner->operands = calloc(n, sizeof *runner->operands);
    if (!runner->zero_copy || !runner->targets || !runner->operands)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!links[i])
            continue;
        links[i]->copy = runner->kernels->copy;
        links[i]->copy_nontemporal = runner->kernels->copy_nontemporal;
        if (links[i]->ops->zero_copy)
            runner->zero_copy[runner->n_zero_copy++] = links[i];
    }
    return true;
}

void ddl__stream_close(ddl__stream *stream)
{
    ddl__plans_clear(&stream->plans);
    free(stream->scratch);
    free(stream->runner.zero_copy);
    free(stream->runner.targets);
    free(stream->runner.operands);
}

void ddl__stream_push(ddl__stream *stream, ddl_work *work)
{
    work->sequence = work->call.uncounted ? stream->sequence - 1 : stream->sequence++;
    if (stream->sequence == stream->sequences)
        stream->sequence = 0;
    work->next = NULL;
    *stream->tail = work;
    stream->tail = &work->next;
}

ddl_work *ddl__stream_pop(ddl__stream *stream)
{
    ddl_work *work = stream->head;
    if (work) {
        stream->head = work->next;
        if (!stream->head)
            stream->tail = &stream->head;
    }
    return work;
}

/* Whether any value but 0 counts as true, and results are 0 or 1. */
static bool normalizes(const ddl__call *call)
{
    return call->op && (call->dtype == DDL_BOOL || call->op >= DDL_LOGICAL_AND);
}

/* Memory for a plan: the most that any plan has wanted so far. Nobody reads it between two plans.
 */
static bool make_room(ddl__stream *stream, size_t bytes)
{
    if (bytes <= atomic_load_explicit(&stream->scratch_bytes, memory_order_relaxed))
        return true;
    free(stream->scratch);
    stream->scratch = malloc(bytes);
    atomic_store_explicit(&stream->scratch_bytes, stream->scratch ? bytes : 0,
                          memory_order_relaxed);
    return stream->scratch;
}

bool ddl__stream_start(ddl__stream *stream, ddl_work *work)
{
    ddl_work *first = stream->tuning ? ddl__tuning_due(stream->tuning, work) : NULL;
    if (first)
        work = first;
    ddl__call *call = &work->call;
    stream->current = work;
    if (call->kind == DDL__BARRIER) {
        call->send = &stream->barrier_in;
        call->recv = &stream->barrier_out;
    }
    if (!ddl__stage_in(&stream->runner, work))
        return false;
    ddl__request request = {.kind = call->kind,
                            .rank = stream->runner.rank,
                            .size = stream->runner.size,
                            .root = call->root,
                            .count = call->count,
                            .sent = call->blocks,
                            .received = call->blocks ? call->blocks + stream->runner.size : NULL,
                            .element = ddl__dtype_size(call->dtype),
                            .in_place = call->send == call->recv,
                            .all_shared = stream->all_shared,
                            .normalizes = normalizes(call),
                            .topology = stream->topology,
                            .segment_bytes = stream->segment_bytes,
                            .window = stream->window};
    if (stream->tuning && !first && !ddl__tuning_start(stream->tuning, &request, &request.by))
        return false;
    const ddl__plan *plan = ddl__plans_get(&stream->plans, &request);
    if (!plan || !make_room(stream, (size_t)plan->scratch * request.element))
        return false;
    ddl__run_start(work, plan, stream->scratch);
    return true;
}

ddl__progress ddl__stream_run(ddl__stream *stream)
{
    ddl__progress progress = ddl__run(&stream->runner, stream->current);
    if (progress != DDL__FINISHED)
        return progress;
    ddl__stage_out(&stream->runner, stream->current);
    if (stream->tuning && !ddl__stream_is_own(stream, stream->current))
        ddl__tuning_end(stream->tuning);
    return progress;
}

ddl_work *ddl__stream_held(ddl__stream *stream)
{
    return ddl__stream_is_own(stream, stream->current) ? ddl__tuning_settle(stream->tuning) : NULL;
}
