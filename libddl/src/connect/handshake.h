/* handshake.h - how the two ends of a new connection prove to each other that they know the job's
 * secret, which neither says.
 *
 *   dialer                       dialed
 *   hello, with a nonce   ->
 *                         <-     challenge: another nonce; or a refusal
 *   proof                 ->
 *                         <-     the endpoint's answer, proven; or a refusal
 *                         <-     for a link: the member's answer, proven, when it is ready
 *
 * Who comes to an endpoint, whose random id it knows, needs no challenge: it numbers its hellos,
 * says hello and proof at once, and no number is accepted twice (connect/replay_guard.h). The
 * challenge is all zeros then. A rendezvous has no such id, and challenges.
 *
 * The session's key is an HMAC of the hello and the challenge under the job's key, so it is of this
 * connection only, and of all that was said in it: whom the dialer wants, as whom, and for what. A
 * proof is an HMAC under that key, of a label that says whose it is, and of what it vouches for.
 * The dialer proves first: who merely finds a port learns nothing by which secrets could be tried.
 * In a job without a secret keys and proofs are zero. */
#ifndef DDL_CONNECT_HANDSHAKE_H
#define DDL_CONNECT_HANDSHAKE_H

#include <stdint.h>

#include "connect/hello.h"
#include "connect/replay_guard.h"
#include "net/seal.h"

/* What the processes of a job share. */
typedef struct ddl__job {
    ddl__crypto *crypto; /* NULL: no secret */
    unsigned char key[DDL__KEY];
    bool encrypts;
} ddl__job;

/* An empty secret is none, and cannot encrypt. */
ddl_status ddl__job_open(ddl__job *job, const char *secret, bool encrypts);
void ddl__job_close(ddl__job *job);

/* Two ends that have proven the secret to each other. Whoever holds one owns its key and ends it on
 * every way out; what needs keys for longer, a seal, has made its own of it by then. A copy that is
 * handed_over on is the receiver's, and the giver ends its own. */
typedef struct ddl__session {
    unsigned char key[DDL__KEY];
} ddl__session;

/* Nobody reads its key in our memory any more. */
void ddl__session_end(ddl__session *session);

/* Under what a proof is given: so none can be taken for another one. */
typedef enum ddl__auth_label {
    DDL__AUTH_HELLO = 1,
    DDL__AUTH_ADMISSION,
    DDL__AUTH_MEMBER,
    DDL__AUTH_RECORD,
    DDL__AUTH_RECORDS,
    DDL__AUTH_DIALER_KEY,
    DDL__AUTH_LISTENER_KEY
} ddl__auth_label;

/* The proof of n bytes, and whether one is right. */
bool ddl__prove(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                const void *bytes, size_t n, unsigned char proof[DDL__KEY]);
bool ddl__is_proven(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                    const void *bytes, size_t n, const unsigned char proof[DDL__KEY]);

/* The session that a hello and its challenge make, and the dialer's proof in it. */
bool ddl__session_begin(const ddl__job *job, const ddl__hello *hello, const ddl__hello *challenge,
                        ddl__session *session, unsigned char proof[DDL__KEY]);

/* An answer carries its own proof. */
bool ddl__answer_prove(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                       ddl__hello *answer);
bool ddl__answer_is_proven(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                           const ddl__hello *answer);

/* What is said over a TCP connection from here on is encrypted, where the job does so: *seal is the
 * caller's, and NULL where it does not. */
typedef enum ddl__side { DDL__DIALER, DDL__DIALED } ddl__side;
ddl_status ddl__session_seal(const ddl__job *job, const ddl__session *session, int fd,
                             ddl__side side, ddl__seal **seal);

/* ---- the dialer ---- */

/* Begin a hello, in which all else is zero. */
ddl__hello ddl__hello_begin(const ddl__job *job, uint8_t kind, int from, int to, int size);

/* Say a numbered hello and its proof, beside which `passed`, or -1, goes; does not wait for an
 * answer. The session is the caller's to end then; on failure it is ended. */
ddl_status ddl__handshake_start(const ddl__job *job, int fd, ddl__hello *hello, int passed,
                                int64_t deadline, ddl__session *session);

/* Wait until the endpoint has admitted us. *handed_over and the session are as below. */
ddl_status ddl__handshake_finish(const ddl__job *job, int fd, int64_t deadline,
                                 ddl__session *session, bool *handed_over);

/* Make the whole handshake: returns when the endpoint has admitted us. `passed`, or -1, goes with
 * the proof. *handed_over, if not NULL, tells whether what the hello points to is the peer's now,
 * also on failure. The session is the caller's to end then; on failure it is ended. */
ddl_status ddl__handshake_initiate(const ddl__job *job, int fd, ddl__hello *hello, int passed,
                                   int64_t deadline, ddl__session *session, bool *handed_over);

/* ---- the dialed one, who never blocks ---- */

/* Somebody who has come; begins as zeros, but for fd and passed: any descriptor that keeps room for
 * the one that comes along, or -1. Over a unix socket (`local`) nothing is taken out of the socket
 * before the proof: see closer.h. Its descriptor must be watched edge-triggered. */
typedef struct ddl__inbound {
    int fd, passed; /* passed: what came along with the proof, or -1 */
    bool local;
    ddl__replay_guard *replay_guard; /* numbered hellos; NULL: all are challenged */
    size_t have;                     /* bytes of what is said */
    struct {
        ddl__hello hello;
        unsigned char proof[DDL__KEY];
    } received;
    ddl__hello challenge;
    ddl__session session; /* once proven; its owner ends it */
} ddl__inbound;

typedef enum ddl__inbound_event {
    DDL__INBOUND_NONE,
    DDL__INBOUND_HELLO,   /* is whole, or none: challenge it or refuse it */
    DDL__INBOUND_PROVEN,  /* the endpoint's answer is given */
    DDL__INBOUND_REFUSED, /* its proof is wrong: it was told, and the message says so */
    DDL__INBOUND_CLOSED   /* it has left */
} ddl__inbound_event;

/* Take in what has come. */
ddl__inbound_event ddl__inbound_read(const ddl__job *job, ddl__inbound *inbound);

/* Answer a hello: with a challenge unless it is numbered, or with `why` it is refused. A job's own
 * reasons come first. False when it was refused; the message says why. */
bool ddl__inbound_challenge(const ddl__job *job, ddl__inbound *inbound, const char *why);

#endif
