/* All-to-all of small blocks over hosts of several ranks: what the ranks of one host have for those
 * of another travels as one message.
 *
 * In round r host h deals with host r - h, and so that one with host h, each by an agent: the one
 * whose turn it is. The ranks of a host give the agent their blocks, in shared memory, and it
 * brings them behind each other, those of its first rank first; the agents exchange what they have
 * gathered; and each spreads among its host what has come. So between two hosts one message goes
 * each way, instead of one for each two of their ranks. A host deals with itself without an agent.
 *
 * As each round both gives and takes what belongs to the same two hosts, an all-to-all in place
 * overwrites only what it has sent. Rounds follow each other in the waves so that an agent's next
 * one gathers when its last one has gathered, and so on. Every span is taken a wave after it was
 * published, what goes over a wire LAG waves after. */
#include "plan/host_groups.h"

enum {
    LAG = 3,     /* waves between sending over a wire and taking */
    TOGETHER = 3 /* spans that one rank sends another in a wave to be gathered, or to be spread */
};

typedef struct exchange {
    ddl__builder *builder;
    ddl__host_groups groups;
    uint32_t most, least; /* ranks of a host */
    int64_t count;        /* of a block */
    int64_t segment;
    uint32_t gathering, wiring, spreading; /* waves that each takes at most */
    uint32_t step;                         /* waves from round to round */
} exchange;

static uint32_t quotient(int64_t a, int64_t b)
{
    return (uint32_t)(a / b + (a % b != 0));
}

/* Spans of a segment that one rank may have under way: to be gathered, of as many rounds as are
 * gathered at once; to be spread; on a wire; and in its host. Twice what two waves need of those in
 * memory. */
static int64_t spans_of(const exchange *x)
{
    uint32_t at_once = quotient(x->gathering, quotient(x->gathering, x->least));
    return 4 * (int64_t)at_once + 4 * TOGETHER + 2 * (LAG + 1) + 2;
}

/* Whether what a rank has for one host fits a segment; else messages are long enough by themselves.
 */
static bool cut(exchange *x)
{
    const ddl__request *request = x->builder->request;
    x->count = request->count;
    ddl__host_groups_range(&x->groups, &x->most, &x->least);
    x->gathering = x->spreading = quotient(x->most, TOGETHER);
    int64_t all = (int64_t)x->most * x->most;
    if (x->count > DDL__SEGMENT_MAX / all)
        return false;
    x->segment = ddl__choose_segment(request, all * x->count, spans_of(x));
    if (x->most * x->count > x->segment)
        return false;
    x->wiring = x->count ? quotient(all * x->count, x->segment) : 1;
    uint32_t longest = x->wiring > x->gathering ? x->wiring : x->gathering;
    x->step = quotient(longest, x->least);
    return true;
}

/* ---------------------------------------------------------------------------------------- steps */

/* A step over so many blocks at once. */
static ddl__step over(const exchange *x, ddl__step_kind kind, int64_t blocks, uint32_t skew)
{
    int64_t count = blocks * x->count;
    return (ddl__step){
        .kind = kind, .stable = 1, .skew = skew, .count = count, .piece = count, .stride = count};
}

static void add(const exchange *x, ddl__step step, uint32_t from, uint32_t to)
{
    bool comes = step.kind == DDL__TAKE, goes = step.kind == DDL__PUBLISH;
    ddl__builder_add(x->builder, step, comes ? ddl__one_rank((int)from) : ddl__no_ranks(),
                     goes ? ddl__one_rank((int)to) : ddl__no_ranks());
}

/* The blocks of local rank `i` for a host come to the agent as its ranks follow each other; to
 * `region` of its scratch memory. */
static void gather_from(const exchange *x, uint32_t i, int host, uint32_t agent, int64_t region,
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
        add(x, step, source, agent);
    }
}

/* What the agent has, in `region`, goes to the local ranks block by block: those of one rank of
 * that host after the other. */
static void spread(const exchange *x, int host, uint32_t agent, int64_t region, uint32_t skew)
{
    const ddl__request *request = x->builder->request;
    const uint32_t *sources = ddl__host_ranks(&x->groups, host),
                   *own = ddl__host_ranks(&x->groups, x->groups.self);
    uint32_t n = ddl__host_size(&x->groups, x->groups.self), rank = (uint32_t)request->rank;
    for (uint32_t i = 0; i < ddl__host_size(&x->groups, host); i++) {
        ddl__step step = over(x, DDL__TAKE, 1, skew + i / TOGETHER + 1);
        step.space = DDL__SCRATCH;
        step.dst = ddl__block_from(request, (int)sources[i]).start;
        if (agent != rank) {
            add(x, step, agent, rank);
            continue;
        }
        step.skew--;
        for (uint32_t j = 0; j < n; j++) {
            step.kind = own[j] == rank ? DDL__COPY : DDL__PUBLISH;
            step.src = region + ((int64_t)i * n + j) * x->count;
            add(x, step, agent, own[j]);
        }
    }
}

static void deal_with(const exchange *x, int host, int round, int64_t *scratch)
{
    uint32_t skew = (uint32_t)round * x->step, rank = (uint32_t)x->builder->request->rank;
    uint32_t n = ddl__host_size(&x->groups, x->groups.self), m = ddl__host_size(&x->groups, host);
    uint32_t agent = ddl__host_ranks(&x->groups, x->groups.self)[(uint32_t)round % n];
    uint32_t partner = ddl__host_ranks(&x->groups, host)[(uint32_t)round % m];
    int64_t gathered = *scratch, came = gathered + (int64_t)n * m * x->count;
    if (agent == rank) {
        *scratch = came + (int64_t)n * m * x->count;
        for (uint32_t i = 0; i < n; i++)
            gather_from(x, i, host, agent, gathered, skew);
        ddl__step message = over(x, DDL__PUBLISH, (int64_t)n * m, skew + x->gathering);
        message.piece = message.stride = x->segment;
        message.space = DDL__SCRATCH;
        message.src = gathered;
        add(x, message, rank, partner);
        message.kind = DDL__TAKE;
        message.to_scratch = 1;
        message.dst = came;
        message.skew += LAG;
        add(x, message, partner, rank);
    } else {
        gather_from(x, x->groups.local[rank], host, agent, gathered, skew);
    }
    spread(x, host, agent, came, skew + x->gathering + LAG + x->wiring - 1);
}

static void deal_within(const exchange *x, uint32_t skew)
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
            add(x, step, own[self], peer);
    }
    for (uint32_t i = 1; i < n; i++) {
        uint32_t peer = own[(self + i) % n];
        ddl__step step = over(x, DDL__TAKE, 1, skew + 1);
        step.dst = ddl__block_from(request, (int)peer).start;
        add(x, step, peer, own[self]);
    }
}

bool ddl__fits_exchange(const ddl__request *request)
{
    ddl__builder builder = {.request = request};
    exchange x = {.builder = &builder};
    bool fits =
        !ddl__host_groups_create(&x.groups, request) || cut(&x); /* or building fails as well */
    ddl__host_groups_destroy(&x.groups);
    return fits;
}

int64_t ddl__build_exchange(ddl__builder *builder)
{
    exchange x = {.builder = builder};
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
