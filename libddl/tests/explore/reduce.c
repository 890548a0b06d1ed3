/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes: the normal form of a state, which reduces the states of the exhaustive search.
 *
 * Two states with the same normal form have the same future, as far as the invariants are
 * concerned. All reductions are for comms that are not sparse. `explore check` compares, at each
 * step of random schedules, every event after a state with the same event after the state's normal
 * form. The two results must have the same normal form, or the event alone must lead to the normal
 * form of the state.
 *
 * 1. Data that no event will read is set to zero (simplify). An example is the agreement's state of
 *    a member whose shrink has returned or failed: it only forwards messages, and closes. Of a
 *    limit, only one bit remains: whether it has run out.
 * 2. A message that will be ignored whenever it arrives is dropped (is_ignored). States of members
 *    never return to alive, and attempts only grow, so a message ignored now is ignored later, too.
 * 3. A step of the shrinking thread that changes nothing and sends nothing counts as done.
 * 4. An event happens at once (choose_eager) if it commutes with all other events, affects no
 *    invariant, and cannot be prevented by another event: prioritised confluent steps. Faults can
 *    prevent events, so this starts after the last fault. There are two such events: a program
 *    shrinks its comm, and a member that is not in the agreement at the moment receives a message
 *    that it only records. Only ADVANCE reads the record, and it is not possible in these phases.
 *    After an expulsion, members can declare another one dead at any time, so there are none.
 *
 * The normal form may deliver a message before WAIT that the state delivers after it. Then only the
 * state excuses the members from L3 and L4 (was_hasty). The stricter of the two is explored.
 *
 * The numbering of the hosts is the only usable symmetry: the rules of the agreement order the
 * members by rank (the leader, half with the lowest, the higher of two with as many disputes). */
#include "explore/world.h"

/* ---------------------------------------------------------------------------------- 1: dead state
 */

static bool is_finished(const node *n)
{
    return n->phase == RETURNED || n->phase == FAILED;
}

static void clear_set(const ddl__membership *self, unsigned char *set)
{
    memset(set, 0, self->set_bytes);
}

static void clear_vouchers(ddl__membership *self, int rank)
{
    self->peers[rank].vouched = 0;
    clear_set(self, ddl__vouchers(self, rank));
}

/* The lowest attempt whose messages still matter. */
static uint32_t next_attempt(const ddl__membership *self)
{
    return self->phase == DDL__AGREEMENT_GATHERING ? self->gathering : self->attempt + 1;
}

/* Simplify the agreement's state of a member whose agreement continues. */
static void simplify_agreement(ddl__membership *self, int b)
{
    ddl__peer *peer = &self->peers[b];
    bool in_creation =
        self->phase == DDL__AGREEMENT_CREATING || self->phase == DDL__AGREEMENT_AWAITING;
    bool alive = peer->state == DDL__ALIVE;
    bool is_read = in_creation && ddl__agreement_has(self, b) && peer->joined >= self->attempt;
    bool is_old = peer->joined < next_attempt(self);
    if (peer->vouched < next_attempt(self))
        clear_vouchers(self, b);
    if (peer->vouched_at < next_attempt(self))
        peer->vouched_at = 0;
    if (!peer->vouched_at)
        peer->vouched_to = 0;
    if (!alive || is_old)
        peer->leader = 0;
    if (is_old && !is_read) {
        clear_set(self, ddl__accused(self, b));
        peer->joined = peer->joined && peer->state != DDL__KILLED;
    }
    if (!alive || peer->decided < next_attempt(self)) {
        peer->decided = 0;
        clear_set(self, ddl__verdict(self, b));
    }
}

static void simplify_finished(const model *m, ddl__membership *self, int a, int b)
{
    ddl__peer *peer = &self->peers[b];
    if (peer->state >= DDL__KILLED)
        peer->state = DDL__SILENT;
    clear_set(self, ddl__accused(self, b));
    clear_set(self, ddl__verdict(self, b));
    peer->joined = peer->decided = peer->committed = 0;
    peer->leader = 0;
    clear_vouchers(self, b);
    peer->vouched_at = 0;
    peer->vouched_to = 0;
    peer->may_continue = peer->resigned = false;
    if (m->host[a] != m->host[b]) /* only used in CONFIRM, for members of its host */
        peer->done = 0;
}

static void simplify_machine(const model *m, const world *w, int a, ddl__membership *self)
{
    const node *n = &w->nodes[a];
    ddl__peer *own = &self->peers[a];
    bool finished = is_finished(n);
    clear_set(self, ddl__scratch_set(self));
    self->why = 0;
    self->late_rank = 0;
    if (now_of(n) >= self->evidence_until || finished)
        self->evidence_until = 0;
    if (self->phase != DDL__AGREEMENT_GATHERING)
        self->disputed_until = 0;
    else if (self->disputed_until && now_of(n) >= self->disputed_until)
        self->disputed_until = 1;
    if (finished) {
        self->deadline = 0;
        self->gathering = self->attempt = 0;
    }
    if (self->phase != DDL__AGREEMENT_GATHERING)
        self->has_sent = false;
    if (!self->has_sent) {
        own->joined = 0;
        clear_set(self, ddl__accused(self, a));
    }
    own->leader = 0;
    own->done = own->done && !finished;
    if (self->phase != DDL__AGREEMENT_CREATING && self->phase != DDL__AGREEMENT_AWAITING)
        clear_set(self, ddl__verdict(self, a));
    for (int b = 0; b < m->n; b++) {
        ddl__peer *peer = &self->peers[b];
        peer->cause = 0;
        if (b == a)
            continue;
        if (finished || (peer->state != DDL__ALIVE && peer->state != DDL__DISCONNECTED)) {
            peer->confirmed = false;
            peer->confirmed_attempt = 0;
        }
        if (finished)
            simplify_finished(m, self, a, b);
        else
            simplify_agreement(self, b);
    }
}

static void simplify_node(const model *m, const world *w, int a)
{
    node *n = (node *)&w->nodes[a];
    bool may_die = is_open(n) && world_may_fail(m, w);
    if (n->phase != SHRINKING)
        n->dirty = false;
    if (n->ended)
        n->watches = false;
    n->link &= ~w->closed;
    if (!n->created && n->phase != CREATING)
        n->list = 0;
    if (n->phase == FAILED || (!is_open(n) && !n->created))
        n->attempt = 0;
    if (n->phase == DEAD)
        n->failed = false;
    if (n->phase == DEAD ? !m->launcher : n->failed && !(may_die && m->launcher))
        n->made = 0;
    if (!is_open(n))
        return;
    if (is_finished(n))
        n->late = false;
    for (int b = 0; b < m->n; b++) {
        unsigned char state = machine(m, w, a)->peers[b].state;
        if (w->dead >> b & 1 &&
            (is_finished(n) || (state != DDL__ALIVE && state != DDL__DISCONNECTED)))
            n->witnessed |= bit(b);
    }
}

static void simplify_world(const model *m, world *w)
{
    w->was_hasty = w->was_hasty || w->was_late || w->was_stopped || w->was_left ||
                   w->was_expelled || (w->was_cut && (w->dead || !w->shared));
    w->was_late = false;
    w->was_stopped = w->was_stopped && world_may_fail(m, w);
}

/* ----------------------------------------------------------------------------------- 2: messages
 */

static bool is_ignored(const model *m, const world *w, int a, int b, const message *msg)
{
    const node *n = &w->nodes[a];
    const ddl__membership *self = machine(m, w, a);
    const ddl__peer *peer = &self->peers[b];
    bool alive = peer->state == DDL__ALIVE, finished = is_finished(n);
    bool local = m->host[a] == m->host[b];
    switch (msg->kind) {
    case DDL__DEAD: return n->ended;
    case DDL__LEAVE: return !alive && (peer->may_continue || finished);
    case DDL__EXPEL: return !alive && (peer->may_continue || finished) && n->ended;
    case DDL__JOIN: return !alive || finished;
    case DDL__VERDICT: /* an empty one has an effect always */
        return !alive || (msg->set && (finished || msg->attempt < next_attempt(self)));
    case DDL__VOUCH: return !alive || finished || msg->attempt < next_attempt(self);
    case DDL__DONE:
        return !alive || (finished && !local &&
                          (!msg->flag || (msg->attempt == self->created_attempt &&
                                          self->peers[a].committed == msg->attempt)));
    case DDL__CONFIRM:
        return msg->rank == a || finished ||
               (self->peers[msg->rank].state != DDL__ALIVE &&
                self->peers[msg->rank].state != DDL__DISCONNECTED);
    case DDL__EXPELLED:
        return msg->by == a || self->peers[msg->rank].expelled ||
               self->peers[msg->rank].state == DDL__LEFT;
    default: return false;
    }
}

static void drop_ignored(const model *m, world *w, int a, int b)
{
    message *all = cells(m, w);
    channel *c = channel_of(m, w, a, b);
    uint16_t before = 0;
    for (uint16_t cell = c->first, next; cell; cell = next) {
        next = all[cell].next;
        if (!is_ignored(m, w, a, b, &all[cell])) {
            before = cell;
        } else if (!before) {
            drop_first(m, w, a, b);
        } else {
            all[before].next = next;
            all[cell].next = w->free;
            w->free = cell;
            c->last = next ? c->last : before;
        }
    }
}

/* ----------------------------------------------------------------------- 3: steps without effect
 */

static bool has_sent;

static void note_send(void *context, int to, const ddl__member_msg *msg)
{
    (void)context, (void)to, (void)msg;
    has_sent = true;
}

static void note_gone(void *context, int to, const int32_t *ranks, int n)
{
    (void)context, (void)to, (void)ranks, (void)n;
    has_sent = true;
}

static void note_died(void *context, int rank, const ddl__cause *cause)
{
    (void)context, (void)rank, (void)cause;
}

static void note_end(void *context, const ddl__comm_end *end)
{
    (void)context, (void)end;
    has_sent = true;
}

static bool has_no_effect(const model *m, const world *w, int a)
{
    static const ddl__member_ports ports = {
        .send = note_send, .send_gone = note_gone, .died = note_died, .end = note_end};
    _Alignas(16) unsigned char block[4096];
    ddl__membership *copy = (ddl__membership *)block;
    const ddl__membership *self = machine(m, w, a);
    if (w->machine_bytes > sizeof block)
        return false;
    memcpy(copy, self, w->machine_bytes);
    copy->ports = &ports;
    has_sent = false;
    if (ddl__agreement_advance(copy, now_of(&w->nodes[a])) != DDL__STEP_WAIT || has_sent)
        return false;
    simplify_machine(m, w, a, copy);
    copy->ports = self->ports;
    return !memcmp(copy, self, w->machine_bytes);
}

/* ----------------------------------------------------------------------------- 4: confluent steps
 */

static bool is_eager(const model *m, const world *w, int a, int b)
{
    const message *msg = &cells(m, w)[channel_of(m, w, a, b)->first];
    return is_finished(&w->nodes[a]) &&
           (msg->kind == DDL__LEAVE || msg->kind == END_REMOTE || msg->kind == RESET ||
            (msg->kind == DDL__DONE && !msg->flag));
}

static bool choose_eager(const model *m, const world *w, event *e)
{
    if (world_may_fail(m, w))
        return false;
    for (int a = 0; a < m->n; a++) {
        const node *n = &w->nodes[a];
        if (!runs(n))
            continue;
        *e = (event){SHRINK, (unsigned char)a, 0, 0};
        if (n->phase == RUNNING && n->ended)
            return true;
        for (uint64_t left = w->was_expelled ? 0 : receivable(m, w, a); left; left &= left - 1) {
            int b = __builtin_ctzll(left);
            *e = (event){DELIVER, (unsigned char)a, (unsigned char)b, 0};
            if (is_eager(m, w, a, b))
                return true;
        }
    }
    return false;
}

const char *world_reduce(const model *m, world *w)
{
    event e;
    for (;;) {
        simplify_world(m, w);
        for (int a = 0; a < m->n; a++) {
            node *n = &w->nodes[a];
            bool touched = w->touched >> a & 1;
            if (touched || n->link & w->closed) {
                simplify_node(m, w, a);
                w->touched |= bit(a);
            }
            if (is_open(n) && touched)
                simplify_machine(m, w, a, machine(m, w, a));
            for (uint64_t left = n->pending; left; left &= left - 1)
                drop_ignored(m, w, a, __builtin_ctzll(left));
            if (n->dirty && touched && has_no_effect(m, w, a))
                n->dirty = false;
        }
        w->stale = UINT64_MAX;
        if (!choose_eager(m, w, &e))
            return NULL;
        const char *broken = world_apply(m, w, e);
        if (broken)
            return broken;
    }
}

/* ------------------------------------------------------------------------------------------ hash
 */

static uint64_t mix(uint64_t a, uint64_t b)
{
    __uint128_t product =
        (__uint128_t)(a ^ UINT64_C(0x9e3779b97f4a7c15)) * (b ^ UINT64_C(0xd6e8feb86659fd93));
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_words(uint64_t h, const void *at, size_t bytes)
{
    const unsigned char *byte = at;
    for (; bytes >= 16; bytes -= 16, byte += 16) {
        uint64_t words[2];
        memcpy(words, byte, 16);
        h = mix(h ^ words[0], words[1]) + (h << 1 | h >> 63);
    }
    if (bytes) {
        uint64_t word;
        memcpy(&word, byte, 8);
        h = mix(h, word);
    }
    return h;
}

/* Hash a member, without the data that is equal in all states and the set of pending channels. */
static uint64_t hash_member(const model *m, const world *w, int a)
{
    size_t first = offsetof(ddl__membership, announced) / 8 * 8;
    uint64_t h = hash_words((uint64_t)a + 1, &w->nodes[a], offsetof(node, pending));
    if (is_open(&w->nodes[a]))
        h = hash_words(h, (unsigned char *)machine(m, w, a) + first, w->machine_bytes - first);
    return h;
}

static uint64_t hash_channel(const model *m, const world *w, int to, int from)
{
    const message *all = cells(m, w);
    uint64_t h = (uint64_t)(to * m->n + from + 100);
    for (uint16_t cell = channel_of(m, w, to, from)->first; cell; cell = all[cell].next) {
        message msg = all[cell];
        uint64_t words[2];
        msg.next = 0;
        memcpy(words, &msg, sizeof words);
        h = mix(h ^ words[0], words[1]) + (h << 1 | h >> 63);
    }
    return h;
}

/* The hash does not include was_hasty. */
uint64_t world_hash(const model *m, world *w)
{
    uint64_t *of = hashes(m, w), flags = w->was_hasty;
    w->was_hasty = false;
    uint64_t h = hash_words(0, w, offsetof(world, stopped));
    w->was_hasty = flags;
    for (int a = 0; a < m->n; a++) {
        if (w->touched >> a & 1)
            of[a] = hash_member(m, w, a);
        h = mix(h, of[a]);
        for (uint64_t left = w->nodes[a].pending; left; left &= left - 1)
            h = mix(h, hash_channel(m, w, a, __builtin_ctzll(left)));
    }
    w->touched = 0;
    return h;
}

int world_attempt(const model *m, const world *w)
{
    int highest = 0;
    for (int a = 0; a < m->n; a++)
        highest = w->nodes[a].attempt > highest ? w->nodes[a].attempt : highest;
    return highest;
}

bool world_is_hasty(const world *w)
{
    return w->was_hasty;
}

void world_set_hasty(world *w, bool hasty)
{
    w->was_hasty = hasty;
}
