/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the model, and the effects of events. */
#include "explore/model.h"

#include "explore/world.h"

enum { SMALL = 8, CELLS_SMALL = 24, CELLS_LARGE = 65535, MOST_ATTEMPTS = 100 };

static world *now_world; /* the world that the ports act on */
static const model *now_model;
static const char *broken;
static bool has_lost; /* the member has declared another one dead, or as having left */

/* Replaces the library's function by --wrap, so that few members can be a sparse comm. */
bool __wrap_ddl__is_sparse(int size);
bool __real_ddl__is_sparse(int size);
bool __wrap_ddl__is_sparse(int size)
{
    return (now_model && now_model->sparse) || __real_ddl__is_sparse(size);
}

static int n_cells(const model *m)
{
    return m->n <= SMALL ? m->n * m->n * CELLS_SMALL : CELLS_LARGE;
}

static size_t machine_bytes(const model *m)
{
    return (ddl__membership_bytes(m->n) + 7) / 8 * 8;
}

/* The size of the world without the cells. */
static size_t fixed_bytes(const model *m)
{
    world w = {.machine_bytes = (uint32_t)machine_bytes(m)};
    return (size_t)((unsigned char *)cells(m, &w) - (unsigned char *)&w);
}

size_t world_bytes(const model *m)
{
    return fixed_bytes(m) + (size_t)n_cells(m) * sizeof(message);
}

void world_copy(const model *m, world *to, const world *from)
{
    size_t fixed = (size_t)((unsigned char *)cells(m, from) - (const unsigned char *)from);
    memcpy(to, from, fixed + from->used * sizeof(message));
}

/* --------------------------------------------------------------------------------------- channels
 */

static void push(int to, int from, message sent)
{
    world *w = now_world;
    message *all = cells(now_model, w);
    channel *c = channel_of(now_model, w, to, from);
    node *n = &w->nodes[to];
    if (n->phase >= CLOSED) /* the member no longer reads */
        return;
    uint16_t cell = w->free;
    if (cell) {
        w->free = all[cell].next;
    } else if (w->used < n_cells(now_model)) {
        cell = w->used++;
    } else {
        broken = "the model has no room for a message";
        return;
    }
    all[cell] = sent;
    if (n->pending >> from & 1)
        all[c->last].next = cell;
    else
        c->first = cell;
    c->last = cell;
    n->pending |= bit(from);
    w->stale |= bit(to);
}

void drop_first(const model *m, world *w, int to, int from)
{
    message *all = cells(m, w);
    channel *c = channel_of(m, w, to, from);
    uint16_t cell = c->first;
    c->first = all[cell].next;
    if (!c->first)
        w->nodes[to].pending &= ~bit(from);
    all[cell].next = w->free;
    w->free = cell;
    w->stale |= bit(to);
}

static void empty(const model *m, world *w, int to, int from)
{
    while (w->nodes[to].pending >> from & 1)
        drop_first(m, w, to, from);
}

/* ----------------------------------------------------------------------------------------- ports
 */

static void port_send(void *context, int to, const ddl__member_msg *msg)
{
    int from = (int)(intptr_t)context;
    uint64_t set = 0;
    if (!(now_world->nodes[from].link >> to & 1))
        return;
    for (int i = 0; msg->set && i < now_model->n; i += 8)
        set |= (uint64_t)msg->set[i / 8] << i;
    push(to, from,
         (message){.set = set,
                   .kind = (unsigned char)msg->kind,
                   .rank = (signed char)msg->rank,
                   .by = (signed char)msg->by,
                   .leader = (unsigned char)msg->leader,
                   .attempt = (unsigned char)msg->attempt,
                   .state = msg->state & 0x7f,
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
    has_lost = true;
}

static void port_left(void *context, int rank)
{
    (void)context, (void)rank;
    has_lost = true;
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
    return !__wrap_ddl__is_sparse(m->n) || ddl__are_neighbours(a, b, m->n);
}

static bool port_has_late_pairs(void *context, int rank)
{
    (void)context, (void)rank;
    return __wrap_ddl__is_sparse(now_model->n);
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
    now_model = m;
    memset(w, 0, fixed_bytes(m));
    w->machine_bytes = (uint32_t)machine_bytes(m);
    w->used = 1;
    w->stale = w->touched = w->shared = UINT64_MAX;
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

static void deliver(const model *m, world *w, int to, int from)
{
    ddl__membership *self = machine(m, w, to);
    node *n = &w->nodes[to];
    message msg = cells(m, w)[channel_of(m, w, to, from)->first];
    drop_first(m, w, to, from);
    if (msg.kind == END_LOCAL || msg.kind == END_REMOTE || msg.kind == RESET) {
        bool is_new = self->peers[from].is_new;
        bool confirmed = self->peers[from].confirmed || self->peers[from].confirmed_at;
        n->link &= ~bit(from);
        if (!is_new || confirmed)
            ddl__member_ended(self, from, msg.kind == END_LOCAL, msg.kind == RESET, now_of(n));
        self->peers[from].connected = false;
        return;
    }
    self->peers[from].is_new = false;
    if (msg.kind == DDL__DEAD) {
        n->ended = true;
        return;
    }
    unsigned char set[8];
    for (int i = 0; i < 8; i++)
        set[i] = (unsigned char)(msg.set >> 8 * i);
    ddl__member_msg whole = {.kind = (ddl__control_msg)msg.kind,
                             .rank = msg.rank,
                             .by = msg.by,
                             .attempt = msg.attempt,
                             .leader = msg.leader,
                             .state = msg.state,
                             .flag = msg.flag,
                             .set = set,
                             .text = ""};
    ddl__member_receive(self, from, &whole, now_of(n));
}

/* End the member's connections, after the messages that it has sent. */
static void close_all(const model *m, world *w, int rank, bool lossy)
{
    node *n = &w->nodes[rank];
    for (int b = 0; b < m->n; b++) {
        empty(m, w, rank, b);
        if (!(n->link >> b & 1))
            continue;
        bool local = m->host[rank] == m->host[b];
        if (lossy && !local)
            empty(m, w, b, rank);
        push(b, rank, (message){.kind = local ? END_LOCAL : END_REMOTE});
    }
    /* Clear the machine: it no longer has any effect, but would be in the hash. */
    n->ended = n->watches = n->dirty = n->stopped = n->late = false;
    n->witnessed = n->link = 0;
    w->stopped &= ~bit(rank);
    w->closed |= bit(rank);
    ddl__membership *self = machine(m, w, rank);
    memset(self, 0, w->machine_bytes);
    ddl__membership_init(self, &ports, (void *)(intptr_t)rank, rank, m->n);
}

static void advance(const model *m, world *w, int rank)
{
    ddl__membership *self = machine(m, w, rank);
    node *n = &w->nodes[rank];
    uint64_t followers = find_followers(m, self);
    n->dirty = false;
    switch (ddl__agreement_advance(self, now_of(n))) {
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
        n->created = 0; /* abandon an earlier comm */
        n->attempt = (unsigned char)self->attempt;
        if (self->attempt > MOST_ATTEMPTS)
            broken = "L1: the attempts do not end";
        n->list = 0;
        for (int b = 0; b < m->n; b++)
            n->list |= (uint64_t)ddl__agreement_has(self, b) << b;
        if (ddl__lowest_alive(self) == rank && !broken)
            broken = check_verdict(m, self, followers, n->list);
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
    if (!is_cut(w, from, leader) && b->stopped)
        result = DDL__DIALED_UNANSWERED;
    else if (!is_cut(w, from, leader) && b->phase == DEAD)
        result = DDL__DIALED_REFUSED;
    else if (!is_cut(w, from, leader) && b->phase == CLOSED)
        result = DDL__DIALED_LEFT;
    else if (!is_cut(w, from, leader)) {
        ddl_status status = ddl__leader_answer(other, from);
        if (status == DDL_EREFUSED)
            return;
        if (status == DDL_OK) {
            a->link |= bit(leader);
            b->link |= bit(from);
            other->peers[from].is_new = true;
            ddl__member_connected(other, from);
            ddl__member_connected(self, leader);
            ddl__leader_connected(self, leader);
            b->dirty = true;
            return;
        }
        result = status == DDL_EPEER ? DDL__DIALED_LOST : DDL__DIALED_LEFT_OUT;
    }
    ddl__leader_dialed(self, leader, result, INT64_MAX, "", nobody_answers, NULL, now_of(a));
}

static void set_cut(const model *m, world *w, int a, int b, bool cut)
{
    for (int i = 0; i < m->n; i++)
        for (int j = 0; j < m->n; j++)
            if ((m->host[i] == m->host[a] && m->host[j] == m->host[b]) ||
                (m->host[i] == m->host[b] && m->host[j] == m->host[a]))
                w->nodes[i].cut = (w->nodes[i].cut & ~bit(j)) | (uint64_t)cut << j;
}

/* True if the member's wait for news has run out. */
static bool has_waited(const ddl__membership *self)
{
    return self->disputed_until == 1; /* see let_limits_run_out */
}

static void cut(const model *m, world *w, int a, int b, bool reset)
{
    w->was_cut = true;
    for (int i = 0; i < m->n; i++)
        if (w->nodes[i].attempt || w->nodes[i].failed || has_waited(machine(m, w, i)))
            w->was_hasty = true; /* a leader has decided before, or is about to */
    w->shared &= bit(m->host[a]) | bit(m->host[b]);
    for (int i = 0; i < m->n; i++)
        for (int j = 0; j < m->n && reset; j++)
            if (m->host[i] == m->host[a] && m->host[j] == m->host[b] &&
                w->nodes[i].link >> j & w->nodes[j].link >> i & 1) {
                empty(m, w, i, j);
                empty(m, w, j, i);
                w->nodes[i].link &= ~bit(j);
                w->nodes[j].link &= ~bit(i);
                push(i, j, (message){.kind = RESET});
                push(j, i, (message){.kind = RESET});
            }
    /* After a reset there is no connection to cut; only new connections are refused. */
    set_cut(m, w, a, b, true);
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

/* Let all limits of the member run out, except the limit of its shrink. */
static void let_limits_run_out(ddl__membership *self)
{
    self->evidence_until = 0;
    self->disputed_until = self->disputed_until ? 1 : 0;
}

static void happen(const model *m, world *w, event e)
{
    ddl__membership *self = machine(m, w, e.a);
    node *a = &w->nodes[e.a];
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
    case SILENCE:
        ddl__member_check_silence(self, e.b, self->dead, 0, now_of(a));
        self->peers[e.b].silent_ns = 0;
        break;
    case WITNESS:
        a->witnessed |= bit(e.b);
        ddl__member_launcher_confirm(self, e.b, w->nodes[e.b].made, now_of(a));
        break;
    case BELIEVE: ddl__member_check_confirmed(self, e.b, now_of(a)); break;
    case WAIT:
        w->was_hasty = w->was_hasty || is_busy(m, w) || (w->was_cut && is_silence_unreported(m, w));
        let_limits_run_out(self);
        break;
    case DIAL: dial(m, w, e.a, e.b); break;
    case MISS:
        ddl__leader_check_silence(self, e.b, INT64_MAX / 4, now_of(a));
        self->peers[e.b].silent_ns = 0;
        break;
    case UNREACHED: ddl__member_cannot_connect(self, e.b, false, now_of(a)); break;
    case HEAL:
        w->was_hasty = true;
        set_cut(m, w, e.a, e.b, false);
        return;
    case RESUME:
        a->stopped = false;
        w->stopped &= ~bit(e.a);
        return;
    case KILL:
        a->phase = DEAD;
        w->dead |= bit(e.a);
        close_all(m, w, e.a, e.flag);
        return;
    case CUT: cut(m, w, e.a, e.b, e.flag); return;
    case STOP:
        a->stopped = true;
        w->stopped |= bit(e.a);
        w->was_stopped = true;
        return;
    case ABORT: a->ended = true; break;
    case EXPEL:
        ddl__member_expel(self, e.b, "", now_of(a));
        w->was_expelled = true;
        w->expelled |= (uint64_t)(w->nodes[e.b].phase != DEAD) << e.b;
        break;
    case LEAVE:
        w->was_left = true;
        leave(m, w, e.a);
        return;
    case LATE:
        w->was_late = true;
        a->late = true;
        let_limits_run_out(self);
        break;
    case TYPES: break;
    }
    a->dirty = true;
}

/* Update the member after its machine has handled an event. */
static void finish(const model *m, world *w, int rank)
{
    ddl__membership *self = machine(m, w, rank);
    w->stale |= bit(rank);
    w->touched |= bit(rank);
    if (w->nodes[rank].ended && is_open(&w->nodes[rank]) && !self->announced)
        ddl__membership_announce(self, false);
    self->n_deaths = 0; /* has no effect; must not change the hash */
    self->detection_ns = 0;
}

/* Only a member's own events change it. The parts of it on which other members' events depend
 * change rarely. */
const char *world_apply(const model *m, world *w, event e)
{
    const node before = w->nodes[e.a], *after = &w->nodes[e.a];
    uint64_t expelled = w->expelled;
    now_world = w;
    now_model = m;
    broken = NULL;
    has_lost = false;
    w->faults = (unsigned char)(w->faults + (e.type >= NATURAL));
    happen(m, w, e);
    finish(m, w, e.a);
    if (e.type == DIAL)
        finish(m, w, e.b);
    bool is_public = before.phase != after->phase || before.attempt != after->attempt ||
                     before.created != after->created || before.list != after->list ||
                     w->expelled != expelled;
    if (w->expelled) /* then waiting requires that no message is on its way */
        w->stale |= w->waiting;
    if (is_public || before.stopped != after->stopped || e.type == CUT || e.type == HEAL)
        w->stale = UINT64_MAX;
    if (has_lost || e.type == DIAL) /* a leader waits for members that may dial it */
        w->stale |= w->leading;
    if (e.type >= NATURAL || e.type == HEAL)
        w->touched = UINT64_MAX;
    return broken || !is_public ? broken : check_one_group(m, w);
}
