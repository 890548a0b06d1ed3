/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation with equal counts x dtype x op x ranks x count x in place or not x blocking,
 * asynchronous or grouped, against an independent reference.
 *
 *     test_matrix WHERE [full|pairwise|sample] [segment=BYTES] [shard=I/N] [PARAMETER=VALUE ...]
 *
 * WHERE: inproc, shm or tcp; shared, as shm, with buffers of ddl_alloc; mixed: some of the buffers;
 * pair: shm between ranks 0 and 1, and tcp; hosts: of ranks side by side; interleaved: of every
 * second rank.
 * full: all; pairwise: a covering array, in which each pair of values of two parameters occurs;
 * sample (the default): pairwise, and each 199th of all. shard: each N-th of these from the I-th
 * on. A failing case is reported as the command that runs it alone. */
#include "comm/comm.h"
#include "engine/state.h"
#include "matrix_cases.h"
#include "ranks.h"

#include <inttypes.h>
#include <stdarg.h>

enum { MARGIN = 16, COMPANION = 3, SAMPLE_STEP = 199 };
enum { SEGMENT_BYTES = 4096, LENT_BYTES = 64 * 1024 };
static const unsigned char UNTOUCHED = 0x5a;

/* ---- the operations ---- */

typedef struct call {
    const void *send;
    void *recv;
    int64_t count;
    ddl_dtype dtype;
    ddl_op op;
    int root;
} call;

typedef ddl_status run_fn(ddl_comm *comm, const call *c, const ddl_options *o, ddl_work **w);

static ddl_status allreduce(ddl_comm *comm, const call *c, const ddl_options *o, ddl_work **w)
{
    return ddl_allreduce(comm, c->send, c->recv, c->count, c->dtype, c->op, o, w);
}

static ddl_status reduce(ddl_comm *comm, const call *c, const ddl_options *o, ddl_work **w)
{
    return ddl_reduce(comm, c->send, c->recv, c->count, c->dtype, c->op, c->root, o, w);
}

static ddl_status reduce_scatter(ddl_comm *comm, const call *c, const ddl_options *o, ddl_work **w)
{
    return ddl_reduce_scatter(comm, c->send, c->recv, c->count, c->dtype, c->op, o, w);
}

static ddl_status broadcast(ddl_comm *comm, const call *c, const ddl_options *o, ddl_work **w)
{
    return ddl_broadcast(comm, c->recv, c->count, c->dtype, c->root, o, w);
}

static ddl_status allgather(ddl_comm *comm, const call *c, const ddl_options *o, ddl_work **w)
{
    return ddl_allgather(comm, c->send, c->recv, c->count, c->dtype, o, w);
}

static ddl_status gather(ddl_comm *comm, const call *c, const ddl_options *o, ddl_work **w)
{
    return ddl_gather(comm, c->send, c->recv, c->count, c->dtype, c->root, o, w);
}

static ddl_status scatter(ddl_comm *comm, const call *c, const ddl_options *o, ddl_work **w)
{
    return ddl_scatter(comm, c->send, c->recv, c->count, c->dtype, c->root, o, w);
}

static ddl_status alltoall(ddl_comm *comm, const call *c, const ddl_options *o, ddl_work **w)
{
    return ddl_alltoall(comm, c->send, c->recv, c->count, c->dtype, o, w);
}

static ddl_status barrier(ddl_comm *comm, const call *c, const ddl_options *o, ddl_work **w)
{
    return ddl_barrier(comm, o, w);
}

typedef enum who { NOBODY, EVERYBODY, ROOT } who;

/* The content of block q of the result. */
typedef enum content {
    REDUCED, /* the reduction */
    OTHERS,  /* rank q's elements */
    ROOTS    /* the root's elements */
} content;

typedef struct operation {
    const char *name;
    run_fn *run;
    who gives, gets;
    bool gives_all, gets_all; /* a block for each rank, not only one */
    content content;
    bool own_share; /* the result is the elements from rank * count on */
    values kind;
} operation;

static const operation operations[] = {
    {"allreduce", allreduce, EVERYBODY, EVERYBODY, 0, 0, REDUCED, 0, EXACT},
    {"rough-allreduce", allreduce, EVERYBODY, EVERYBODY, 0, 0, REDUCED, 0, ROUGH},
    {"reduce", reduce, EVERYBODY, ROOT, 0, 0, REDUCED, 0, EXACT},
    {"reduce-scatter", reduce_scatter, EVERYBODY, EVERYBODY, 1, 0, REDUCED, 1, EXACT},
    {"broadcast", broadcast, ROOT, EVERYBODY, 0, 0, ROOTS, 0, ANY},
    {"allgather", allgather, EVERYBODY, EVERYBODY, 0, 1, OTHERS, 0, ANY},
    {"gather", gather, EVERYBODY, ROOT, 0, 1, OTHERS, 0, ANY},
    {"scatter", scatter, ROOT, EVERYBODY, 1, 0, ROOTS, 1, ANY},
    {"alltoall", alltoall, EVERYBODY, EVERYBODY, 1, 1, OTHERS, 1, ANY},
    {"barrier", barrier, NOBODY, NOBODY, 0, 0, OTHERS, 0, ANY},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static ddl_dtype dtype_of(const combination *c)
{
    return (ddl_dtype)(c->v[DTYPE] + 1);
}

static bool sensible(const combination *c)
{
    const operation *o = &operations[c->v[OPERATION]];
    ddl_dtype dtype = dtype_of(c);
    ddl_op op = (ddl_op)c->v[OP];
    if (o->run == barrier)
        return !op && !c->v[COUNT] && !c->v[DTYPE] && !c->v[PLACE];
    if (o->run == broadcast && !c->v[PLACE]) /* broadcast has only one buffer */
        return false;
    if (count_of(c) == LARGEST && (ranks_of(c) < 2 || ranks_of(c) > LARGEST_RANKS || c->v[MODE] ||
                                   (dtype != DDL_U8 && dtype != DDL_BF16 && dtype != DDL_F32)))
        return false;
    if (o->kind == ANY)
        return !op;
    if (!op || !supported(dtype, op))
        return false;
    return o->kind == EXACT ||
           (types[dtype].kind >= REAL && (op == DDL_SUM || op == DDL_AVERAGE || op == DDL_PRODUCT));
}

/* ---- one rank in one case ---- */

/* The state that all ranks of one run share; results are compared between the two barriers. */
typedef struct shared {
    const char *where, *segment; /* the argument for another length of segments, or "" */
    const cases *cases;
    int ranks;
    const unsigned char *results[RANKS_MAX];
    pthread_barrier_t barrier;
    size_t done;
} shared;

typedef struct member {
    shared *all;
    ddl_comm *comm;
    const combination *c;
    const operation *o;
    ddl_dtype dtype;
    const traits *t;
    int rank, size, root;
    int64_t n;
    bool in_place; /* on this rank */
    size_t room;
    unsigned char *space[2], *send, *recv;
    patterns patterns;
} member;

__attribute__((format(printf, 2, 3), noreturn)) static void failed(const member *m,
                                                                   const char *words, ...)
{
    char text[256];
    va_list arguments;
    flockfile(stderr);
    fprintf(stderr, "rank %d: ", m->rank);
    va_start(arguments, words);
    vfprintf(stderr, words, arguments);
    va_end(arguments);
    fprintf(stderr, "\n  again: test_matrix %s full %s%s\n", m->all->where, m->all->segment,
            described(m->c, text));
    fflush(NULL);
    _exit(1);
}

static void must(const member *m, ddl_status status)
{
    if (status != DDL_OK)
        failed(m, "%s: %s", ddl_strerror(status), ddl_last_error());
}

/* Fill in elements first to first + n of a pattern. */
static void fill(const member *m, unsigned char *at, const unsigned char *pattern, int64_t first,
                 int64_t n)
{
    size_t size = m->t->size;
    for (int64_t start = first % PERIOD, left = n, some; left > 0; left -= some, start = 0) {
        some = left < PERIOD - start ? left : PERIOD - start;
        memcpy(at, pattern + (size_t)start * size, (size_t)some * size);
        at += (size_t)some * size;
    }
}

/* True if `got` is near enough: one rounding per addition, and sums may cancel each other. */
static bool near(const member *m, const unsigned char *got, const unsigned char *want)
{
    ddl_dtype part = part_of(m->dtype);
    double step = m->size * ldexp(1, -types[part].format.fraction) * m->size * 2;
    for (size_t at = 0; at < m->t->size; at += types[part].size) {
        double a = float_decode(part, got + at), b = float_decode(part, want + at);
        if (!(fabs(a - b) <= step * fmax(1, fabs(b))))
            return false;
    }
    return true;
}

static void expect(const member *m, const char *what, const unsigned char *at,
                   const unsigned char *pattern, int64_t first, int64_t n)
{
    size_t size = m->t->size;
    bool rough = m->o->kind == ROUGH && pattern == m->patterns.reduced;
    for (int64_t start = first % PERIOD, k = 0, some; k < n; k += some, start = 0) {
        some = n - k < PERIOD - start ? n - k : PERIOD - start;
        const unsigned char *want = pattern + (size_t)start * size;
        if (!rough && !memcmp(at, want, (size_t)some * size)) {
            at += (size_t)some * size;
            continue;
        }
        for (int64_t i = 0; i < some; i++, at += size, want += size)
            if (rough ? !near(m, at, want) : memcmp(at, want, size))
                failed(m, "%s: element %lld of %lld is 0x%02x..., expected 0x%02x...", what,
                       (long long)(k + i), (long long)n, *at, *want);
    }
}

static void expect_untouched(const member *m, const char *what, const unsigned char *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != UNTOUCHED)
            failed(m, "%s: byte %zu of %zu is 0x%02x, was 0x%02x", what, i, n, at[i], UNTOUCHED);
}

/* Return a buffer of n elements close to the end of its space, which a sanitizer guards; half of
 * the buffers are unaligned. */
static unsigned char *place(const member *m, unsigned char *space, int64_t n)
{
    const unsigned char *v = m->c->v;
    size_t bytes = (size_t)n * m->t->size, tail = (v[DTYPE] + v[COUNT] + v[MODE]) % 2;
    unsigned char *at = space + m->room - tail - bytes;
    memset(at - MARGIN, UNTOUCHED, bytes + MARGIN + tail);
    return at;
}

static void check_margins(const member *m, const unsigned char *at, int64_t n,
                          const unsigned char *space)
{
    const unsigned char *end = at + (size_t)n * m->t->size;
    expect_untouched(m, "before the buffer", at - MARGIN, MARGIN);
    expect_untouched(m, "behind the buffer", end, (size_t)(space + m->room - end));
}

static void expect_result(const member *m, const unsigned char *at)
{
    int64_t first = m->o->own_share ? m->rank * m->n : 0;
    for (int q = 0; q < (m->o->gets_all ? m->size : 1); q++) {
        const unsigned char *pattern = m->o->content == REDUCED  ? m->patterns.reduced
                                       : m->o->content == OTHERS ? m->patterns.of[q]
                                                                 : m->patterns.of[m->root];
        expect(m, "result", at + (size_t)(q * m->n) * m->t->size, pattern, first, m->n);
    }
}

/* Results that are rounded must have the same bits on all ranks. */
static void compare_ranks(const member *m)
{
    m->all->results[m->rank] = m->recv;
    pthread_barrier_wait(&m->all->barrier);
    if (memcmp(m->recv, m->all->results[0], (size_t)m->n * m->t->size))
        failed(m, "not the same bits as on rank 0");
    pthread_barrier_wait(&m->all->barrier);
}

/* Run between two small operations, with which it may be fused. */
static void run_grouped(const member *m, const call *main_call)
{
    ddl_group *group;
    unsigned char small[2][COMPANION * ELEMENT_MAX];
    must(m, ddl_group_create(m->comm, &group));
    ddl_options o = {.struct_size = sizeof o, .group = group};
    run_fn *run = m->o->kind == ANY ? broadcast : allreduce;
    const unsigned char *want = m->o->kind == ANY ? m->patterns.of[m->root] : m->patterns.reduced;
    for (int i = 0; i < 2; i++) {
        call c = {NULL, small[i], COMPANION, m->dtype, main_call->op, m->root};
        fill(m, small[i], m->patterns.of[m->rank], i, COMPANION);
        must(m, run(m->comm, &c, &o, NULL));
        if (i == 0)
            must(m, m->o->run(m->comm, main_call, &o, NULL));
    }
    must(m, ddl_group_submit(group, NULL, NULL));
    ddl_group_destroy(group);
    for (int i = 0; i < 2; i++)
        expect(m, "companion", small[i], want, i, COMPANION);
}

static void run_call(const member *m, const call *c)
{
    ddl_work *work = NULL;
    if (m->c->v[MODE] == GROUPED) {
        run_grouped(m, c);
        return;
    }
    must(m, m->o->run(m->comm, c, NULL, m->c->v[MODE] == ASYNC ? &work : NULL));
    for (int i = 0; work && i < 2; i++) /* waiting again gives the same */
        must(m, ddl_work_wait(work, -1));
    ddl_work_destroy(work);
}

static void run_in_place(member *m, call c, int64_t given, int64_t got)
{
    const unsigned char *own = m->patterns.of[m->rank];
    size_t size = m->t->size;
    int64_t n = given > got ? given : got, share = m->rank * m->n;
    int64_t at = m->o->gets_all && !m->o->gives_all ? share : 0; /* offset in the send buffer */
    m->recv = place(m, m->space[0], n);
    fill(m, m->recv + (size_t)at * size, own, 0, given);
    /* In place can be said in three ways: by the same pointer, NULL, and that of the own block. */
    const unsigned char *v = m->c->v;
    int way = (v[DTYPE] + v[OP] + v[COUNT] + 2 * v[MODE]) % 3;
    unsigned char *block =
        m->recv + (m->o->gets_all != m->o->gives_all ? share : 0) * (int64_t)size;
    c.send = c.recv = m->recv;
    if (way == 0 && m->o->run == scatter)
        c.recv = NULL;
    else if (way == 0)
        c.send = NULL;
    else if (way == 1 && m->o->gives_all)
        c.recv = block;
    else if (way == 1)
        c.send = block;
    run_call(m, &c);
    check_margins(m, m->recv, n, m->space[0]);
    if (!got) {
        expect(m, "in place", m->recv, own, 0, given);
    } else if (given > got) {
        expect_result(m, m->recv + (size_t)share * size);
        expect(m, "blocks before", m->recv, own, 0, share);
        expect(m, "blocks behind", m->recv + (size_t)(share + m->n) * size, own, share + m->n,
               given - share - m->n);
    } else {
        expect_result(m, m->recv);
    }
}

static void run_out_of_place(member *m, call c, int64_t given, int64_t got)
{
    const unsigned char *own = m->patterns.of[m->rank];
    m->send = place(m, m->space[1], given);
    m->recv = place(m, m->space[0], got);
    fill(m, m->send, own, 0, given);
    c.send = given ? m->send : NULL;
    c.recv = got ? m->recv : NULL;
    run_call(m, &c);
    check_margins(m, m->send, given, m->space[1]);
    check_margins(m, m->recv, got, m->space[0]);
    expect(m, "send", m->send, own, 0, given);
    if (got)
        expect_result(m, m->recv);
}

static void run_case(member *m, const combination *chosen)
{
    m->c = chosen;
    m->o = &operations[chosen->v[OPERATION]];
    m->dtype = dtype_of(chosen);
    m->t = &types[m->dtype];
    m->n = count_of(chosen);
    m->root = (chosen->v[DTYPE] + chosen->v[OP] + chosen->v[COUNT] + chosen->v[MODE]) % m->size;
    make_patterns(&m->patterns, m->dtype, (ddl_op)chosen->v[OP], m->o->kind, m->size);
    bool gives = m->o->gives == EVERYBODY || (m->o->gives == ROOT && m->rank == m->root);
    bool gets = m->o->gets == EVERYBODY || (m->o->gets == ROOT && m->rank == m->root);
    int64_t given = gives ? (m->o->gives_all ? m->size : 1) * m->n : 0;
    int64_t got = gets ? (m->o->gets_all ? m->size : 1) * m->n : 0;
    call c = {.count = m->n, .dtype = m->dtype, .op = (ddl_op)chosen->v[OP], .root = m->root};
    /* If a rank only sends or only receives, only broadcast and reduce support in place. */
    bool in_place =
        chosen->v[PLACE] && ((gives && gets) || m->o->run == broadcast || m->o->run == reduce);
    if (in_place)
        run_in_place(m, c, given, got);
    else
        run_out_of_place(m, c, given, got);
    if (m->o->kind == ROUGH)
        compare_ranks(m);
}

/* ---- all cases ---- */

static void *space(size_t n)
{
    void *at = malloc(n);
    CHECK(at, "no memory for %zu bytes", n);
    return at;
}

/* Return true if space i of this rank is from ddl_alloc. Of three ranks, the mixed ones have none,
 * the first and both. */
static bool is_shared(const member *m, int i)
{
    return !strcmp(m->all->where, "shared") || (!strcmp(m->all->where, "mixed") && m->rank % 3 > i);
}

static void make_space(member *m, int i)
{
    void *made = NULL;
    if (is_shared(m, i))
        must(m, ddl_alloc(m->comm->endpoint, m->room, &made));
    m->space[i] = made ? made : space(m->room);
}

static void free_space(member *m, int i)
{
    if (is_shared(m, i))
        ddl_free(m->space[i]);
    else
        free(m->space[i]);
}

/* Between hosts some ranks pass on what is others', which takes memory that the comm keeps. */
static void check_scratch(const member *m)
{
    enum { ROOM = 1 << 16 };
    char *text = space(ROOM);
    size_t length;
    int64_t bytes = -1;
    must(m, ddl_comm_report(m->comm, text, ROOM, &length));
    const char *at = strstr(text, "\"scratch_bytes\": ");
    CHECK(at && sscanf(at, "\"scratch_bytes\": %" SCNd64, &bytes) == 1, "%s", text);
    must(m, ddl_allreduce(m->comm, NULL, &bytes, 1, DDL_I64, DDL_SUM, NULL, NULL));
    bool has_hosts = !strcmp(m->all->where, "hosts") || !strcmp(m->all->where, "interleaved");
    CHECK(!has_hosts || bytes > 0, "%" PRId64 " bytes on all ranks", bytes);
    free(text);
}

static void run_cases(ddl_comm *comm, void *argument)
{
    shared *all = argument;
    member *m = space(sizeof *m);
    memset(m, 0, sizeof *m);
    m->all = all, m->comm = comm;
    m->rank = ddl_comm_rank(comm), m->size = ddl_comm_size(comm);
    size_t room = m->size > LARGEST_RANKS ? LARGE * ELEMENT_MAX : LARGEST * LARGEST_ELEMENT;
    m->room = (size_t)m->size * room + 2 * MARGIN + 1;
    for (int i = 0; i < 2; i++)
        make_space(m, i);
    size_t total = 0;
    for (int o = 0; o < OPERATIONS; o++) {
        size_t n = 0;
        double start = seconds();
        for (size_t k = 0; k < all->cases->n; k++) {
            const combination *c = &all->cases->all[k];
            if (!c->chosen || ranks_of(c) != m->size || c->v[OPERATION] != o)
                continue;
            run_case(m, c);
            n++;
        }
        total += n;
        if (n && m->rank == 0) {
            printf("%-6s %d ranks  %-15s %6zu cases  %.1f s\n", all->where, m->size,
                   operations[o].name, n, seconds() - start);
            fflush(stdout);
            all->done += n;
        }
    }
    bool lends = m->size > 1 && is_shared(m, 0) && is_shared(m, 1) && total >= 100;
    CHECK(!lends || ddl__stream_lent(&comm->engine->ordered), "nothing was lent in %zu cases",
          total);
    if (m->size >= 4 && total >= 100)
        check_scratch(m);
    for (int i = 0; i < 2; i++)
        free_space(m, i);
    free(m);
}

static const struct {
    const char *name;
    uint32_t links;
    bool lends;
} places[] = {{"inproc", DDL_LINK_INPROC, false}, {"shm", DDL_LINK_SHM, false},
              {"tcp", DDL_LINK_TCP, false},       {"shared", DDL_LINK_SHM, true},
              {"mixed", DDL_LINK_SHM, true},      {"pair", LINKS_MIXED, false},
              {"hosts", LINKS_HOSTS, false},      {"interleaved", LINKS_INTERLEAVED, false}};
enum { PLACES = sizeof places / sizeof *places };

/* The filters hold for all sets, so that a failing case of any is found in "full". */
static void choose(cases *all, int argc, char **argv, shared *run, int64_t *segment)
{
    const char *set = argc > 2 && !strchr(argv[2], '=') ? argv[2] : "sample";
    bool full = !strcmp(set, "full"), sample = !strcmp(set, "sample");
    CHECK(full || sample || !strcmp(set, "pairwise"), "%s is no set of cases", set);
    if (!full)
        choose_pairwise(all);
    if (!strcmp(set, "full") || sample)
        choose_each(all, full ? 1 : SAMPLE_STEP);
    size_t i, n;
    for (int a = argv[2] == set ? 3 : 2; a < argc; a++)
        if (sscanf(argv[a], "shard=%zu/%zu", &i, &n) == 2 && i < n)
            keep_shard(all, i, n);
        else if (sscanf(argv[a], "segment=%" SCNd64, segment) == 1)
            run->segment = argv[a];
        else
            CHECK(filtered(all, argv[a]), "%s is no parameter and value of it", argv[a]);
}

int main(int argc, char **argv)
{
    int where = 0;
    while (where < PLACES && (argc < 2 || strcmp(argv[1], places[where].name) != 0))
        where++;
    CHECK(where < PLACES,
          "usage: test_matrix inproc|shm|tcp|shared|mixed|pair|hosts|interleaved "
          "[full|pairwise|sample] [segment=BYTES] [shard=I/N] [PARAMETER=VALUE ...]");
    for (int i = 0; i < OPERATIONS; i++)
        value_names[OPERATION][i] = operations[i].name;
    for (int i = 1; i < DTYPES; i++)
        value_names[DTYPE][i - 1] = types[i].name;
    cases all = every_case();
    /* Short segments make many waves; those of ddl_alloc's buffers are lent from 16 KiB on. */
    int64_t segment = places[where].lends ? LENT_BYTES : SEGMENT_BYTES;
    shared run = {.where = argv[1], .segment = "", .cases = &all};
    choose(&all, argc, argv, &run, &segment);
    ddl_comm_config config = {
        .links = places[where].links, .segment_bytes = segment, .operation_timeout_ms = 120000};
    double start = seconds();
    for (int i = 0; i < values_of(RANKS); i++) {
        bool any = false;
        for (size_t k = 0; k < all.n; k++)
            any |= all.all[k].chosen && all.all[k].v[RANKS] == i;
        if (!any)
            continue;
        pthread_barrier_init(&run.barrier, NULL, (unsigned)rank_counts[i]);
        run_ranks_with(rank_counts[i], config, run_cases, &run);
        pthread_barrier_destroy(&run.barrier);
    }
    printf("%-6s %zu of %zu cases passed  %.1f s\n", argv[1], run.done, all.n, seconds() - start);
    free(all.all);
    return run.done == 0; /* choosing nothing is an error */
}
