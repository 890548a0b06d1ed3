/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts, for all-to-all: small blocks over hosts of several ranks.
 *
 * The blocks from all ranks of one host to all ranks of another are sent as one message. In round
 * r, host h exchanges with host r - h, modulo the number of hosts. On each side the agent of the
 * round is the local rank r, modulo the host's ranks. The ranks of a host pass their blocks to the
 * agent in shared memory, which collects them in its scratch memory in rank order. The agents
 * exchange the collected blocks. Then each agent distributes the received blocks within its host.
 * In the round in which a host exchanges with itself, its ranks need no agent.
 *
 * Each round sends and receives blocks of the same two hosts, so an in-place all-to-all overwrites
 * only what it has sent. If a rank is the agent of several rounds, it collects the blocks of a
 * round after those of its previous round. A span is received one wave after it was published, or
 * LAG waves after it over a wire.
 *
 * Steps: a hop in memory, one on a wire, one in memory, in h rounds. Messages: h - 1 each way for
 * each host. Bytes: X N (1 - 1/h) each way on each host's wire, where N is the bytes of one
 * rank. */
#include "plan/host_groups.h"

#include "plan/builder.h"

enum {
    LAG = 3,     /* waves between sending over a wire and receiving */
    TOGETHER = 3 /* spans that one rank sends another within a host in one wave */
};

typedef struct alltoall {
    ddl__builder *builder;
    ddl__host_groups groups;
    uint32_t most, least; /* most and fewest ranks of a host */
    int64_t count;        /* elements of a block */
    int64_t segment;
    uint32_t collecting, sending, distributing; /* maximum number of waves of each phase */
    uint32_t step;                              /* waves from round to round */
} alltoall;

/* Return the number of spans that one rank may have in flight: for all rounds that collect at the
 * same time, for distributing, on a wire, and within its host. In shared memory, the number is
 * twice the need of two waves. */
static int64_t spans_of(const alltoall *x)
{
    uint32_t at_once =
        (uint32_t)ddl__quotient(x->collecting, (uint32_t)ddl__quotient(x->collecting, x->least));
    return 4 * (int64_t)at_once + 4 * TOGETHER + 2 * (LAG + 1) + 2;
}

/* Cut messages into segments. Return false if a rank's blocks for one host do not fit a segment:
 * such messages are long enough without being collected. */
static bool cut(alltoall *x)
{
    const ddl__request *request = x->builder->request;
    x->count = request->count;
    ddl__host_groups_range(&x->groups, &x->most, &x->least);
    x->collecting = x->distributing = (uint32_t)ddl__quotient(x->most, TOGETHER);
    int64_t all = (int64_t)x->most * x->most;
    if (x->count > DDL__SEGMENT_MAX / all)
        return false;
    x->segment = ddl__choose_segment(request, all * x->count, spans_of(x));
    if (x->most * x->count > x->segment)
        return false;
    x->sending = x->count ? (uint32_t)ddl__quotient(all * x->count, x->segment) : 1;
    uint32_t longest = x->sending > x->collecting ? x->sending : x->collecting;
    x->step = (uint32_t)ddl__quotient(longest, x->least);
    return true;
}

/* Return a step over this many blocks. */
static ddl__step over(const alltoall *x, ddl__step_kind kind, int64_t blocks, uint32_t skew)
{
    int64_t count = blocks * x->count;
    return (ddl__step){
        .kind = kind, .stable = 1, .skew = skew, .count = count, .piece = count, .stride = count};
}

/* Send the blocks of local rank `i` for `host` to the agent. The agent receives them into `region`
 * of its scratch memory, in the order of the ranks of `host`. */
static void collect_from(const alltoall *x, uint32_t i, int host, uint32_t agent, int64_t region,
                         uint32_t skew)
{
    const ddl__request *request = x->builder->request;
    const uint32_t *ranks = ddl__host_ranks(&x->groups, host);
    uint32_t n = ddl__host_size(&x->groups, host), rank = (uint32_t)request->rank;
    uint32_t source = ddl__host_ranks(&x->groups, x->groups.self)[i];
    for (uint32_t k = 0, run, number = 0; k < n; k += run, number++) {
        run = ddl__run_length(ranks + k, n - k);
        uint32_t wave = skew + number / TOGETHER;
        ddl__step step = over(x, DDL__PUBLISH, run, wave);
        step.src = ddl__block_to(request, (int)ranks[k]).start;
        step.dst = region + ((int64_t)i * n + k) * x->count;
        if (source == rank && agent != rank) {
            step.stable = !request->in_place;
        } else {
            step.kind = source == rank ? DDL__COPY : DDL__TAKE;
            step.to_scratch = 1;
            step.skew++;
        }
        ddl__builder_add_peer(x->builder, step, source == rank ? agent : source);
    }
}

/* Distribute the blocks in the agent's `region` to the local ranks, in the order of the ranks of
 * `host`. */
static void distribute(const alltoall *x, int host, uint32_t agent, int64_t region, uint32_t skew)
{
    const ddl__request *request = x->builder->request;
    const uint32_t *sources = ddl__host_ranks(&x->groups, host);
    const uint32_t *own = ddl__host_ranks(&x->groups, x->groups.self);
    uint32_t n = ddl__host_size(&x->groups, x->groups.self), rank = (uint32_t)request->rank;
    for (uint32_t i = 0; i < ddl__host_size(&x->groups, host); i++) {
        ddl__step step = over(x, DDL__TAKE, 1, skew + i / TOGETHER + 1);
        step.space = DDL__SCRATCH;
        step.dst = ddl__block_from(request, (int)sources[i]).start;
        if (agent != rank) {
            ddl__builder_add_peer(x->builder, step, agent);
            continue;
        }
        step.skew--;
        for (uint32_t j = 0; j < n; j++) {
            step.kind = own[j] == rank ? DDL__COPY : DDL__PUBLISH;
            step.src = region + ((int64_t)i * n + j) * x->count;
            ddl__builder_add_peer(x->builder, step, own[j]);
        }
    }
}

static void deal_with(const alltoall *x, int host, int round, int64_t *scratch)
{
    uint32_t skew = (uint32_t)round * x->step, rank = (uint32_t)x->builder->request->rank;
    uint32_t n = ddl__host_size(&x->groups, x->groups.self), m = ddl__host_size(&x->groups, host);
    uint32_t agent = ddl__host_ranks(&x->groups, x->groups.self)[(uint32_t)round % n];
    uint32_t partner = ddl__host_ranks(&x->groups, host)[(uint32_t)round % m];
    int64_t collected = *scratch, came = collected + (int64_t)n * m * x->count;
    if (agent == rank) {
        *scratch = came + (int64_t)n * m * x->count;
        for (uint32_t i = 0; i < n; i++)
            collect_from(x, i, host, agent, collected, skew);
        ddl__step message = over(x, DDL__PUBLISH, (int64_t)n * m, skew + x->collecting);
        message.piece = message.stride = x->segment;
        message.space = DDL__SCRATCH;
        message.src = collected;
        ddl__builder_add_peer(x->builder, message, partner);
        message.kind = DDL__TAKE;
        message.to_scratch = 1;
        message.dst = came;
        message.skew += LAG;
        ddl__builder_add_peer(x->builder, message, partner);
    } else {
        collect_from(x, x->groups.local[rank], host, agent, collected, skew);
    }
    distribute(x, host, agent, came, skew + x->collecting + LAG + x->sending - 1);
}

static void deal_within(const alltoall *x, uint32_t skew)
{
    const ddl__request *request = x->builder->request;
    const uint32_t *own = ddl__host_ranks(&x->groups, x->groups.self);
    uint32_t n = ddl__host_size(&x->groups, x->groups.self), self = x->groups.local[request->rank];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t peer = own[(self + i) % n];
        ddl__step step = over(x, i ? DDL__PUBLISH : DDL__COPY, 1, skew);
        step.src = ddl__block_to(request, (int)peer).start;
        step.dst = ddl__block_from(request, (int)peer).start;
        step.stable = !request->in_place;
        if (i || !request->in_place)
            ddl__builder_add_peer(x->builder, step, peer);
    }
    for (uint32_t i = 1; i < n; i++) {
        uint32_t peer = own[(self + i) % n];
        ddl__step step = over(x, DDL__TAKE, 1, skew + 1);
        step.dst = ddl__block_from(request, (int)peer).start;
        ddl__builder_add_peer(x->builder, step, peer);
    }
}

static bool fits(const ddl__request *request)
{
    if (!ddl__request_forwards_blocks(request) || !ddl__request_has_hosts(request))
        return false;
    ddl__builder builder = {.request = request};
    alltoall x = {.builder = &builder};
    /* If memory is short here, building the plan fails, too. */
    bool fitting = !ddl__host_groups_create(&x.groups, request) || cut(&x);
    ddl__host_groups_destroy(&x.groups);
    return fitting;
}

/* Add the cost. A host's wire is idle for the time of one message while the host exchanges with
 * itself. */
static void cost(ddl__cost *c)
{
    double far = c->h - 1, turns = (double)(int64_t)((far + c->x - 1) / c->x);
    double block = c->n, message = c->x * c->x * block, segments = ddl__cost_segments(c, message);
    ddl__cost_add_memory(c, far + c->x - 1, 2 * c->p * block);
    ddl__cost_add_chain(c, 1, turns * segments, turns * message, (far + 1) * message);
    ddl__cost_add_work(c, far / c->x * segments, far * c->x * block);
    ddl__cost_add_memory(c, far * c->x, 2 * far * c->x * block);
}

static int64_t build(ddl__builder *builder)
{
    alltoall x = {.builder = builder};
    if (!ddl__host_groups_create(&x.groups, builder->request)) {
        builder->failed = true;
        return 1;
    }
    cut(&x);
    builder->plan->segment = x.segment;
    int hosts = x.groups.hosts;
    for (int round = 0; round < hosts; round++) {
        int host = (round - x.groups.self + hosts) % hosts;
        if (host == x.groups.self)
            deal_within(&x, (uint32_t)round * x.step);
        else
            deal_with(&x, host, round, &builder->plan->scratch);
    }
    ddl__host_groups_destroy(&x.groups);
    return 1;
}

const ddl__algorithm_descriptor ddl__hosts_alltoall = {
    .name = "hosts", .kinds = DDL__KIND(ALLTOALL), .fits = fits, .cost = cost, .build = build};
