/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/costs.h"

#include <stdlib.h>

#include "plan/builder.h"

/* Return the slowest wire. A level without a description is assumed to be as fast as the next inner
 * level. */
static ddl__speed slowest_wire(const ddl__topology *t)
{
    bool near = t && t->machines == 1;
    ddl__speed wire = {near ? DDL__NEAR_LATENCY : DDL__FAR_LATENCY,
                       near ? DDL__NEAR_BANDWIDTH : DDL__FAR_BANDWIDTH};
    if (t && t->wires[DDL__HOSTS].bandwidth > 0)
        wire = t->wires[DDL__HOSTS];
    for (int l = DDL__RACKS; t && l < DDL__GROUPINGS; l++) {
        const ddl__speed *outer = &t->wires[l];
        if (t->groups[l] < 2 || outer->bandwidth <= 0)
            continue;
        if (outer->latency > wire.latency)
            wire.latency = outer->latency;
        if (outer->bandwidth < wire.bandwidth)
            wire.bandwidth = outer->bandwidth;
    }
    return wire;
}

int ddl__cost_most_on_a_host(const ddl__topology *t, bool crossing)
{
    int most = 1, *ranks = calloc((size_t)t->groups[DDL__HOSTS], sizeof *ranks);
    for (int r = 0; ranks && r < t->size; r++) { /* without memory for `ranks`, the result is 1 */
        int host = ddl__topology_group(t, DDL__HOSTS, r);
        if (crossing && ddl__topology_group(t, DDL__HOSTS, (r + 1) % t->size) == host)
            continue;
        ranks[host]++;
        most = ranks[host] > most ? ranks[host] : most;
    }
    free(ranks);
    return most;
}

static ddl__cost cost_of(const ddl__request *request, double segment)
{
    const ddl__topology *t = request->topology;
    bool shared = request->all_shared;
    return (ddl__cost){.request = request,
                       .n = (double)request->element * (double)ddl__request_elements(request),
                       .p = request->size,
                       .segment = segment,
                       .x = t        ? ddl__cost_most_on_a_host(t, false)
                            : shared ? request->size
                                     : 1,
                       .h = t        ? t->groups[DDL__HOSTS]
                            : shared ? 1
                                     : request->size,
                       .wire = slowest_wire(t)};
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

double ddl__cost_log2(int n)
{
    int d = 0;
    while (1 << d < n)
        d++;
    return d;
}

double ddl__cost_segments(const ddl__cost *c, double bytes)
{
    double whole = (double)(int64_t)(bytes / c->segment);
    return whole + (whole * c->segment < bytes || bytes <= 0);
}

void ddl__cost_add_chain(ddl__cost *c, double hops, double messages, double bytes, double wire)
{
    c->hops += hops;
    c->path += hops * c->wire.latency + messages * DDL__WIRE_MESSAGE;
    c->wires += larger(wire / c->wire.bandwidth, bytes * DDL__WIRE_BYTE);
}

void ddl__cost_add_work(ddl__cost *c, double messages, double bytes)
{
    c->work += messages * DDL__WIRE_MESSAGE + bytes * DDL__WIRE_BYTE;
}

void ddl__cost_add_memory(ddl__cost *c, double messages, double bytes)
{
    c->path += DDL__SHARED_LATENCY + messages * DDL__SHARED_MESSAGE;
    c->memory += bytes * DDL__MEMORY_BYTE;
    c->work += messages * DDL__SHARED_MESSAGE + bytes * DDL__MEMORY_BYTE;
}

void ddl__cost_add_passes(ddl__cost *c, double bytes)
{
    c->path += bytes * DDL__MEMORY_BYTE;
    c->work += bytes * DDL__MEMORY_BYTE;
}

void ddl__cost_add_leaders(ddl__cost *c, double ways)
{
    for (double way = 0; c->x > 1 && way < ways; way++)
        ddl__cost_add_memory(c, c->x - 1, 2 * c->n);
}

void ddl__cost_add_pipeline(ddl__cost *c, int ranks)
{
    double segments = ddl__cost_segments(c, c->n), segment = c->n / segments;
    double part = (ranks - 1) / c->p, messages = ranks - 2 + segments;
    ddl__cost_add_chain(c, ranks - 1, messages, messages * segment, messages * segment);
    ddl__cost_add_work(c, part * segments, part * c->n);
}

void ddl__cost_add_direct(ddl__cost *c, double n, bool rooted)
{
    double away = c->p - c->x, local = c->x - 1, segments = ddl__cost_segments(c, n);
    double part = rooted ? 1 / c->p : 1;
    if (local > 0)
        ddl__cost_add_memory(c, local * segments * part, c->p * n * part);
    if (away <= 0)
        return;
    double wire = away * n * (rooted ? 1 : c->x);
    ddl__cost_add_chain(c, 1, away * segments, away * n, wire * (1 + (away - 1) * DDL__WIRE_JAM));
    ddl__cost_add_work(c, away * segments * part, away * n * part);
}

void ddl__cost_add_exchange(ddl__cost *m, double ways, int c, double n, double pieces)
{
    double part = ways * n * (c - 1) / c, messages = ways * pieces * (c - 1);
    ddl__cost_add_chain(m, ways, messages, part, part * m->x * (1 + (c - 2) * DDL__WIRE_JAM));
    ddl__cost_add_work(m, messages, part);
}

static double seconds(const ddl__algorithm_descriptor *algorithm, const ddl__request *request,
                      double segment)
{
    const ddl__topology *t = request->topology;
    double oversubscription = t && t->oversubscription > 1 ? t->oversubscription : 1;
    ddl__cost c = cost_of(request, segment);
    if (algorithm->cost)
        algorithm->cost(&c);
    return larger(c.path + larger(c.wires, c.memory),
                  oversubscription * (c.work + c.hops * DDL__SWITCH));
}

int64_t ddl__cost_segment(const ddl__algorithm_descriptor *algorithm, const ddl__request *request)
{
    if (request->segment_bytes > 0)
        return request->segment_bytes;
    if (request->all_shared)
        return DDL__SEGMENT_SHARED;
    return algorithm->has_short_segments && seconds(algorithm, request, DDL__SEGMENT_WIRES_SHORT) <
                                                seconds(algorithm, request, DDL__SEGMENT_WIRES)
               ? DDL__SEGMENT_WIRES_SHORT
               : DDL__SEGMENT_WIRES;
}

double ddl__cost_seconds(const ddl__algorithm_descriptor *algorithm, const ddl__request *request)
{
    int64_t segment = ddl__cost_segment(algorithm, request);
    bool is_short = !request->segment_bytes && segment < DDL__SEGMENT_WIRES;
    return seconds(algorithm, request, is_short ? DDL__SEGMENT_WIRES_SHORT : DDL__SEGMENT_WIRES);
}
