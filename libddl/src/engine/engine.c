/* Design notes.
 *
 * Works of one comm run one after the other, in the order of submission: `current`, then the queue.
 * Whoever holds `driven` is the driver: it alone touches links, plans and `current`. A waiter
 * becomes the driver when nobody drives, and keeps the role until what it waits for is complete;
 * other waiters sleep on `changed`. With nobody waiting, the endpoint's thread drives through
 * ddl__engine_background, and gives way at once to any waiter (`waiters`).
 *
 * Messages are not in that order: `messages` has links of its own, and there works complete as they
 * are matched.
 *
 * `lock` guards the queue, the posted messages, the completed list, `driven`, `waiters`, `failure`
 * and every work's completion; it is never held while a plan runs or a thread sleeps on the links.
 *
 * A work is completed exactly once, by finish() under the lock: by the driver when its plan ends,
 * or by fail_all when the comm dies, which only the driver calls (an aborter without a driver first
 * becomes it). After that nothing of the engine points to the work but the completed list, and no
 * link holds its buffers: a plan ends only when all lent memory is sent, and closing the links
 * drops what they had borrowed.
 *
 * Waking a sleeping driver: links by their fds, abort and takeover by `wake`, all in `epoll`.
 */
#include "engine/engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/forks.h"
#include "base/log.h"
#include "engine/describe.h"
#include "engine/messages.h"
#include "engine/patience.h"
#include "engine/plans.h"
#include "engine/run.h"

enum {
    EVENTS = 32,
    SLEEP_MAX_MS = 1000,
    LIMIT_PASSES = 4 /* how often an operation that gets on looks at its limit */
};

struct ddl__engine {
    ddl__engine_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ddl_work *head, **tail;      /* submitted, not yet current */
    ddl_work *completed, **last; /* queued works that are complete and not yet taken */
    uint32_t queued;             /* works for the completed list: pending or in it */
    uint32_t sequence;
    atomic_uint n_messages; /* pending works that are messages */
    bool driven;
    atomic_uint waiters;
    atomic_int failure; /* ddl_status; DDL_OK while alive */
    char message[DDL__MESSAGE_MAX];
    atomic_bool abort_asked;
    char abort_reason[256];

    /* The driver's. */
    ddl_work *current;
    ddl__messages *messages;
    ddl__runner runner;
    ddl__plans plans;
    ddl__patience patience;
    bool all_shared;
    unsigned char barrier_in, barrier_out;
    int epoll, wake;
};

/* ---------------------------------------------------------------------------------- completion */

static bool is_complete(const ddl_work *work)
{
    return atomic_load_explicit(&work->status, memory_order_acquire) != DDL_INPROGRESS;
}

static bool is_message(const ddl_work *work)
{
    return work->call.kind == DDL__SEND || work->call.kind == DDL__RECV;
}

/* Whether the work is in the list of completed ones. Leaving it is the last that the engine does to
 * a work: from then on the caller may free it without the lock. */
static bool in_list(const ddl_work *work)
{
    return atomic_load_explicit(&work->reported, memory_order_acquire);
}

static void leave_list(ddl_work *work)
{
    atomic_store_explicit(&work->reported, false, memory_order_release);
}

/* Under the lock. */
static void finish(ddl__engine *engine, ddl_work *work, ddl_status status)
{
    if (is_message(work))
        atomic_fetch_sub_explicit(&engine->n_messages, 1, memory_order_relaxed);
    if (work->abandoned) {
        if (work->call.queued)
            engine->queued--;
        free(work);
        return;
    }
    if (status != DDL_OK)
        work->message = strdup(engine->message);
    if (work->call.queued) {
        work->next = NULL;
        atomic_store_explicit(&work->reported, true, memory_order_relaxed);
        *engine->last = work;
        engine->last = &work->next;
    }
    atomic_store_explicit(&work->status, status, memory_order_release);
    if (atomic_load_explicit(&engine->waiters, memory_order_relaxed))
        pthread_cond_broadcast(&engine->changed);
}

/* Under the lock: finish all of a list. */
static void finish_list(ddl__engine *engine, ddl_work *list, ddl_status status)
{
    for (ddl_work *work = list, *next; work; work = next) {
        next = work->next;
        finish(engine, work, status);
    }
}

/* Under the lock. */
static ddl_work *pop(ddl__engine *engine)
{
    ddl_work *work = engine->head;
    if (work) {
        engine->head = work->next;
        if (!engine->head)
            engine->tail = &engine->head;
    }
    return work;
}

/* The driver ends the comm: the first failure wins. The reason that peers get begins with the
 * status, so that they fail alike. */
static void fail_all(ddl__engine *engine, ddl_status status, const char *format, ...)
{
    pthread_mutex_lock(&engine->lock);
    if (atomic_load_explicit(&engine->failure, memory_order_relaxed) == DDL_OK) {
        va_list args;
        va_start(args, format);
        vsnprintf(engine->message, sizeof engine->message, format, args);
        va_end(args);
        atomic_store_explicit(&engine->failure, status, memory_order_release);
        char reason[256];
        snprintf(reason, sizeof reason, "%d %.240s", status, engine->message);
        ddl__links_close(engine->config.links, (size_t)engine->config.size, reason);
        ddl__links_close(engine->config.messages, (size_t)engine->config.size, reason);
        ddl__log(status == DDL_EABORTED ? DDL__INFO : DDL__WARN, "%s: the comm is dead: %s",
                 engine->config.names[engine->config.rank], engine->message);
    }
    status = atomic_load_explicit(&engine->failure, memory_order_relaxed);
    if (engine->current)
        finish(engine, engine->current, status);
    engine->current = NULL;
    for (ddl_work *work; (work = pop(engine));)
        finish(engine, work, status);
    finish_list(engine, ddl__messages_drop(engine->messages), status);
    pthread_mutex_unlock(&engine->lock);
}

/* -------------------------------------------------------------------------------------- driving */

static void fail_by_link(ddl__engine *engine, const ddl__link *link, int rank)
{
    const char *name = engine->config.names[rank];
    char mine[DDL__CALL_MAX], theirs[DDL__CALL_MAX];
    int status, skip = 0;
    switch (link->state) {
    case DDL__LINK_OPEN: break;
    case DDL__LINK_MISMATCH:
        ddl__describe_signature(theirs, sizeof theirs, &link->found);
        ddl__describe_signature(mine, sizeof mine, &engine->current->signature);
        fail_all(engine, DDL_EMISMATCH, "%s called %s; %s called %s", name, theirs,
                 engine->config.names[engine->config.rank], mine);
        break;
    case DDL__LINK_LEFT:
        ddl__describe_signature(mine, sizeof mine, &engine->current->signature);
        fail_all(engine, DDL_EPEER, "%s left the comm while %s called %s", name,
                 engine->config.names[engine->config.rank], mine);
        break;
    case DDL__LINK_ABORTED:
        if (sscanf(link->reason, "%d %n", &status, &skip) < 1 || status >= 0)
            status = DDL_EABORTED;
        fail_all(engine, (ddl_status)status, "%s (told by %s)", link->reason + skip, name);
        break;
    case DDL__LINK_LOST: fail_all(engine, DDL_EPEER, "%s is lost: %s", name, link->reason); break;
    }
}

/* Asked for, and not yet carried out. */
static bool abort_is_due(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->abort_asked, memory_order_acquire) &&
           atomic_load_explicit(&engine->failure, memory_order_relaxed) == DDL_OK;
}

static void carry_out_abort(ddl__engine *engine)
{
    fail_all(engine, DDL_EABORTED, "%s aborted: %s", engine->config.names[engine->config.rank],
             engine->abort_reason);
}

/* Give messages' works their results; what has gone wrong with one ends the comm. */
static void settle_messages(ddl__engine *engine)
{
    ddl_work *finished = ddl__messages_finished(engine->messages);
    if (finished) {
        pthread_mutex_lock(&engine->lock);
        finish_list(engine, finished, DDL_OK);
        pthread_mutex_unlock(&engine->lock);
    }
    const char *text;
    ddl_status status = ddl__messages_failure(engine->messages, &text);
    if (status != DDL_OK)
        fail_all(engine, status, "%s", text);
}

/* The messages' part of a pass. While there are none, it costs one load. */
static bool advance_messages(ddl__engine *engine)
{
    if (!atomic_load_explicit(&engine->n_messages, memory_order_relaxed))
        return false;
    bool moved = ddl__messages_run(engine->messages);
    settle_messages(engine);
    return moved;
}

/* Fail when a message or the current operation has run past its own limit. */
static void check_limit(ddl__engine *engine)
{
    ddl__messages_check_limits(engine->messages);
    settle_messages(engine);
    if (!engine->current || ddl__now() <= engine->current->deadline)
        return;
    char text[DDL__CALL_MAX];
    ddl__describe_signature(text, sizeof text, &engine->current->signature);
    fail_all(engine, DDL_EEXPIRED, "%s: %s ran past its limit of %lld ms",
             engine->config.names[engine->config.rank], text,
             (long long)engine->current->call.timeout_ms);
}

/* The link to this rank by which it killed the comm, or NULL. */
static ddl__link *aborted(const ddl__engine *engine, int rank)
{
    ddl__link *link = engine->config.links[rank], *other = engine->config.messages[rank];
    if (link && link->state == DDL__LINK_ABORTED)
        return link;
    return other && other->state == DDL__LINK_ABORTED ? other : NULL;
}

/* Fail when a peer killed the comm, or when what blocks cannot come any more. Only
 * after a run that found nothing to do, since a peer's last spans count more than its end. */
static void check_blocked(ddl__engine *engine)
{
    ddl__link *culprit = NULL;
    int rank;
    for (rank = 0; rank < engine->config.size; rank++)
        if ((culprit = aborted(engine, rank))) {
            fail_by_link(engine, culprit, rank);
            return;
        }
    if (engine->current)
        culprit = ddl__run_culprit(&engine->runner, engine->current, &rank);
    if (culprit) {
        fail_by_link(engine, culprit, rank);
        return;
    }
    ddl__messages_check_peers(engine->messages);
    check_limit(engine);
}

static bool start(ddl__engine *engine, ddl_work *work)
{
    ddl__call *call = &work->call;
    if (call->kind == DDL__BARRIER) {
        call->send = &engine->barrier_in;
        call->recv = &engine->barrier_out;
    }
    ddl__request request = {.kind = call->kind,
                            .rank = engine->config.rank,
                            .size = engine->config.size,
                            .root = call->root,
                            .count = call->count,
                            .element = ddl__dtype_size(call->dtype),
                            .in_place = call->send == call->recv,
                            .all_shared = engine->all_shared,
                            .segment_bytes = engine->config.segment_bytes,
                            .window = engine->config.window};
    const ddl__plan *plan = ddl__plans_get(&engine->plans, &request);
    engine->current = work;
    if (!plan) {
        fail_all(engine, DDL_ENOMEM, "%s: no memory for a plan of %lld elements",
                 engine->config.names[engine->config.rank], (long long)call->count);
        return false;
    }
    ddl__run_start(work, plan);
    return true;
}

/* The driver's one pass over what is to do. False when it is blocked or there is nothing. */
static bool advance(ddl__engine *engine)
{
    bool moved = advance_messages(engine);
    if (!engine->current) {
        pthread_mutex_lock(&engine->lock);
        ddl_work *work = pop(engine);
        pthread_mutex_unlock(&engine->lock);
        if (!work || !start(engine, work))
            return moved;
    }
    switch (ddl__run(&engine->runner, engine->current)) {
    case DDL__BLOCKED: return moved;
    case DDL__MOVED: return true;
    case DDL__FINISHED: break;
    }
    pthread_mutex_lock(&engine->lock);
    ddl_work *work = engine->current;
    engine->current = NULL;
    finish(engine, work, DDL_OK);
    pthread_mutex_unlock(&engine->lock);
    return true;
}

static void announce_sleep(ddl__engine *engine, bool asleep)
{
    for (int i = 0; i < engine->config.size; i++)
        if (engine->config.links[i])
            engine->config.links[i]->ops->sleeping(engine->config.links[i], asleep);
    ddl__messages_sleeping(engine->messages, asleep);
}

/* Take in what has happened on the links and on `wake`, waiting at most timeout_ms. */
static void attend(ddl__engine *engine, int timeout_ms)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(engine->epoll, events, EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) {
        ddl__link *link = events[i].data.ptr;
        uint64_t count;
        if (link)
            link->ops->attend(link);
        else if (read(engine->wake, &count, sizeof count) < 0 && errno != EAGAIN)
            ddl__log(DDL__WARN, "eventfd: %s", strerror(errno));
    }
}

static void wake(ddl__engine *engine)
{
    uint64_t one = 1;
    ssize_t n = write(engine->wake, &one, sizeof one);
    (void)n; /* a full counter wakes as well */
}

/* When to look again although nothing has happened: at the next limit, or the deadline. */
static int sleep_ms(const ddl__engine *engine, int64_t deadline)
{
    if (engine->current && engine->current->deadline < deadline)
        deadline = engine->current->deadline;
    if (ddl__messages_deadline(engine->messages) < deadline)
        deadline = ddl__messages_deadline(engine->messages);
    if (deadline == DDL__NEVER)
        return SLEEP_MAX_MS;
    int64_t left = (deadline - ddl__now()) / 1000000 + 1;
    return left < 0 ? 0 : left < SLEEP_MAX_MS ? (int)left : SLEEP_MAX_MS;
}

/* Announce sleep and look once more; true when there is nothing to do. */
static bool fall_asleep(ddl__engine *engine)
{
    announce_sleep(engine, true);
    if (!advance(engine))
        return true;
    announce_sleep(engine, false);
    return false;
}

/* What a waiter waits for: its work, or (NULL) any completed one to take. */
static bool has_come(ddl__engine *engine, const ddl_work *work)
{
    if (work)
        return is_complete(work);
    pthread_mutex_lock(&engine->lock);
    bool any = engine->completed || !engine->queued;
    pthread_mutex_unlock(&engine->lock);
    return any;
}

/* Drive until what is waited for has come or the deadline passes. */
static void drive(ddl__engine *engine, const ddl_work *work, int64_t deadline)
{
    ddl__patience *patience = &engine->patience;
    for (unsigned passes = 1;; passes++) {
        bool moved = advance(engine);
        if (abort_is_due(engine))
            carry_out_abort(engine);
        if (has_come(engine, work) || (deadline != DDL__NEVER && ddl__now() > deadline))
            break;
        if (moved) {
            ddl__patience_renew(patience);
            if (passes % LIMIT_PASSES == 0)
                check_limit(engine);
            continue;
        }
        if (ddl__patience_turn(patience))
            continue;
        check_blocked(engine);
        if (has_come(engine, work))
            break;
        if (!fall_asleep(engine))
            continue;
        attend(engine, sleep_ms(engine, deadline));
        announce_sleep(engine, false);
    }
    ddl__patience_renew(patience);
}

/* Wait for the same as drive, by driving or by waiting for who drives. Called and left with the
 * lock held. */
static void wait_locked(ddl__engine *engine, const ddl_work *work, int64_t deadline)
{
    atomic_fetch_add_explicit(&engine->waiters, 1, memory_order_relaxed);
    while (work ? !is_complete(work) : !engine->completed && engine->queued) {
        if (!engine->driven) {
            engine->driven = true;
            pthread_mutex_unlock(&engine->lock);
            drive(engine, work, deadline);
            pthread_mutex_lock(&engine->lock);
            engine->driven = false;
        } else if (deadline == DDL__NEVER) {
            pthread_cond_wait(&engine->changed, &engine->lock);
        } else {
            struct timespec until = {deadline / 1000000000, deadline % 1000000000};
            pthread_cond_timedwait(&engine->changed, &engine->lock, &until);
        }
        if (ddl__now() > deadline)
            break;
    }
    if (atomic_fetch_sub_explicit(&engine->waiters, 1, memory_order_relaxed) > 1)
        pthread_cond_broadcast(&engine->changed);
}

/* Under the lock: somebody must drive. */
static bool pending(const ddl__engine *engine)
{
    return engine->current || engine->head ||
           atomic_load_explicit(&engine->n_messages, memory_order_relaxed) || abort_is_due(engine);
}

/* Leave the lock; when works are pending and nobody waits, ask for the endpoint's thread. */
static void unlock_and_hand_over(ddl__engine *engine)
{
    bool orphaned = !engine->driven && pending(engine) &&
                    !atomic_load_explicit(&engine->waiters, memory_order_relaxed);
    pthread_mutex_unlock(&engine->lock);
    if (orphaned)
        engine->config.need_progress(engine->config.context);
}

ddl__background ddl__engine_background(ddl__engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    if (engine->driven || atomic_load_explicit(&engine->waiters, memory_order_relaxed) ||
        !pending(engine)) {
        pthread_mutex_unlock(&engine->lock);
        return DDL__BACKGROUND_IDLE;
    }
    engine->driven = true;
    pthread_mutex_unlock(&engine->lock);

    attend(engine, 0);
    bool asleep = false, wanted = false;
    do {
        for (unsigned passes = 1; !asleep; passes++) {
            if (atomic_load_explicit(&engine->waiters, memory_order_relaxed))
                break;
            bool moved = advance(engine);
            if (abort_is_due(engine))
                carry_out_abort(engine);
            if (moved && passes % LIMIT_PASSES == 0)
                check_limit(engine);
            if (moved)
                continue;
            check_blocked(engine);
            asleep = fall_asleep(engine);
        }
        pthread_mutex_lock(&engine->lock);
        wanted = atomic_load_explicit(&engine->waiters, memory_order_relaxed);
        /* Gave way to a waiter that has gone since: go on. */
        if (asleep || wanted || !pending(engine))
            break;
        pthread_mutex_unlock(&engine->lock);
    } while (true);

    engine->driven = false;
    bool idle = !pending(engine) || wanted;
    if (wanted)
        pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return idle ? DDL__BACKGROUND_IDLE : DDL__BACKGROUND_ASLEEP;
}

int ddl__engine_fd(const ddl__engine *engine)
{
    return engine->epoll;
}

/* ----------------------------------------------------------------------------------- submission */

ddl_status ddl__engine_status(ddl__engine *engine)
{
    ddl_status status = (ddl_status)atomic_load_explicit(&engine->failure, memory_order_acquire);
    return status == DDL_OK ? DDL_OK : ddl__fail(status, "%s", engine->message);
}

ddl_status ddl__work_test(const ddl_work *work)
{
    ddl_status status = (ddl_status)atomic_load_explicit(&work->status, memory_order_acquire);
    if (status != DDL_OK && status != DDL_INPROGRESS)
        ddl__fail(status, "%s", work->message ? work->message : ddl__strerror(status));
    return status;
}

/* Under the lock. */
static void enqueue(ddl__engine *engine, ddl_work *work)
{
    work->engine = engine;
    work->generation = ddl__generation();
    work->deadline = ddl__deadline(work->call.timeout_ms);
    atomic_init(&work->status, DDL_INPROGRESS);
    work->next = NULL;
    if (is_message(work)) {
        atomic_fetch_add_explicit(&engine->n_messages, 1, memory_order_relaxed);
        ddl__messages_post(engine->messages, work);
    } else {
        work->sequence = engine->sequence++;
        *engine->tail = work;
        engine->tail = &work->next;
    }
    engine->queued += work->call.queued;
}

static ddl_status submit_blocking(ddl__engine *engine, const ddl__call *call)
{
    ddl_work work;
    work.call = *call;
    work.call.queued = false;
    work.abandoned = false;
    atomic_init(&work.reported, false);
    work.message = NULL;
    pthread_mutex_lock(&engine->lock);
    if (atomic_load_explicit(&engine->failure, memory_order_relaxed) != DDL_OK) {
        pthread_mutex_unlock(&engine->lock);
        return ddl__engine_status(engine);
    }
    enqueue(engine, &work);
    wait_locked(engine, &work, DDL__NEVER);
    unlock_and_hand_over(engine);
    ddl_status status = ddl__work_test(&work);
    free(work.message);
    return status;
}

ddl_status ddl__engine_submit(ddl__engine *engine, const ddl__call *call, ddl_work **out)
{
    if (!out)
        return submit_blocking(engine, call);
    ddl_work *work = calloc(1, sizeof *work);
    if (!work)
        return ddl__fail(DDL_ENOMEM, "no memory for a work");
    work->call = *call;
    pthread_mutex_lock(&engine->lock);
    if (atomic_load_explicit(&engine->failure, memory_order_relaxed) != DDL_OK) {
        pthread_mutex_unlock(&engine->lock);
        free(work);
        return ddl__engine_status(engine);
    }
    enqueue(engine, work);
    *out = work;          /* before anybody can complete it and hand it out */
    if (engine->driven) { /* a driver that sleeps on an empty queue */
        wake(engine);
        pthread_mutex_unlock(&engine->lock);
    } else {
        pthread_cond_broadcast(&engine->changed);
        unlock_and_hand_over(engine);
    }
    return DDL_OK;
}

ddl_status ddl__work_wait(ddl_work *work, int64_t deadline)
{
    if (!is_complete(work)) {
        ddl__engine *engine = work->engine;
        pthread_mutex_lock(&engine->lock);
        wait_locked(engine, work, deadline);
        unlock_and_hand_over(engine);
    }
    return ddl__work_test(work);
}

void ddl__work_destroy(ddl_work *work)
{
    if (is_complete(work) && !in_list(work)) {
        free(work->message);
        free(work);
        return;
    }
    ddl__engine *engine = work->engine;
    pthread_mutex_lock(&engine->lock);
    if (!is_complete(work)) {
        work->abandoned = true;
        pthread_mutex_unlock(&engine->lock);
        return;
    }
    for (ddl_work **at = &engine->completed; in_list(work) && *at; at = &(*at)->next)
        if (*at == work) {
            *at = work->next;
            if (!*at)
                engine->last = at;
            engine->queued--;
            break;
        }
    pthread_mutex_unlock(&engine->lock);
    free(work->message);
    free(work);
}

ddl_status ddl__engine_completed(ddl__engine *engine, ddl_work **works, void **users, int max,
                                 int64_t deadline, int *taken)
{
    pthread_mutex_lock(&engine->lock);
    wait_locked(engine, NULL, deadline);
    int n = 0;
    for (; n < max && engine->completed; n++) {
        ddl_work *work = engine->completed;
        engine->completed = work->next;
        if (!engine->completed)
            engine->last = &engine->completed;
        engine->queued--;
        if (works)
            works[n] = work;
        if (users)
            users[n] = work->call.user;
        leave_list(work);
    }
    bool none = !engine->queued;
    unlock_and_hand_over(engine);
    if (n == 0)
        return none ? ddl__fail(DDL_ESTATE, "no queued work is pending or finished")
                    : ddl__fail(DDL_ETIMEDOUT, "no queued work has finished yet");
    *taken = n;
    return DDL_OK;
}

void ddl__engine_abort(ddl__engine *engine, const char *reason)
{
    pthread_mutex_lock(&engine->lock);
    if (!atomic_load_explicit(&engine->abort_asked, memory_order_relaxed)) {
        snprintf(engine->abort_reason, sizeof engine->abort_reason, "%s", reason);
        atomic_store_explicit(&engine->abort_asked, true, memory_order_release);
    }
    if (engine->driven) {
        wake(engine);
        pthread_mutex_unlock(&engine->lock);
        return;
    }
    engine->driven = true;
    pthread_mutex_unlock(&engine->lock);
    if (abort_is_due(engine))
        carry_out_abort(engine);
    pthread_mutex_lock(&engine->lock);
    engine->driven = false;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

/* ------------------------------------------------------------------------------------ lifecycle */

static bool watch(ddl__engine *engine, int fd, ddl__link *link)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.ptr = link};
    if (!link)
        event.events = EPOLLIN;
    /* Links that share a descriptor: the first attends to it. */
    return !epoll_ctl(engine->epoll, EPOLL_CTL_ADD, fd, &event) || errno == EEXIST;
}

static bool open_descriptors(ddl__engine *engine)
{
    engine->epoll = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    engine->wake = ddl__guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (engine->epoll < 0 || engine->wake < 0 || !watch(engine, engine->wake, NULL))
        return false;
    for (int i = 0; i < engine->config.size; i++)
        for (int second = 0; second < 2; second++) {
            ddl__link *link = (second ? engine->config.messages : engine->config.links)[i];
            if (link && !watch(engine, link->fd, link))
                return false;
        }
    return true;
}

static bool make_runner(ddl__engine *engine)
{
    size_t size = (size_t)engine->config.size;
    ddl__runner *runner = &engine->runner;
    runner->rank = engine->config.rank;
    runner->size = engine->config.size;
    runner->links = engine->config.links;
    runner->kernels = ddl__kernels_best();
    runner->lending = calloc(size, sizeof *runner->lending);
    runner->targets = calloc(size, sizeof *runner->targets);
    runner->operands = calloc(size, sizeof *runner->operands);
    if (!runner->lending || !runner->targets || !runner->operands)
        return false;
    for (size_t i = 0; i < size; i++)
        if (runner->links[i] && runner->links[i]->ops->lends)
            runner->lending[runner->n_lending++] = runner->links[i];
    return true;
}

ddl__engine *ddl__engine_create(const ddl__engine_config *config)
{
    ddl__engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        ddl__links_destroy(config->messages, (size_t)config->size);
        ddl__links_destroy(config->links, (size_t)config->size);
        ddl__fail(DDL_ENOMEM, "no memory for an engine");
        return NULL;
    }
    engine->config = *config;
    engine->tail = &engine->head;
    engine->last = &engine->completed;
    engine->epoll = engine->wake = -1;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    engine->messages = ddl__messages_create(config->rank, config->size, config->messages,
                                            config->names, &engine->lock);
    if (!open_descriptors(engine)) {
        ddl__fail(DDL_ESYSTEM, "no descriptors for a comm: %s", strerror(errno));
    } else if (!make_runner(engine) || !engine->messages) {
        ddl__fail(DDL_ENOMEM, "no memory for %d links", config->size);
    } else {
        return engine;
    }
    ddl__engine_destroy(engine);
    return NULL;
}

ddl__link *const *ddl__engine_links(const ddl__engine *engine)
{
    return engine->config.links;
}

void ddl__engine_all_shared(ddl__engine *engine)
{
    engine->all_shared = true;
}

void ddl__engine_destroy(ddl__engine *engine)
{
    if (!engine)
        return;
    if (pending(engine))
        ddl__engine_abort(engine, "ddl_comm_destroy while operations were pending");
    for (ddl_work *work = engine->completed, *next; work; work = next) {
        next = work->next;
        leave_list(work);
    }
    ddl__messages_destroy(engine->messages);
    ddl__links_destroy(engine->config.messages, (size_t)engine->config.size);
    ddl__links_destroy(engine->config.links, (size_t)engine->config.size);
    ddl__plans_clear(&engine->plans);
    free(engine->runner.lending);
    free(engine->runner.targets);
    free(engine->runner.operands);
    ddl__close_guarded(engine->epoll);
    ddl__close_guarded(engine->wake);
    pthread_cond_destroy(&engine->changed);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}
