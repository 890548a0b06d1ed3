/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/executor/stream.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/log.h"
#include "engine/calls/describe.h"
#include "engine/calls/ordered.h"
#include "engine/executor/staging.h"

/* ----------------------------------------------------------------------------------- the plans */

/* Log once for each kind and size class why this plan was chosen. Only rank 0 logs. */
static void plans_explain(ddl__plans *plans, const ddl__request *request, const ddl__plan *plan)
{
    int64_t bytes = request->count * (int64_t)request->element;
    uint64_t class = (uint64_t)1 << ddl__class_of(bytes);
    if (request->rank || request->size == 1 || !ddl__logs(DDL__PLAN) ||
        plans->explained[request->kind] & class)
        return;
    plans->explained[request->kind] |= class;
    char line[512] = "";
    ddl__candidate found[DDL__ALGORITHMS];
    int n = ddl__plan_candidates(request, found);
    size_t at = 0;
    for (int i = 0; i < n && at < sizeof line; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, "%s%s %.3g us", i ? ", " : "",
                               ddl__algorithm_name(found[i].by), found[i].seconds * 1e6);
    const char *why = request->by == plan->by ? "requested" : n > 1 ? "chosen" : "the only plan";
    ddl__log(DDL__PLAN,
             "%s of %lld bytes in a comm of %d ranks: %s, %s, in pieces of up to %lld bytes; "
             "predicted: %s",
             ddl__kind_name(request->kind), (long long)bytes, request->size, plan->name, why,
             (long long)plan->segment * (long long)request->element, line);
}

static void plan_log(const ddl__request *request, const ddl__plan *plan)
{
    ddl__log(DDL__DEBUG,
             "rank %d: plan for kind %d, %lld elements of %zu bytes: %s, %u steps, %lld waves, "
             "pieces of up to %lld elements",
             request->rank, (int)request->kind, (long long)request->count, request->element,
             plan->name, plan->n_steps, (long long)plan->waves, (long long)plan->segment);
}

/* Compare two requests of one stream, in which only these fields can differ. */
static bool request_is_same(const ddl__request *a, const ddl__request *b)
{
    return a->kind == b->kind && a->count == b->count && a->element == b->element &&
           a->root == b->root && a->in_place == b->in_place && a->normalizes == b->normalizes &&
           a->by == b->by && a->wire == b->wire && a->order == b->order && a->wide == b->wide &&
           a->among == b->among;
}

static unsigned request_slot(const ddl__request *r)
{
    uint64_t h = (uint64_t)r->count * 8 + (uint64_t)r->kind + r->element * 131 +
                 (uint64_t)r->root * 8191 + (uint64_t)r->by * 524287 + (uint64_t)r->wire * 65537 +
                 r->in_place;
    return (unsigned)((h * 0x9e3779b97f4a7c15u) >> 58) % DDL__PLANS;
}

/* Make room for `n` operands. */
static bool make_operands(ddl__runner *runner, int n)
{
    if (n <= runner->n_operands)
        return true;
    const void **more = realloc(runner->operands, (size_t)n * sizeof *more);
    if (more) {
        runner->operands = more;
        runner->n_operands = n;
    }
    return more;
}

/* Log once for each size class, on rank 0, that a wire format is not used. */
static void warn_unpacked(ddl__plans *plans, const ddl__request *request, const ddl__plan *plan)
{
    if (!request->wire || plan->bits || request->rank || request->size == 1)
        return;
    const int64_t count = ddl__request_elements(request);
    uint64_t class = (uint64_t)1 << ddl__class_of(count * (int64_t)request->element);
    if (plans->warned & class)
        return;
    plans->warned |= class;
    ddl__log(DDL__WARN,
             "the wire format is %s, but %s(f32, %lld) is sent as f32, because it has too many "
             "segments: increase segment_bytes, which is %lld",
             ddl__wire_name(request->wire), ddl__kind_name(request->kind), (long long)count,
             (long long)request->segment_bytes);
}

/* Return the plan of a call. The plan is not explained in the log if the call itself requests the
 * algorithm, or if only some of the ranks take part. */
static const ddl__plan *plans_get(ddl__stream *stream, const ddl__request *request,
                                  const ddl__call *call)
{
    ddl__plans *plans = &stream->plans;
    if (request->sent) {
        ddl__plan_destroy(plans->uneven);
        plans->uneven = ddl__plan_create(request);
        if (!plans->uneven || !make_operands(&stream->runner, plans->uneven->operands))
            return NULL;
        warn_unpacked(plans, request, plans->uneven);
        return plans->uneven;
    }
    unsigned i = request_slot(request);
    if (!plans->entries[i].plan || !request_is_same(&plans->entries[i].request, request)) {
        ddl__plan *plan = ddl__plan_create(request);
        if (!plan || !make_operands(&stream->runner, plan->operands)) {
            ddl__plan_destroy(plan);
            return NULL;
        }
        plan_log(request, plan);
        warn_unpacked(plans, request, plan);
        if (!call->by && !call->among)
            plans_explain(plans, request, plan);
        ddl__plan_destroy(plans->entries[i].plan);
        plans->entries[i].request = *request;
        plans->entries[i].plan = plan;
        ddl__order_release(plans->entries[i].order);
        plans->entries[i].order = call->order ? ddl__order_retain(call->order) : NULL;
    }
    return plans->entries[i].plan;
}

static void plans_clear(ddl__plans *plans)
{
    for (unsigned i = 0; i < DDL__PLANS; i++) {
        ddl__plan_destroy(plans->entries[i].plan);
        ddl__order_release(plans->entries[i].order);
    }
    ddl__plan_destroy(plans->uneven);
}

/* ----------------------------------------------------------------------------------- the stream */

bool ddl__stream_open(ddl__stream *stream, int rank, int size, ddl__link **links)
{
    size_t n = (size_t)size;
    ddl__runner *runner = &stream->runner;
    stream->tail = &stream->head;
    stream->packs_from = INT64_MAX;
    runner->rank = rank;
    runner->size = size;
    runner->links = links;
    runner->kernels = ddl__kernels_best();
    runner->unflushed = calloc(n, sizeof *runner->unflushed);
    runner->targets = calloc(n, sizeof *runner->targets);
    runner->returns = calloc(n, sizeof *runner->returns);
    runner->operands = calloc(n, sizeof *runner->operands);
    runner->n_operands = size;
    if (!runner->unflushed || !runner->targets || !runner->returns || !runner->operands)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!links[i])
            continue;
        links[i]->copy = runner->kernels->copy;
        links[i]->copy_nontemporal = runner->kernels->copy_nontemporal;
    }
    return true;
}

void ddl__stream_close(ddl__stream *stream)
{
    plans_clear(&stream->plans);
    free(stream->scratch);
    free(stream->runner.unflushed);
    free(stream->runner.targets);
    free(stream->runner.returns);
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
    if (work->deadline &&
        work->deadline < atomic_load_explicit(&stream->queue_limit, memory_order_relaxed))
        atomic_store_explicit(&stream->queue_limit, work->deadline, memory_order_relaxed);
}

const ddl_work *ddl__stream_most_urgent(ddl__stream *stream)
{
    const ddl_work *urgent = NULL;
    for (const ddl_work *work = stream->head; work; work = work->next)
        if (work->deadline && (!urgent || work->deadline < urgent->deadline))
            urgent = work;
    atomic_store_explicit(&stream->queue_limit, urgent ? urgent->deadline : DDL__NEVER,
                          memory_order_relaxed);
    return urgent;
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

/* Return true if the op treats every value except 0 as true, and its results are 0 or 1. */
static bool normalizes(const ddl__call *call)
{
    return call->op && (call->dtype == DDL_BOOL || call->op >= DDL_LOGICAL_AND);
}

/* Provide scratch memory for a plan. It has the largest size needed so far; its contents are not
 * kept from one plan to the next. */
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

/* Return the algorithm that the call or the choices request. */
static ddl__algorithm algorithm_asked(const ddl__stream *stream, const ddl__call *call)
{
    if (call->by || !stream->choices || call->blocks || call->order || call->among ||
        call->only_agrees)
        return call->by ? call->by : stream->by;
    int64_t bytes = call->count * (int64_t)ddl__dtype_size(call->dtype);
    ddl__algorithm chosen = stream->choices->by[call->kind][ddl__class_of(bytes)];
    return chosen ? chosen : stream->by;
}

static ddl__kind planned_kind(const ddl__call *call)
{
    return call->only_agrees                           ? DDL__BARRIER
           : call->kind == DDL__ORDERED_ALLREDUCE      ? DDL__ALLREDUCE
           : call->kind == DDL__ORDERED_REDUCE_SCATTER ? DDL__REDUCE_SCATTER
                                                       : call->kind;
}

/* Return the order in which a call's operands are added, or NULL if the order does not matter. */
static const ddl__order *order_for(const ddl__stream *stream, const ddl__call *call)
{
    if (call->order)
        return &call->order->by_rank;
    if (!stream->order)
        return NULL;
    ddl__class class = ddl__dtype_class(call->dtype);
    bool rounds = class == DDL__FLOAT || class == DDL__COMPLEX;
    bool in_order = call->op && rounds && !call->only_agrees && !call->among;
    return in_order ? &stream->order->by_rank : NULL;
}

/* Return the wire format of a call's plan. Bundled calls are not packed: a large value of one call
 * would round values of another call to 0. */
static ddl_wire wire_of(const ddl__stream *stream, const ddl__call *call,
                        const ddl__request *request)
{
    bool packs =
        call->wire && !call->bundle && ddl__request_elements(request) >= stream->packs_from;
    return packs ? (ddl_wire)call->wire : 0;
}

static ddl__request stream_request(const ddl__stream *stream, const ddl__call *call)
{
    const ddl__order *order = order_for(stream, call);
    ddl__request request = {.kind = planned_kind(call),
                            .rank = stream->runner.rank,
                            .size = stream->runner.size,
                            .root = call->root,
                            .count = call->count,
                            .order = order,
                            .wide = call->wide ? call->wide : 1,
                            .among = call->among,
                            .sent = call->blocks,
                            .received = call->blocks ? call->blocks + stream->runner.size : NULL,
                            .element = ddl__dtype_size(call->dtype),
                            .in_place = call->send == call->recv,
                            .all_shared = stream->all_shared,
                            .normalizes = normalizes(call),
                            .rounds = order && ddl__dtype_rounds(call->dtype),
                            .topology = stream->topology,
                            .by = algorithm_asked(stream, call),
                            .segment_bytes = stream->segment_bytes,
                            .window = stream->window};
    request.wire = wire_of(stream, call, &request);
    return request;
}

int ddl__stream_candidates(const ddl__stream *stream, const ddl__call *call,
                           ddl__candidate found[DDL__ALGORITHMS])
{
    ddl__request request = stream_request(stream, call);
    return ddl__plan_candidates(&request, found);
}

bool ddl__stream_start(ddl__stream *stream, ddl_work *work)
{
    ddl__call *call = &work->call;
    stream->current = work;
    work->lends = false;
    if (call->kind == DDL__BARRIER || call->only_agrees) {
        call->send = stream->barrier_in;
        call->recv = stream->barrier_out;
    }
    call->wide = call->wide ? call->wide : 1;
    if (!ddl__stage_in(&stream->runner, work))
        return false;
    ddl__request request = stream_request(stream, call);
    const ddl__plan *plan = plans_get(stream, &request, call);
    if (!plan || !make_room(stream, (size_t)plan->scratch * request.element))
        return false;
    ddl__run_start(&stream->runner, work, plan, stream->scratch);
    return true;
}

ddl__progress ddl__stream_run(ddl__stream *stream)
{
    ddl_work *work = stream->current;
    ddl__progress progress = stream->meter ? ddl__meter_run(stream->meter, &stream->runner, work)
                                           : ddl__run(&stream->runner, work);
    if (progress == DDL__FINISHED)
        ddl__stage_out(&stream->runner, work);
    return progress;
}
