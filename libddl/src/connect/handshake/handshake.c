/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/handshake/handshake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/test_points.h"
#include "base/text.h"
#include "net/socket.h"

_Static_assert(sizeof(((ddl__inbound *)0)->received) == sizeof(ddl__hello) + DDL__KEY, "no gap");

/* ----------------------------------------------------------------------------------------- keys */

ddl_status ddl__job_open(ddl__job *job, const char *secret, bool encrypts)
{
    static const char label[] =
        "libddl: the key of a job"; /* a key of at least 112 bits, as FIPS requires */
    memset(job, 0, sizeof *job);
    job->encrypts = encrypts;
    bool has_secret = secret && *secret;
    if (!has_secret && encrypts)
        return ddl__fail(DDL_EINVAL, "encryption (DDL_ENCRYPT=1 or encrypt) needs a secret for its "
                                     "keys: set DDL_SECRET or DDL_SECRET_FILE on all ranks");
    if (!has_secret)
        return DDL_OK;
    if (!(job->crypto = ddl__crypto_open()))
        return DDL_EUNSUPPORTED;
    return ddl__hmac(job->crypto, label, sizeof label, secret, strlen(secret), job->key)
               ? DDL_OK
               : DDL_ESYSTEM;
}

void ddl__job_close(ddl__job *job)
{
    ddl__erase_secret(job->key, sizeof job->key);
    ddl__crypto_close(job->crypto);
    job->crypto = NULL;
}

bool ddl__prove(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                const void *bytes, size_t n, unsigned char proof[DDL__KEY])
{
    memset(proof, 0, DDL__KEY);
    if (!job->crypto)
        return true;
    unsigned char key[DDL__KEY], of = (unsigned char)label;
    bool ok = ddl__hmac(job->crypto, session->key, sizeof session->key, &of, sizeof of, key) &&
              ddl__hmac(job->crypto, key, sizeof key, bytes, n, proof);
    ddl__erase_secret(key, sizeof key);
    return ok;
}

bool ddl__is_proven(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                    const void *bytes, size_t n, const unsigned char proof[DDL__KEY])
{
    unsigned char right[DDL__KEY];
    bool proven = ddl__prove(job, session, label, bytes, n, right) &&
                  ddl__equal_constant_time(right, proof, sizeof right);
    ddl__erase_secret(right, sizeof right);
    return proven;
}

void ddl__session_end(ddl__session *session)
{
    ddl__erase_secret(session, sizeof *session);
}

bool ddl__session_begin(const ddl__job *job, const ddl__hello *hello, const ddl__hello *challenge,
                        ddl__session *session, unsigned char proof[DDL__KEY])
{
    struct {
        char label[16];
        ddl__hello hello, challenge;
    } keyed = {"libddl session", *hello, *challenge};
    memset(session, 0, sizeof *session);
    return (!job->crypto || ddl__hmac(job->crypto, job->key, sizeof job->key, &keyed, sizeof keyed,
                                      session->key)) &&
           ddl__prove(job, session, DDL__AUTH_HELLO, NULL, 0, proof);
}

bool ddl__answer_prove(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                       ddl__hello *answer)
{
    if (label == DDL__AUTH_MEMBER)
        (void)DDL__TEST_POINT(DDL__AT_ANSWER, answer);
    return ddl__prove(job, session, label, answer, offsetof(ddl__hello, proof), answer->proof);
}

bool ddl__answer_is_proven(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                           const ddl__hello *answer)
{
    return ddl__is_proven(job, session, label, answer, offsetof(ddl__hello, proof), answer->proof);
}

static bool hello_draw_nonce(const ddl__job *job, ddl__hello *hello)
{
    memset(hello->nonce, 0, sizeof hello->nonce);
    return !job->crypto || ddl__random(hello->nonce, sizeof hello->nonce);
}

static uint32_t job_flags(const ddl__job *job)
{
    return (job->crypto ? DDL__HELLO_SECRET : 0u) | (job->encrypts ? DDL__HELLO_ENCRYPT : 0u);
}

/* Describe which setting differs between the two ranks. */
static void describe_flag_mismatch(uint32_t dialer, uint32_t from, uint32_t dialed, uint32_t to,
                                   char *text, size_t size)
{
    uint32_t flag = (dialer ^ dialed) & DDL__HELLO_SECRET ? DDL__HELLO_SECRET : DDL__HELLO_ENCRYPT;
    bool secret = flag == DDL__HELLO_SECRET;
    snprintf(text, size,
             secret ? "rank %u has a secret (DDL_SECRET), and rank %u has none"
                    : "rank %u encrypts (DDL_ENCRYPT=1), and rank %u does not",
             dialer & flag ? from : to, dialer & flag ? to : from);
}

ddl_status ddl__session_seal(const ddl__job *job, const ddl__session *session, int fd,
                             ddl__side side, ddl__seal **seal)
{
    unsigned char keys[2][DDL__KEY];
    int domain = AF_UNIX;
    socklen_t length = sizeof domain;
    *seal = NULL;
    if (!job->encrypts)
        return DDL_OK;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length))
        return ddl__fail(DDL_ESYSTEM, "%s", strerror(errno));
    if (domain == AF_UNIX)
        return DDL_OK;
    if (ddl__prove(job, session, DDL__AUTH_DIALER_KEY, NULL, 0, keys[DDL__DIALER]) &&
        ddl__prove(job, session, DDL__AUTH_LISTENER_KEY, NULL, 0, keys[DDL__DIALED]))
        *seal = ddl__seal_create(job->crypto, keys[side], keys[!side]);
    ddl__erase_secret(keys, sizeof keys);
    return *seal ? DDL_OK : DDL_ESYSTEM;
}

/* ----------------------------------------------------------------------------------- the dialer */

ddl__hello ddl__hello_begin(const ddl__job *job, uint8_t kind, int from, int to, int size)
{
    ddl__hello hello;
    memset(&hello, 0, sizeof hello);
    hello.magic = DDL__HELLO_MAGIC;
    hello.protocol = DDL__PROTOCOL;
    hello.kind = kind;
    hello.from = (uint32_t)from;
    hello.to = (uint32_t)to;
    hello.size = (uint32_t)size;
    hello.flags = job_flags(job);
    return hello;
}

/* Check the head first: a peer that does not use this protocol may never send the rest. */
static ddl_status receive_hello_answer(int fd, ddl__hello *answer, int64_t deadline)
{
    if (!ddl__recv_all(fd, answer, DDL__HELLO_HEAD, deadline))
        return ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
    ddl_status status = ddl__hello_check(answer);
    if (status != DDL_OK)
        return status;
    if (!ddl__recv_all(fd, (char *)answer + DDL__HELLO_HEAD, sizeof *answer - DDL__HELLO_HEAD,
                       deadline))
        return ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
    if (answer->status == DDL_INPROGRESS)
        return DDL_OK;
    ddl__sanitize_text(answer->text, sizeof answer->text);
    return ddl__fail(DDL_EREFUSED, "%s", answer->text);
}

/* Fail if the peer's settings differ, so that no proof is sent to it. */
static ddl_status check_challenge(const ddl__hello *hello, const ddl__hello *challenge)
{
    char why[sizeof hello->text];
    if (challenge->flags == hello->flags)
        return DDL_OK;
    describe_flag_mismatch(hello->flags, hello->from, challenge->flags, hello->to, why, sizeof why);
    return ddl__fail(DDL_EREFUSED, "%s", why);
}

static const ddl__hello no_challenge;

ddl_status ddl__handshake_start(const ddl__job *job, int fd, ddl__hello *hello, int passed,
                                int64_t deadline, ddl__session *session)
{
    struct {
        ddl__hello hello;
        unsigned char proof[DDL__KEY];
    } message;
    ddl_status status = DDL_ESYSTEM;
    if (hello_draw_nonce(job, hello) &&
        ddl__session_begin(job, hello, &no_challenge, session, message.proof)) {
        /* Send the hello and the proof in one piece: TCP would delay a second piece until the first
         * is acknowledged. But if there is a descriptor, it must be attached to the proof alone. */
        message.hello = *hello;
        size_t first = passed >= 0 ? sizeof message.hello : 0;
        bool sent = (!first || ddl__send_all(fd, &message, first, deadline)) &&
                    ddl__send_with_fd(fd, (char *)&message + first, sizeof message - first, passed,
                                      deadline);
        /* A peer that refused the hello may have closed the connection already. Its answer, which
         * gives the reason, can still be read. */
        bool peer_closed = !sent && (errno == EPIPE || errno == ECONNRESET);
        status = sent || peer_closed ? DDL_OK : ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
    }
    return status;
}

ddl_status ddl__handshake_finish(const ddl__job *job, int fd, int64_t deadline,
                                 const ddl__session *session, bool *handed_over)
{
    ddl__hello answer;
    ddl_status status = receive_hello_answer(fd, &answer, deadline);
    *handed_over = status != DDL_EREFUSED; /* a peer that refuses does not take over the reference
                                              that the hello carries */
    if (status == DDL_OK && !ddl__answer_is_proven(job, session, DDL__AUTH_ADMISSION, &answer))
        status = ddl__fail(DDL_EREFUSED, "it does not know the job's secret");
    return status;
}

ddl_status ddl__handshake_initiate(const ddl__job *job, int fd, ddl__hello *hello, int64_t deadline,
                                   ddl__session *session)
{
    ddl__hello challenge;
    unsigned char proof[DDL__KEY];
    bool handed_over;
    if (!hello_draw_nonce(job, hello))
        return DDL_ESYSTEM;
    if (!ddl__send_all(fd, hello, sizeof *hello, deadline))
        return ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
    ddl_status status = receive_hello_answer(fd, &challenge, deadline);
    if (status == DDL_OK)
        status = check_challenge(hello, &challenge);
    if (status == DDL_OK && !ddl__session_begin(job, hello, &challenge, session, proof))
        status = DDL_ESYSTEM;
    if (status != DDL_OK)
        return status;
    if (!ddl__send_all(fd, proof, sizeof proof, deadline))
        return ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
    return ddl__handshake_finish(job, fd, deadline, session, &handed_over);
}

/* ----------------------------------------------------------------------------- the dialed side */

static void inbound_send(const ddl__inbound *inbound, const ddl__hello *answer)
{
    ddl__send_all(inbound->fd, answer, sizeof *answer,
                  0); /* the answer always fits the buffer of a new connection */
}

static void inbound_refuse(const ddl__inbound *inbound, const char *why)
{
    ddl__hello answer = ddl__hello_answer(&inbound->received.hello, DDL_EREFUSED, why);
    inbound_send(inbound, &answer);
    ddl__fail(DDL_EREFUSED, "%s", why);
}

/* Answer a hello: refuse it, or send a challenge unless it is numbered. */
static ddl__inbound_event inbound_answer(const ddl__job *job, ddl__inbound *inbound,
                                         ddl__refusal_fn *refusal, const void *context)
{
    const ddl__hello *hello = &inbound->received.hello;
    char own[sizeof hello->text];
    const char *why = NULL;
    if (ddl__hello_check(hello) != DDL_OK) {
        snprintf(own, sizeof own, "%s", ddl__message());
        why = own;
    } else if (!(why = refusal(inbound, context)) && hello->flags != job_flags(job)) {
        describe_flag_mismatch(hello->flags, hello->from, job_flags(job), hello->to, own,
                               sizeof own);
        why = own;
    }
    if (!why && !(hello->number && inbound->replay_guard)) {
        inbound->challenge = ddl__hello_answer(hello, DDL_INPROGRESS, NULL);
        inbound->challenge.flags = job_flags(job);
        if (hello_draw_nonce(job, &inbound->challenge))
            inbound_send(inbound, &inbound->challenge);
        else
            why = "it has no random bytes";
    }
    inbound->welcome = !why;
    if (!why)
        return DDL__INBOUND_NONE;
    inbound_refuse(inbound, why);
    return DDL__INBOUND_REFUSED;
}

/* Consume the hello, the proof and its descriptor from a unix socket, where they were only peeked
 * at. */
static bool inbound_take_proof(ddl__inbound *inbound)
{
    if (inbound->passed >= 0)
        close(inbound->passed);
    inbound->passed = -1;
    return !inbound->local ||
           (ddl__recv_all(inbound->fd, &inbound->received.hello, sizeof inbound->received.hello,
                          0) &&
            ddl__recv_with_fd(inbound->fd, inbound->received.proof, sizeof inbound->received.proof,
                              &inbound->passed, 0));
}

/* Verify the proof and send the answer. */
static ddl__inbound_event inbound_verify(const ddl__job *job, ddl__inbound *inbound)
{
    const ddl__hello *hello = &inbound->received.hello;
    ddl__hello answer = ddl__hello_answer(hello, DDL_INPROGRESS, NULL);
    unsigned char right[DDL__KEY];
    bool proven = ddl__session_begin(job, hello, &inbound->challenge, &inbound->session, right) &&
                  ddl__equal_constant_time(right, inbound->received.proof, sizeof right);
    ddl__erase_secret(right, sizeof right);
    /* Without a valid proof under a secret, the number proves nothing, so it is not recorded. */
    bool fresh = !hello->number || !inbound->replay_guard || !job->crypto || !proven ||
                 ddl__replay_guard_add(inbound->replay_guard, hello->dialer, hello->number);
    if (proven && fresh &&
        ddl__answer_prove(job, &inbound->session, DDL__AUTH_ADMISSION, &answer) &&
        inbound_take_proof(inbound)) {
        inbound_send(inbound, &answer);
        return DDL__INBOUND_PROVEN;
    }
    ddl__session_end(&inbound->session);
    inbound_refuse(inbound,
                   fresh ? "another job: the secrets differ" : "this hello was sent before");
    return DDL__INBOUND_REFUSED;
}

/* Receive more bytes of a message, up to `want` bytes in total. Return the number of new bytes, 0
 * at the end of the connection, or -1 with errno. */
static ssize_t inbound_receive(ddl__inbound *inbound, size_t want)
{
    bool has_fd;
    char *bytes = (char *)&inbound->received;
    if (!inbound->local)
        return recv(inbound->fd, bytes + inbound->have, want - inbound->have, MSG_DONTWAIT);
    ssize_t n = ddl__peek_some(inbound->fd, bytes, want, &has_fd);
    if (n <= 0)
        return n;
    /* Only the proof may carry a descriptor. When the hello is peeked at, the proof may lie behind
     * it, and the kernel then reports the proof's descriptor as well. */
    if (has_fd && (size_t)n < want)
        return 0;
    if ((size_t)n > inbound->have)
        return n - (ssize_t)inbound->have;
    errno = EAGAIN;
    return -1;
}

/* Receive like inbound_receive, but also return 0 if the peer has closed a unix socket. Its last
 * bytes may have arrived between the first attempt and the check, so receive once more after the
 * check. */
static ssize_t inbound_receive_or_end(ddl__inbound *inbound, size_t want)
{
    ssize_t n = inbound_receive(inbound, want);
    if (!inbound->local || n >= 0 || errno != EAGAIN)
        return n;
    bool ended = ddl__has_ended(inbound->fd);
    n = inbound_receive(inbound, want);
    return n < 0 && errno == EAGAIN && ended ? 0 : n;
}

/* Receive once, and answer a complete hello or proof. A message that is not a hello may never
 * become complete, so its head is checked early. */
static ddl__inbound_event inbound_advance(const ddl__job *job, ddl__inbound *inbound,
                                          ddl__refusal_fn *refusal, const void *context)
{
    size_t whole = sizeof inbound->received.hello;
    ssize_t n =
        inbound_receive_or_end(inbound, inbound->have < whole ? whole : sizeof inbound->received);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? DDL__INBOUND_NONE
                                                            : DDL__INBOUND_CLOSED;
    inbound->have += (size_t)n;
    if (inbound->have == sizeof inbound->received)
        return inbound_verify(job, inbound);
    if (inbound->have == whole || (inbound->have >= DDL__HELLO_HEAD && !inbound->welcome &&
                                   ddl__hello_check(&inbound->received.hello) != DDL_OK))
        return inbound_answer(job, inbound, refusal, context);
    return DDL__INBOUND_NONE;
}

ddl__inbound_event ddl__inbound_read(const ddl__job *job, ddl__inbound *inbound,
                                     ddl__refusal_fn *refusal, const void *context)
{
    ddl__inbound_event event;
    size_t had;
    do {
        had = inbound->have;
        event = inbound_advance(job, inbound, refusal, context);
    } while (event == DDL__INBOUND_NONE && inbound->have > had);
    return event;
}
