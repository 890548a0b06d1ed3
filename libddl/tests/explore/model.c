/* SPDX-License-Identifier: Apache-2.0 */
#include "explore/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time_limits.h"
#include "membership/graph.h"

#define WAITED (DDL__EVIDENCE_LIMIT + 1)

/* Where a member's program is. */
typedef enum phase { RUNNING, SHRINKING, CREATING, RETURNED, FAILED, CLOSED, DEAD } phase;

/* Without padding, which would be in the hash. */
typedef struct message {
    uint64_t set;
    uint32_t silent_ms;
    unsigned char kind; /* ddl__control_msg, or one of the ends below */
    signed char rank, by, leader;
    unsigned char attempt, state;
    bool flag;
    unsigned char unused[5];
} message;

enum { END_LOCAL = 200, END_REMOTE, RESET };

typedef struct channel {
    unsigned short first, length;
    message queue[]; /* QUEUE of them, or in a large comm QUEUE_LARGE */
} channel;

typedef struct node {
    unsigned char phase;
    bool stopped, ended, watches, dirty;
    bool failed;           /* its shrink has */
    unsigned char waits;   /* events WAIT so far */
    unsigned char attempt; /* that it creates, or has returned */
    unsigned char created; /* the attempt whose comm it has; 0: none */
    unsigned char made;    /* the last attempt that it has created */
    uint64_t list;         /* of that attempt */
    uint64_t witnessed;    /* ends that its launcher has reported */
    uint64_t link;         /* members with which it has an open connection */
    int64_t now;
} node;

struct world {
    unsigned char faults;
    bool was_cut, was_expelled, was_stopped, was_late, was_left;
    bool was_hasty;     /* a member has not waited for a message that was on its way */
    uint64_t expelled;  /* members that a program has expelled */
    uint64_t cut[MOST]; /* by host: hosts to which nothing gets through */
    node nodes[];       /* then the channels, by receiver and sender, and the machines */
};

static world *now_world; /* of the ports */
static const model *now_model;
static const char *broken;

static size_t machine_bytes(const model *m)
{
    return (ddl__membership_bytes(m->n) + 7) / 8 * 8;
}

static int queue_length(const model *m)
{
    return m->n <= 8 ? QUEUE : QUEUE_LARGE;
}

static size_t channel_bytes(const model *m)
{
    return (sizeof(channel) + (size_t)queue_length(m) * sizeof(message) + 7) / 8 * 8;
}

static channel *channel_of(const model *m, const world *w, int to, int from)
{
    unsigned char *first = (unsigned char *)(w->nodes + m->n);
    return (channel *)(first + (size_t)(to * m->n + from) * channel_bytes(m));
}

static ddl__membership *machine(const model *m, const world *w, int rank)
{
    unsigned char *first = (unsigned char *)channel_of(m, w, m->n, 0);
    return (ddl__membership *)(first + (size_t)rank * machine_bytes(m));
}

size_t world_bytes(const model *m)
{
    size_t n = (size_t)m->n;
    return sizeof(world) + n * sizeof(node) + n * n * channel_bytes(m) + n * machine_bytes(m);
}

static bool is_cut(const model *m, const world *w, int a, int b)
{
    return w->cut[m->host[a]] >> m->host[b] & 1;
}

/* ----------------------------------------------------------------------------------------- ports
 */

static void push(int to, int from, message sent)
{
    channel *c = channel_of(now_model, now_world, to, from);
    if (now_world->nodes[to].phase >= CLOSED) /* it reads no more */
        return;
    if (c->length == queue_length(now_model)) {
        broken = "a channel of the model is full";
        return;
    }
    c->queue[(c->first + c->length++) % queue_length(now_model)] = sent;
}

static void port_send(void *context, int to, const ddl__member_msg *msg)
{
    int from = (int)(intptr_t)context;
    uint64_t set = 0;
    if (!(now_world->nodes[from].link >> to & 1))
        return;
    if (msg->set)
        memcpy(&set, msg->set, (size_t)(now_model->n + 7) / 8);
    push(to, from,
         (message){.set = set,
                   .silent_ms = msg->silent_ms,
                   .kind = (unsigned char)msg->kind,
                   .rank = (signed char)msg->rank,
                   .by = (signed char)msg->by,
                   .leader = (signed char)msg->leader,
                   .attempt = (unsigned char)msg->attempt,
                   .state = msg->state,
                   .flag = msg->flag});
}

static void port_send_gone(void *context, int to, const int32_t *ranks, int n)
{
    int from = (int)(intptr_t)context;
    const ddl__membership *self = machine(now_model, now_world, from);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < now_model->n; j++) {
            ddl__member_msg gone = {
                .kind = DDL__GONE, .rank = ranks[i], .attempt = self->peers[ranks[i]].joined};
            if (j != from && (to == j || (to < 0 && self->peers[j].state == DDL__ALIVE)))
                port_send(context, j, &gone);
        }
}

static void port_died(void *context, int rank, const ddl__cause *cause)
{
    (void)context, (void)rank, (void)cause;
}

static void port_left(void *context, int rank)
{
    (void)context, (void)rank;
}

static void port_watch(void *context, int rank)
{
    (void)rank;
    now_world->nodes[(intptr_t)context].watches = true;
}

static void port_end(void *context, const ddl__comm_end *end)
{
    (void)end;
    now_world->nodes[(intptr_t)context].ended = true;
}

static void port_continues(void *context, uint32_t attempt)
{
    now_world->nodes[(intptr_t)context].made = (unsigned char)attempt;
}

static bool are_linked_early(const model *m, int a, int b)
{
    return !ddl__is_sparse(m->n) || ddl__are_neighbours(a, b, m->n);
}

static bool port_has_late_pairs(void *context, int rank)
{
    (void)context, (void)rank;
    return ddl__is_sparse(now_model->n);
}

static uint64_t port_network(void *context, int rank)
{
    (void)context;
    return (uint64_t)now_model->host[rank] + 1;
}

static const ddl__member_ports ports = {port_send,      port_send_gone,      port_died,
                                        port_left,      port_watch,          port_end,
                                        port_continues, port_has_late_pairs, port_network};

void world_init(const model *m, world *w)
{
    size_t fixed = sizeof(world) + (size_t)m->n * sizeof(node);
    memset(w, 0, fixed);
    for (int i = 0; i < m->n * m->n; i++)
        *channel_of(m, w, i / m->n, i % m->n) = (channel){0, 0};
    memset(machine(m, w, 0), 0, (size_t)m->n * machine_bytes(m));
    for (int a = 0; a < m->n; a++) {
        ddl__membership *self = machine(m, w, a);
        ddl__membership_init(self, &ports, (void *)(intptr_t)a, a, m->n);
        self->heartbeat = 100 * DDL__MS;
        self->dead = 3 * DDL__S;
        for (int b = 0; b < m->n; b++) {
            bool linked = a != b && are_linked_early(m, a, b);
            self->peers[b].connected = linked;
            self->peers[b].late = a != b && !linked;
            self->n_late += a != b && !linked;
            w->nodes[a].link |= (uint64_t)linked << b;
        }
    }
}

/* ---------------------------------------------------------------------------------------- events
 */

static bool runs(const node *n)
{
    return n->phase < CLOSED && !n->stopped;
}

static bool is_open(const node *n)
{
    return n->phase < CLOSED;
}

/* Whether the creation of a's attempt is in vain: a member of its list is not at that attempt, and
 * has not created it. */
static bool creation_fails(const model *m, const world *w, int a)
{
    const node *self = &w->nodes[a];
    if (ddl__agreement_lost(machine(m, w, a)) >= 0)
        return true;
    for (int b = 0; b < m->n; b++) {
        const node *other = &w->nodes[b];
        if (b == a || !(self->list >> b & 1))
            continue;
        bool there = other->attempt == self->attempt && other->list == self->list &&
                     (other->phase == CREATING || other->created == self->attempt);
        if (!there &&
            (!is_open(other) || other->phase == FAILED || other->attempt > self->attempt ||
             is_cut(m, w, a, b) || (other->attempt == self->attempt && other->phase != CREATING)))
            return true;
    }
    return false;
}

/* Whether all of the list have begun to create it: then it may succeed on each. */
static bool creation_may_succeed(const model *m, const world *w, int a)
{
    const node *self = &w->nodes[a];
    for (int b = 0; b < m->n; b++) {
        const node *other = &w->nodes[b];
        bool there = other->attempt == self->attempt && other->list == self->list &&
                     (other->phase == CREATING || other->created == self->attempt);
        if (self->list >> b & 1 && !there)
            return false;
    }
    return true;
}

/* A reset gets through a cut, since what cuts the hosts apart sends it. */
static bool can_receive(const model *m, const world *w, int to, int from)
{
    const channel *c = channel_of(m, w, to, from);
    return c->length && (!is_cut(m, w, to, from) || c->queue[c->first].kind == RESET);
}

/* True if a message is on its way. */
static bool is_busy(const model *m, const world *w)
{
    for (int i = 0; i < m->n * m->n; i++)
        if (runs(&w->nodes[i / m->n]) && can_receive(m, w, i / m->n, i % m->n))
            return true;
    return false;
}

static bool allows_natural(const model *m, const world *w, event e)
{
    const node *a = &w->nodes[e.a], *b = &w->nodes[e.b];
    const ddl__membership *self = machine(m, w, e.a);
    switch (e.type) {
    case DELIVER: return runs(a) && can_receive(m, w, e.a, e.b);
    case ADVANCE: return runs(a) && a->phase == SHRINKING && a->dirty;
    case SHRINK: return runs(a) && a->phase == RUNNING && a->ended;
    case CREATED: return runs(a) && a->phase == CREATING && creation_may_succeed(m, w, e.a);
    case UNCREATED: return runs(a) && a->phase == CREATING && creation_fails(m, w, e.a);
    case CLOSE: return runs(a) && (a->phase == RETURNED || a->phase == FAILED);
    case GRACE: return runs(a) && a->watches && !a->ended;
    case SILENCE:
        return runs(a) && self->peers[e.b].connected && self->peers[e.b].state == DDL__ALIVE &&
               (b->stopped || is_cut(m, w, e.a, e.b)) && !can_receive(m, w, e.a, e.b);
    case WITNESS: return m->launcher && runs(a) && b->phase == DEAD && !(a->witnessed >> e.b & 1);
    case WAIT:
        return runs(a) && a->phase == SHRINKING && !a->dirty &&
               (a->now < self->evidence_until || a->now < self->disputed_until) && a->waits < 8 &&
               !(w->expelled && is_busy(m, w));
    case DIAL:
        return self->n_late && runs(a) && self->announced && ddl__lowest_alive(self) == e.b &&
               e.b != e.a && !self->peers[e.b].connected && !ddl__leader_is_unneeded(self);
    case MISS:
        return self->n_late && runs(a) && self->announced && ddl__lowest_alive(self) == e.a &&
               self->peers[e.b].late && !self->peers[e.b].connected &&
               self->peers[e.b].state == DDL__ALIVE &&
               (!is_open(b) || b->stopped || is_cut(m, w, e.a, e.b));
    case HEAL:
        return m->heals && e.a < e.b && m->host[e.a] != m->host[e.b] && is_cut(m, w, e.a, e.b);
    case RESUME: return m->heals && a->stopped;
    default: return false;
    }
}

static bool allows_fault(const model *m, const world *w, event e)
{
    const node *a = &w->nodes[e.a];
    if (w->faults >= m->faults || !(m->kinds >> e.type & 1))
        return false;
    switch (e.type) {
    case KILL: return is_open(a);
    case CUT:
        return e.a < e.b && m->host[e.a] != m->host[e.b] && !is_cut(m, w, e.a, e.b) && is_open(a) &&
               is_open(&w->nodes[e.b]) && !w->expelled;
    case STOP: return is_open(a) && !a->stopped;
    case ABORT: return runs(a) && a->phase == RUNNING && !a->ended;
    case EXPEL: /* the program vouches that it does not continue: it must not be out of reach */
        return runs(a) && e.a != e.b && !w->was_cut && !w->was_stopped;
    case LEAVE: return runs(a) && a->phase == RUNNING;
    case LATE: return runs(a) && (a->phase == SHRINKING || a->phase == CREATING);
    default: return false;
    }
}

bool world_allows(const model *m, world *w, event e)
{
    return e.type < NATURAL ? allows_natural(m, w, e) : allows_fault(m, w, e);
}

static bool is_of_pairs(event_type type)
{
    return type == DELIVER || type == SILENCE || type == WITNESS || type == DIAL || type == MISS ||
           type == HEAL || type == CUT || type == EXPEL;
}

int world_events(const model *m, world *w, event *events, int capacity, bool faults)
{
    int n = 0;
    for (int type = 0; type < (faults ? TYPES : NATURAL); type++) {
        if (type >= NATURAL && (w->faults >= m->faults || !(m->kinds >> type & 1)))
            continue;
        for (int a = 0; a < m->n; a++) {
            int pairs = is_of_pairs((event_type)type) ? m->n : 1;
            if (type == DIAL) {
                int leader = ddl__lowest_alive(machine(m, w, a));
                event e = {DIAL, (unsigned char)a, (unsigned char)leader, 0};
                if (n < capacity && allows_natural(m, w, e))
                    events[n++] = e;
                continue;
            }
            for (int b = 0; b < pairs; b++) {
                event e = {(unsigned char)type, (unsigned char)a, (unsigned char)b, 0};
                if ((pairs > 1 && a == b) || !world_allows(m, w, e))
                    continue;
                for (unsigned char flag = 0; flag < (type == KILL || type == CUT ? 2 : 1); flag++)
                    if (n < capacity) {
                        e.flag = flag;
                        events[n++] = e;
                    }
            }
        }
    }
    return n;
}

static void deliver(const model *m, world *w, int to, int from)
{
    ddl__membership *self = machine(m, w, to);
    channel *c = channel_of(m, w, to, from);
    message msg = c->queue[c->first];
    node *n = &w->nodes[to];
    c->first = (unsigned short)((c->first + 1) % queue_length(m));
    c->length--;
    if (msg.kind == END_LOCAL || msg.kind == END_REMOTE || msg.kind == RESET) {
        bool is_new = self->peers[from].is_new;
        bool confirmed = self->peers[from].confirmed || self->peers[from].confirmed_at;
        n->link &= ~(UINT64_C(1) << from);
        if (!is_new || confirmed)
            ddl__member_ended(self, from, msg.kind == END_LOCAL, msg.kind == RESET, n->now);
        self->peers[from].connected = false;
        return;
    }
    self->peers[from].silent_ns = 0;
    self->peers[from].is_new = false;
    if (msg.kind == DDL__DEAD) {
        n->ended = true;
        return;
    }
    ddl__member_msg whole = {.kind = (ddl__control_msg)msg.kind,
                             .rank = msg.rank,
                             .by = msg.by,
                             .attempt = msg.attempt,
                             .leader = msg.leader,
                             .silent_ms = msg.silent_ms,
                             .state = msg.state,
                             .flag = msg.flag,
                             .set = (const unsigned char *)&msg.set,
                             .text = ""};
    ddl__member_receive(self, from, &whole, n->now);
}

/* The member's connections end, after what it has sent. */
static void close_all(const model *m, world *w, int rank, bool lossy)
{
    node *n = &w->nodes[rank];
    for (int b = 0; b < m->n; b++) {
        channel *in = channel_of(m, w, rank, b), *out = channel_of(m, w, b, rank);
        in->length = 0;
        if (!(n->link >> b & 1))
            continue;
        bool local = m->host[rank] == m->host[b];
        if (lossy && !local)
            out->length = 0;
        push(b, rank, (message){.kind = local ? END_LOCAL : END_REMOTE});
    }
    /* What it knew is of no influence any more, and would be in the hash. */
    n->ended = n->watches = n->dirty = n->stopped = false;
    n->waits = 0;
    n->witnessed = n->link = 0;
    n->now = 0;
    ddl__membership *self = machine(m, w, rank);
    memset(self, 0, machine_bytes(m));
    ddl__membership_init(self, &ports, (void *)(intptr_t)rank, rank, m->n);
}

static const char *check_return(const model *m, const world *w, int i);

static void advance(const model *m, world *w, int rank)
{
    ddl__membership *self = machine(m, w, rank);
    node *n = &w->nodes[rank];
    n->dirty = false;
    switch (ddl__agreement_advance(self, n->now)) {
    case DDL__STEP_WAIT: break;
    case DDL__STEP_RETURN:
        n->phase = RETURNED;
        broken = check_return(m, w, rank);
        break;
    case DDL__STEP_FAIL:
        n->phase = FAILED;
        n->failed = true;
        n->created = 0;
        break;
    case DDL__STEP_CREATE:
        n->phase = CREATING;
        n->created = 0; /* it abandons an earlier one */
        n->attempt = (unsigned char)self->attempt;
        n->list = 0;
        for (int b = 0; b < m->n; b++)
            n->list |= (uint64_t)ddl__agreement_has(self, b) << b;
        break;
    }
}

static void end_creation(const model *m, world *w, int rank, bool created)
{
    node *n = &w->nodes[rank];
    n->phase = SHRINKING;
    n->created = created ? n->attempt : 0;
    if (ddl__agreement_created(machine(m, w, rank), created, false) == DDL__STEP_FAIL)
        n->phase = FAILED;
    n->dirty = true;
}

static bool nobody_answers(const void *context, int rank)
{
    (void)context, (void)rank;
    return false;
}

static void dial(const model *m, world *w, int from, int leader)
{
    ddl__membership *self = machine(m, w, from), *other = machine(m, w, leader);
    node *a = &w->nodes[from], *b = &w->nodes[leader];
    ddl__dialed result = DDL__DIALED_SILENT;
    if (!is_cut(m, w, from, leader) && b->stopped)
        result = DDL__DIALED_UNANSWERED;
    else if (!is_cut(m, w, from, leader) && b->phase == DEAD)
        result = DDL__DIALED_REFUSED;
    else if (!is_cut(m, w, from, leader) && b->phase == CLOSED)
        result = DDL__DIALED_LEFT;
    else if (!is_cut(m, w, from, leader)) {
        ddl_status status = ddl__leader_answer(other, from);
        if (status == DDL_EREFUSED)
            return;
        if (status == DDL_OK) {
            a->link |= UINT64_C(1) << leader;
            b->link |= UINT64_C(1) << from;
            other->peers[from].is_new = true;
            ddl__member_connected(other, from);
            ddl__member_connected(self, leader);
            ddl__leader_connected(self, leader);
            b->dirty = true;
            return;
        }
        result = status == DDL_EPEER ? DDL__DIALED_LOST : DDL__DIALED_LEFT_OUT;
    }
    ddl__leader_dialed(self, leader, result, INT64_MAX, "", nobody_answers, NULL, a->now);
}

static void cut(const model *m, world *w, int a, int b, bool reset)
{
    w->was_cut = true;
    for (int i = 0; i < m->n; i++)
        for (int j = 0; j < m->n && reset; j++)
            if (m->host[i] == m->host[a] && m->host[j] == m->host[b] &&
                w->nodes[i].link >> j & w->nodes[j].link >> i & 1) {
                channel_of(m, w, i, j)->length = channel_of(m, w, j, i)->length = 0;
                w->nodes[i].link &= ~(UINT64_C(1) << j);
                w->nodes[j].link &= ~(UINT64_C(1) << i);
                push(i, j, (message){.kind = RESET});
                push(j, i, (message){.kind = RESET});
            }
    /* After a reset no connection is left that could be cut: nothing but new ones is refused. */
    w->cut[m->host[a]] |= UINT64_C(1) << m->host[b];
    w->cut[m->host[b]] |= UINT64_C(1) << m->host[a];
}

static void leave(const model *m, world *w, int rank)
{
    ddl__membership *self = machine(m, w, rank);
    ddl__gossip_send_gone(self);
    for (int b = 0; b < m->n; b++)
        if (b != rank && w->nodes[rank].link >> b & 1)
            port_send((void *)(intptr_t)rank, b, &(ddl__member_msg){.kind = DDL__LEAVE});
    w->nodes[rank].phase = CLOSED;
    close_all(m, w, rank, false);
}

static void happen(const model *m, world *w, event e)
{
    ddl__membership *self = machine(m, w, e.a);
    node *a = &w->nodes[e.a];
    unsigned char own = m->host[e.a], other = m->host[e.b];
    switch ((event_type)e.type) {
    case DELIVER: deliver(m, w, e.a, e.b); break;
    case ADVANCE: advance(m, w, e.a); return;
    case SHRINK:
        ddl__agreement_may_begin(self, true);
        ddl__agreement_begin(self, DEADLINE_S * DDL__S);
        a->phase = SHRINKING;
        break;
    case CREATED: end_creation(m, w, e.a, true); break;
    case UNCREATED: end_creation(m, w, e.a, false); break;
    case CLOSE: leave(m, w, e.a); return;
    case GRACE: a->ended = true; break;
    case SILENCE: ddl__member_check_silence(self, e.b, self->dead, 0, a->now); break;
    case WITNESS:
        a->witnessed |= UINT64_C(1) << e.b;
        ddl__member_launcher_confirm(self, e.b, w->nodes[e.b].made, a->now);
        break;
    case WAIT:
        w->was_hasty = w->was_hasty || is_busy(m, w);
        a->waits++;
        a->now += WAITED;
        break;
    case DIAL: dial(m, w, e.a, e.b); break;
    case MISS: ddl__leader_check_silence(self, e.b, INT64_MAX / 4, a->now); break;
    case HEAL:
        w->cut[own] &= ~(UINT64_C(1) << other);
        w->cut[other] &= ~(UINT64_C(1) << own);
        return;
    case RESUME: a->stopped = false; return;
    case KILL:
        a->phase = DEAD;
        a->stopped = false;
        close_all(m, w, e.a, e.flag);
        return;
    case CUT: cut(m, w, e.a, e.b, e.flag); return;
    case STOP:
        a->stopped = true;
        w->was_stopped = true;
        return;
    case ABORT: a->ended = true; break;
    case EXPEL:
        ddl__member_expel(self, e.b, "", a->now);
        w->was_expelled = true;
        w->expelled |= (uint64_t)(w->nodes[e.b].phase != DEAD) << e.b;
        break;
    case LEAVE:
        w->was_left = true;
        leave(m, w, e.a);
        return;
    case LATE:
        w->was_late = true;
        a->now = DEADLINE_S * DDL__S;
        break;
    case TYPES: break;
    }
    a->dirty = true;
}

/* ------------------------------------------------------------------------------------ invariants
 */

/* True if this member has returned a comm that all members of its list that run still have. One
 * that a program expels, although it is alive, may have returned before, in a comm that has failed
 * then.
 */
static bool continues(const model *m, const world *w, int i)
{
    const node *n = &w->nodes[i];
    if ((n->phase != RETURNED && n->phase != CLOSED) || !n->created || w->expelled >> i & 1)
        return false;
    for (int b = 0; b < m->n; b++)
        if (n->list >> b & 1 && w->nodes[b].phase != DEAD && w->nodes[b].created != n->attempt)
            return false;
    return true;
}

/* S1: no two members that run continue in different comms. */
static const char *check_one_group(const model *m, const world *w)
{
    const node *first = NULL;
    for (int i = 0; i < m->n; i++) {
        const node *n = &w->nodes[i];
        if (!continues(m, w, i))
            continue;
        if (first && (first->attempt != n->attempt || first->list != n->list))
            return "S1: two groups continue";
        first = n;
    }
    return NULL;
}

/* A member returns. S2: it is in its list. S3: all others of the list that run have created the
 * comm, unless their own limit has run out, or a program has expelled them. */
static const char *check_return(const model *m, const world *w, int i)
{
    const node *n = &w->nodes[i];
    if (!(n->list >> i & 1))
        return "S2: a member returns a comm without itself";
    for (int b = 0; b < m->n; b++)
        if (n->list >> b & 1 && w->nodes[b].phase != DEAD && !w->nodes[b].failed &&
            !((w->expelled >> b | w->expelled >> i) & 1) && w->nodes[b].made < n->attempt)
            return "S3: a member returns a comm that another one of it has not created";
    return NULL;
}

const char *world_apply(const model *m, world *w, event e)
{
    now_world = w;
    now_model = m;
    broken = NULL;
    w->faults = (unsigned char)(w->faults + (e.type >= NATURAL));
    happen(m, w, e);
    for (int i = 0; i < m->n; i++) {
        ddl__membership *self = machine(m, w, i);
        if (w->nodes[i].ended && is_open(&w->nodes[i]) && !self->announced)
            ddl__membership_announce(self, false);
        self->n_deaths = 0; /* of no influence, and out of the hash */
        self->detection_ns = 0;
        for (int b = 0; b < m->n; b++)
            self->peers[b].silent_ns = 0;
    }
    return broken ? broken : check_one_group(m, w);
}

/* L1: no member waits. L2: a failure has reached all. L3: where only processes ended, all survivors
 * continue in one comm, if they are most of the members. */
const char *world_check_end(const model *m, world *w)
{
    bool disturbed = w->was_cut || w->was_expelled || w->was_stopped || w->was_late ||
                     w->was_left || w->was_hasty;
    int alive = 0, open = 0, ended = 0, returned = 0;
    for (int i = 0; i < m->n; i++) {
        const node *n = &w->nodes[i];
        open += is_open(n) && !n->stopped;
        ended += (is_open(n) && n->ended) || n->phase == CLOSED;
        alive += n->phase != DEAD;
        returned += n->created && (n->phase == RETURNED || n->phase == CLOSED);
        if (runs(n) && (n->phase == SHRINKING || n->phase == CREATING))
            return "L1: a member waits for its limit";
    }
    if (!w->was_cut && !w->was_left && ended && ended < alive && open == alive)
        return "L2: a failure has not reached all members";
    if (!disturbed && ended && returned < alive && 2 * alive > m->n)
        return "L3: a survivor of a crash does not continue";
    return NULL;
}

/* ----------------------------------------------------------------------------------------- views
 */

member_view world_view(const model *m, const world *w, int rank)
{
    const node *n = &w->nodes[rank];
    const ddl__membership *self = machine(m, w, rank);
    member_view view = {.ended = n->ended, .creates = n->phase == CREATING};
    view.phase = n->phase == RUNNING                              ? IS_RUNNING
                 : n->phase == SHRINKING || n->phase == CREATING  ? IS_SHRINKING
                 : n->phase == DEAD                               ? HAS_ENDED
                 : n->failed || n->phase == FAILED || !n->created ? HAS_FAILED
                                                                  : HAS_RETURNED;
    view.may_create = view.creates && creation_may_succeed(m, w, rank);
    view.list = view.creates || view.phase == HAS_RETURNED ? n->list : 0;
    for (int b = 0; b < m->n; b++)
        view.states[b] = self->peers[b].state;
    return view;
}

int world_next_kind(const model *m, const world *w, int to, int from)
{
    const channel *c = channel_of(m, w, to, from);
    int kind = c->length ? c->queue[c->first].kind : 0;
    return kind >= END_LOCAL ? END_OF_CONNECTION : kind;
}

/* -------------------------------------------------------------------------------------- printing
 */

uint64_t world_hash(const model *m, const world *w)
{
    size_t fixed = sizeof(world) + (size_t)m->n * sizeof(node);
    uint64_t h = 0x9e3779b97f4a7c15;
    const uint64_t *at = (const uint64_t *)w;
#define MIX(x) h = (h ^ (x)) * 0xff51afd7ed558ccd, h ^= h >> 32
    for (size_t i = 0; i < fixed / 8; i++)
        MIX(at[i]);
    for (int i = 0; i < m->n * m->n; i++) {
        const channel *c = channel_of(m, w, i / m->n, i % m->n);
        MIX(c->length);
        for (int j = 0; j < c->length; j++) {
            uint64_t words[sizeof(message) / 8];
            memcpy(words, &c->queue[(c->first + j) % queue_length(m)], sizeof words);
            for (size_t k = 0; k < sizeof words / 8; k++)
                MIX(words[k]);
        }
    }
    at = (const uint64_t *)machine(m, w, 0);
    for (size_t i = 0; i < (size_t)m->n * machine_bytes(m) / 8; i++)
        MIX(at[i]);
    return h;
}

static const char *const names[TYPES] = {"receives from",
                                         "advances",
                                         "shrinks",
                                         "creates the comm",
                                         "cannot create the comm",
                                         "closes",
                                         "ends after the grace",
                                         "finds silent",
                                         "hears from the launcher that there is no",
                                         "has waited",
                                         "dials",
                                         "misses",
                                         "is connected again with",
                                         "resumes",
                                         "is killed",
                                         "is cut from",
                                         "is stopped",
                                         "aborts",
                                         "expels",
                                         "leaves",
                                         "is late"};

void event_print(event e)
{
    printf("  %d %s", e.a, names[e.type]);
    if (is_of_pairs((event_type)e.type))
        printf(" %d", e.b);
    printf("%s\n", !e.flag ? "" : e.type == CUT ? ", by resets" : ", data is lost");
}

void world_print(const model *m, world *w)
{
    static const char *const phases[] = {"running", "shrinking", "creating", "returned",
                                         "failed",  "closed",    "dead"};
    static const char *const states[] = {"alive", "left", "killed", "disconnected", "silent"};
    for (int i = 0; i < m->n; i++) {
        const node *n = &w->nodes[i];
        const ddl__membership *self = machine(m, w, i);
        printf("  %d (host %d): %s%s, attempt %d, list %llx;", i, m->host[i], phases[n->phase],
               n->stopped ? ", stopped" : "", n->attempt, (unsigned long long)n->list);
        for (int b = 0; b < m->n; b++)
            if (b != i && self->peers[b].state)
                printf(" %d %s%s", b, states[self->peers[b].state],
                       self->peers[b].may_continue ? " (may continue)" : "");
        printf("\n");
    }
}
