/* SPDX-License-Identifier: Apache-2.0 */
/* The effects of events, and the invariants. */
#include <string.h>

#include "base/time_limits.h"
#include "explore/creation/world.h"

static const char *broken;

size_t world_bytes(void)
{
    return sizeof(world);
}

void world_init(const model *m, world *w)
{
    (void)m;
    memset(w, 0, sizeof *w);
}

/* -------------------------------------------------------------------------------------- messages
 */

static void send(world *w, int from, int to, message sent)
{
    channel *c = &w->channels[to][from];
    if (w->nodes[to].phase == DEAD)
        return;
    if (c->length == QUEUE)
        broken = "a channel of the model is full";
    else
        c->queue[c->length++] = sent;
}

/* ---------------------------------------------------------------------------------- the attempts
 */

static void fail(const model *m, world *w, int rank, ddl_status status);

/* True if the peer has answered this member's dial, and the answer is on its way. */
static bool is_answered(const world *w, int rank, int peer)
{
    const channel *c = &w->channels[rank][peer];
    for (int i = 0; i < c->length; i++)
        if (c->queue[i].kind == ANSWER && c->queue[i].status == DDL_OK &&
            c->queue[i].dial == w->nodes[rank].links[peer].dial)
            return true;
    return false;
}

static void close_link(world *w, int rank, int peer, const ddl__creation_end *why)
{
    link *l = &w->nodes[rank].links[peer];
    message close = {.kind = CLOSE, .dial = l->dial, .from = -1};
    if (why) {
        close.status = (int16_t)why->status;
        close.from = (signed char)why->from;
        close.later = (unsigned char)why->number;
    }
    if (l->state == OPEN || l->state == DIALED)
        send(w, rank, peer, close);
}

/* Close the connections of members that wait here for this creation. */
static void drop_parked(world *w, int rank, int family, unsigned number)
{
    for (int b = 0; b < MOST; b++)
        for (int i = 0; i < PARKED; i++) {
            message *p = &w->nodes[rank].parked[b][i];
            if (!p->kind || p->family != family || p->number != number)
                continue;
            send(w, rank, b, (message){.kind = CLOSE, .dial = p->dial, .from = -1});
            *p = (message){0};
        }
}

/* The program makes no more calls and destroys the parent: close all connections that wait here. */
static void leave_parent(world *w, int rank)
{
    node *n = &w->nodes[rank];
    n->phase = ENDED;
    for (int b = 0; b < MOST; b++)
        for (int i = 0; i < PARKED; i++)
            if (n->parked[b][i].kind)
                drop_parked(w, rank, n->parked[b][i].family, n->parked[b][i].number);
}

static void forget_notices(node *n, int family, unsigned number, int from)
{
    for (int b = 0; b < MOST; b++)
        if ((from < 0 || b == from) && n->notices[b].kind && n->notices[b].family == family &&
            n->notices[b].number <= number)
            n->notices[b] = (message){0};
}

static void begin(const model *m, world *w, int rank)
{
    node *n = &w->nodes[rank];
    int f = n->family;
    unsigned seen = 0;
    for (int b = 0; b < m->n; b++)
        for (int i = 0; i < PARKED; i++)
            if (n->parked[b][i].kind && n->parked[b][i].family == f &&
                n->parked[b][i].number > n->used[f] && n->parked[b][i].number > seen)
                seen = n->parked[b][i].number;
    unsigned number = ddl__creation_propose(n->used[f], seen);
    if (number >= NUMBERS) {
        broken = "the members do not agree on a number";
        return;
    }
    if (n->numbers[f] >> number & 1)
        broken = "C1: a member uses a number twice";
    n->numbers[f] |= UINT64_C(1) << number;
    n->used[f] = (unsigned char)number;
    n->creation =
        (ddl__creation){.number = number, .is_witnessed = true, .deadline = 1000 * DDL__S};
    n->now = 0;
    n->settings = n->commits = 0;
    memset(n->links, 0, sizeof n->links);
    n->phase = CONNECTING;
    for (int b = 0; b < rank; b++)
        if (is_listed(m, f, b)) {
            n->links[b] = (link){.state = DIALED, .dial = ++n->dials};
            send(w, rank, b,
                 (message){.kind = HELLO,
                           .family = (unsigned char)f,
                           .number = (unsigned char)number,
                           .dial = n->dials});
        }
}

/* Handle a failed call as the program does. */
static void end_call(world *w, node *n, ddl_status status)
{
    bool may_repeat = status == DDL_ETIMEDOUT || status == DDL_EEXPIRED || status == DDL_EABORTED ||
                      status == DDL_ENOMEM;
    if (status == DDL_EPEER && !w->failed && !w->was_left)
        broken = "C3: a call fails for a death, and none has died";
    if (status == DDL_EREFUSED)
        broken = "C3: a member refuses one that belongs to its creation";
    if (may_repeat && !w->was_late && !w->failed)
        broken = "C3: a call fails without a reason";
    memset(n->links, 0, sizeof n->links);
    if (may_repeat && !n->knows && n->retries++ < RETRIES) {
        n->phase = IDLE;
        return;
    }
    w->was_left = true;
    leave_parent(w, (int)(n - w->nodes));
}

static void fail(const model *m, world *w, int rank, ddl_status status)
{
    node *n = &w->nodes[rank];
    ddl__creation *c = &n->creation;
    int f = n->family;
    unsigned attempt = ++n->attempts;
    bool early = n->phase == CONNECTING;
    ddl__creation_end why = ddl__creation_reason(c, status, rank, attempt);
    if (!early)
        why = (ddl__creation_end){status, -1, 0};
    for (int b = 0; b < m->n; b++) {
        bool linked = n->links[b].state == OPEN || n->links[b].state == CLOSED;
        ddl__creation_audience audience = ddl__creation_audience_of(c, status, linked);
        if (b == rank || !is_listed(m, f, b))
            continue;
        if (n->links[b].state == DIALED) /* it joins those that have answered, to say why */
            close_link(w, rank, b, is_answered(w, rank, b) ? &why : NULL);
        else if (audience == DDL__CREATION_CLOSE_LINK)
            close_link(w, rank, b, &why);
        if (audience == DDL__CREATION_SEND_NOTICE && early)
            send(w, rank, b,
                 (message){.kind = NOTICE,
                           .family = (unsigned char)f,
                           .number = (unsigned char)c->number,
                           .status = (int16_t)status,
                           .later = (unsigned char)attempt});
    }
    if (!ddl__creation_keeps_waiting(c, status))
        drop_parked(w, rank, f, c->number);
    forget_notices(n, f, c->number, -1);
    if (ddl__creation_begins_again(status, n->now, c->deadline))
        begin(m, w, rank);
    else
        end_call(w, n, status == DDL__SUPERSEDED ? DDL_ETIMEDOUT : status);
    if (status == DDL__SUPERSEDED && n->phase != CONNECTING)
        broken = "C3: a call reports that its time is up, and it is not";
}

/* Perform the actions of the state machine. */
static void handle(const model *m, world *w, int rank, unsigned actions)
{
    node *n = &w->nodes[rank];
    const ddl__creation_end end = n->creation.end;
    if (actions & DDL__CREATION_RAISE)
        n->used[n->family] = (unsigned char)ddl__creation_raise(n->used[n->family], end.number);
    if (actions & DDL__CREATION_IGNORE && end.from != rank) {
        n->ignored[end.from] = (unsigned char)end.number;
        if (n->notices[end.from].later == end.number)
            n->notices[end.from] = (message){0};
    }
    if (actions & DDL__CREATION_FAIL)
        fail(m, w, rank, end.status == DDL_OK ? DDL_EPEER : end.status);
}

static void broadcast(const model *m, world *w, int rank, unsigned char what)
{
    for (int b = 0; b < m->n; b++)
        if (w->nodes[rank].links[b].state == OPEN)
            send(w, rank, b, (message){.kind = what, .dial = w->nodes[rank].links[b].dial});
}

/* Complete the creation, and check C2: the member was connected to all, and they to it. */
static void complete(const model *m, world *w, int rank)
{
    node *n = &w->nodes[rank];
    n->phase = HAS;
    for (int b = 0; b < m->n; b++) {
        const node *other = &w->nodes[b];
        if (is_listed(m, n->family, b) && other->phase != DEAD &&
            !(other->connected[n->family] >> n->creation.number & 1))
            broken = "C2: a member has a child that another one has not connected to";
    }
}

/* Continue as far as the messages that have arrived allow. */
static void advance(const model *m, world *w, int rank)
{
    node *n = &w->nodes[rank];
    int f = n->family, open = 0, size = size_of(m, f);
    for (int b = 0; b < m->n; b++)
        open += n->links[b].state == OPEN;
    if (n->creation.doubted_until) /* an operation has failed */
        return;
    if (n->phase == CONNECTING && open == size - 1) {
        n->phase = EXCHANGING;
        n->connected[f] |= UINT64_C(1) << n->creation.number;
        broadcast(m, w, rank, SETTINGS);
    }
    if (n->phase == EXCHANGING && n->settings == size - 1) {
        n->phase = COMMITTING;
        if (size == 2)
            complete(m, w, rank);
        else
            broadcast(m, w, rank, COMMIT);
    }
    if (n->phase == COMMITTING && n->commits == size - 1)
        complete(m, w, rank);
}

/* ------------------------------------------------------------------------------------- the facts
 */

static bool is_missing(const node *n, int peer)
{
    return n->links[peer].state != OPEN;
}

/* Answer members at earlier creations. Returns the latest creation of a missing member, or 0. */
static unsigned find_later(const model *m, world *w, int rank)
{
    node *n = &w->nodes[rank];
    unsigned later = 0;
    for (int b = 0; b < m->n; b++)
        for (int i = 0; i < PARKED; i++) {
            message *p = &n->parked[b][i];
            if (!p->kind || p->family != n->family || p->number == n->creation.number)
                continue;
            switch (ddl__creation_judge(n->creation.number, p->number, is_missing(n, b))) {
            case DDL__CREATION_REFUSE:
                send(w, rank, b,
                     (message){.kind = ANSWER,
                               .status = DDL_EREFUSED,
                               .number = (unsigned char)n->creation.number,
                               .dial = p->dial});
                *p = (message){0};
                break;
            case DDL__CREATION_YIELD: later = p->number > later ? p->number : later; break;
            case DDL__CREATION_JOIN:
            case DDL__CREATION_KEEP: break;
            }
        }
    return later;
}

static bool find_fact(const model *m, world *w, int rank, ddl__creation_cause cause,
                      ddl__creation_end *fact)
{
    node *n = &w->nodes[rank];
    unsigned later;
    switch (cause) {
    case DDL__CREATION_IN_VAIN: *fact = (ddl__creation_end){DDL_EPEER, -1, 0}; return n->knows;
    case DDL__CREATION_NOTICED:
        for (int b = 0; b < m->n; b++)
            if (n->notices[b].kind && n->notices[b].family == n->family &&
                ddl__creation_concerns(n->notices[b].number, n->creation.number)) {
                *fact = (ddl__creation_end){n->notices[b].status, b, n->notices[b].later};
                n->notices[b] = (message){0};
                return true;
            }
        return false;
    case DDL__CREATION_ABORTED:
        for (int b = 0; b < m->n; b++)
            if (n->links[b].state == CLOSED && n->links[b].has_reason) {
                *fact =
                    (ddl__creation_end){n->links[b].status, n->links[b].from, n->links[b].number};
                return true;
            }
        return false;
    case DDL__CREATION_OUTDATED:
        later = find_later(m, w, rank);
        *fact = (ddl__creation_end){DDL__SUPERSEDED, -1, later};
        return later;
    case DDL__CREATION_LOST:
        *fact = (ddl__creation_end){DDL_EPEER, -1, 0};
        for (int b = 0; b < m->n; b++)
            if (n->links[b].state == CLOSED)
                return true;
        return false;
    case DDL__CREATION_CAUSES: break;
    }
    return false;
}

/* Check for facts in the order of their priority. */
static unsigned check(const model *m, world *w, int rank)
{
    node *n = &w->nodes[rank];
    for (ddl__creation_cause cause = 0; cause < DDL__CREATION_CAUSES; cause++) {
        ddl__creation_end fact;
        if (find_fact(m, w, rank, cause, &fact))
            return ddl__creation_handle(&n->creation, cause, &fact, n->now);
    }
    return DDL__CREATION_CONTINUE;
}

bool check_is_due(const model *m, const world *w, int rank)
{
    world copy = *w;
    const node *n = &w->nodes[rank];
    bool doubts = n->creation.doubted_until;
    const char *before = broken;
    unsigned actions = check(m, &copy, rank);
    bool refuses = memcmp(copy.nodes[rank].parked, n->parked, sizeof n->parked);
    broken = before;
    return refuses || (actions && !(actions == DDL__CREATION_LOOK && doubts));
}

/* Fail the creation's operation if a link has ended, once all members are connected. */
static void check_links(const model *m, world *w, int rank)
{
    node *n = &w->nodes[rank];
    const ddl__creation_end lost = {DDL_EPEER, -1, 0};
    for (int b = 0; b < m->n && creates(n); b++)
        if (n->links[b].state == CLOSED && n->links[b].has_reason)
            fail(m, w, rank, n->links[b].status);
        else if (n->links[b].state == CLOSED && !n->creation.doubted_until)
            ddl__creation_handle(&n->creation, DDL__CREATION_LOST, &lost, n->now);
}

/* -------------------------------------------------------------------------------------- delivery
 */

static void park(node *n, int from, message hello)
{
    forget_notices(n, hello.family, hello.number, from);
    for (int i = 0; i < PARKED; i++)
        if (!n->parked[from][i].kind) {
            n->parked[from][i] = hello;
            return;
        }
    broken = "too many connections of the model are parked";
}

static void receive_close(const model *m, world *w, int rank, int from, message msg)
{
    node *n = &w->nodes[rank];
    link *l = &n->links[from];
    for (int i = 0; i < PARKED; i++)
        if (n->parked[from][i].kind && n->parked[from][i].dial == msg.dial)
            n->parked[from][i] = (message){0};
    if (n->phase < CONNECTING || n->phase > HAS || l->state == NONE || l->dial != msg.dial)
        return;
    if (msg.status == LEFT) /* after its last message */
        return;
    l->has_reason = msg.status && l->state == OPEN;
    l->state = CLOSED;
    l->status = msg.status;
    l->from = msg.from;
    l->number = msg.later;
    if (n->phase == EXCHANGING || n->phase == COMMITTING)
        check_links(m, w, rank);
    else if (n->phase == HAS)
        end_call(w, n, msg.status ? msg.status : DDL_EPEER); /* the child has failed */
}

static void deliver(const model *m, world *w, int rank, int from, int which)
{
    node *n = &w->nodes[rank];
    channel *c = &w->channels[rank][from];
    message msg = c->queue[which];
    link *l = &n->links[from];
    memmove(&c->queue[which], &c->queue[which + 1],
            (size_t)(c->length - which - 1) * sizeof *c->queue);
    c->queue[--c->length] = (message){0};
    bool is_current = creates(n) && l->dial == msg.dial && (l->state == OPEN || l->state == DIALED);
    switch (msg.kind) {
    case HELLO:
        if (n->phase == ENDED) /* this member has left the parent and the job */
            send(w, rank, from, (message){.kind = CLOSE, .dial = msg.dial, .from = -1});
        else
            park(n, from, msg);
        break;
    case ANSWER:
        if (!is_current || l->state != DIALED || n->phase != CONNECTING)
            break;
        unsigned actions = ddl__creation_handle_answer(&n->creation, msg.status, msg.number);
        if (actions == DDL__CREATION_CONTINUE)
            l->state = OPEN;
        else if (!ddl__creation_is_told(&n->creation))
            fail(m, w, rank, DDL_EREFUSED);
        else
            handle(m, w, rank, actions);
        break;
    case CLOSE: receive_close(m, w, rank, from, msg); break;
    case SETTINGS: n->settings = (unsigned char)(n->settings + is_current); break;
    case COMMIT: n->commits = (unsigned char)(n->commits + is_current); break;
    case NOTICE:
        if (n->ignored[from] != msg.later && msg.later > n->notices[from].later)
            n->notices[from] = msg; /* keep the latest notice, which includes the earlier ones */
        break;
    default: break;
    }
    advance(m, w, rank);
}

/* ---------------------------------------------------------------------------------------- events
 */

static void accept_member(world *w, int rank, int peer)
{
    node *n = &w->nodes[rank];
    for (int i = 0; i < PARKED; i++) {
        message *p = &n->parked[peer][i];
        if (!p->kind || p->family != n->family || p->number != n->creation.number)
            continue;
        bool is_here = n->links[peer].state != NONE;
        if (!is_here)
            n->links[peer] = (link){.state = OPEN, .dial = p->dial};
        send(w, rank, peer,
             (message){.kind = ANSWER,
                       .status = is_here ? DDL_EREFUSED : DDL_OK,
                       .number = p->number,
                       .dial = p->dial});
        *p = (message){0};
        return;
    }
}

/* Close the child with this reason. */
static void close_child(const model *m, world *w, int rank, ddl_status status)
{
    ddl__creation_end why = {status, -1, 0};
    for (int b = 0; b < m->n; b++)
        close_link(w, rank, b, &why);
    memset(w->nodes[rank].links, 0, sizeof w->nodes[rank].links);
}

static void end_process(const model *m, world *w, int rank)
{
    node *n = &w->nodes[rank];
    for (int b = 0; b < m->n; b++) {
        close_link(w, rank, b, NULL);
        for (int i = 0; i < PARKED; i++)
            if (n->parked[b][i].kind)
                send(w, rank, b,
                     (message){.kind = CLOSE, .dial = n->parked[b][i].dial, .from = -1});
        /* Hellos on their way are answered with a reset. */
        for (int i = 0; i < w->channels[rank][b].length; i++)
            if (w->channels[rank][b].queue[i].kind == HELLO)
                send(w, rank, b,
                     (message){
                         .kind = CLOSE, .dial = w->channels[rank][b].queue[i].dial, .from = -1});
        memset(&w->channels[rank][b], 0, sizeof w->channels[rank][b]);
    }
    memset(n, 0, sizeof *n);
    n->phase = DEAD;
    w->failed = true;
}

static void next_call(node *n)
{
    n->retries = 0;
    n->phase = ++n->call < CALLS ? IDLE : DONE;
}

static void know(const model *m, world *w, int rank)
{
    node *n = &w->nodes[rank];
    n->knows = true;
    if (n->phase == EXCHANGING || n->phase == COMMITTING)
        fail(m, w, rank, DDL_EPEER); /* the creation's operation is aborted */
    else if (n->phase == IDLE)
        leave_parent(w, rank);
}

static void happen(const model *m, world *w, event e)
{
    node *n = &w->nodes[e.a];
    switch ((event_type)e.type) {
    case DELIVER: deliver(m, w, e.a, e.b, e.which); break;
    case CALL:
        n->family = (unsigned char)family_of(m, e.a, n->call);
        if (!is_listed(m, n->family, e.a))
            next_call(n);
        else
            begin(m, w, e.a);
        break;
    case ACCEPT:
        accept_member(w, e.a, e.b);
        advance(m, w, e.a);
        break;
    case CHECK: handle(m, w, e.a, check(m, w, e.a)); break;
    case LEAVE:
        close_child(m, w, e.a, LEFT);
        next_call(n);
        break;
    case KNOW: know(m, w, e.a); break;
    case GIVE_UP: n->now = n->creation.doubted_until; break;
    case KILL: end_process(m, w, e.a); break;
    case ABORT:
        w->failed = true;
        know(m, w, e.a);
        break;
    case ABORT_CHILD:
        w->was_late = true;
        close_child(m, w, e.a, DDL_EABORTED);
        end_call(w, n, DDL_EABORTED);
        break;
    case TIME_UP:
    case LATE:
        w->was_late = true;
        fail(m, w, e.a, n->phase == CONNECTING ? DDL_ETIMEDOUT : DDL_EEXPIRED);
        break;
    case REFUSE:
        w->was_late = true;
        fail(m, w, e.a, DDL_ENOMEM);
        break;
    case TYPES: break;
    }
}

const char *world_apply(const model *m, world *w, event e)
{
    broken = NULL;
    w->faults = (unsigned char)(w->faults + (e.type >= NATURAL));
    happen(m, w, e);
    return broken;
}

/* C4: each call ends. C5: if the parent is alive and the calls are in the same order, all are made.
 */
const char *world_check_end(const model *m, const world *w)
{
    for (int a = 0; a < m->n; a++) {
        const node *n = &w->nodes[a];
        if (creates(n))
            return "C4: a member waits for its limit";
        bool are_at_one_call = !w->failed && !m->crossed && n->phase != DONE;
        for (int b = 0; b < m->n; b++)
            if (is_listed(m, n->family, b) && w->nodes[b].call != n->call)
                are_at_one_call = false;
        if (are_at_one_call)
            return "C5: the members do not create the child, however often they try";
    }
    return NULL;
}
