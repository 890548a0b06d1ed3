/* SPDX-License-Identifier: Apache-2.0 */
/* handshake.h - the messages by which the two ends of a new connection prove to each other that
 * they know the job's secret, without sending it.
 *
 *   dialer                       dialed
 *   hello, with a nonce   ->
 *                         <-     challenge: another nonce; or a refusal
 *   proof                 ->
 *                         <-     the endpoint's answer, with a proof; or a refusal
 *                         <-     for a link: the member's answer, with a proof, when it is ready
 *
 * A dialer that connects to an endpoint knows the endpoint's random id, so it needs no challenge.
 * It numbers its hellos, and sends hello and proof together. No number is accepted twice
 * (connect/handshake/replay_guard.h). The challenge is then all zeros.
 *
 * The session's key is an HMAC of the hello and the challenge under the job's key. A proof is an
 * HMAC under the session's key. It covers a label, which distinguishes kinds of proofs, and the
 * bytes that it authenticates. In a job without a secret, keys and proofs are zero.
 * docs/security.md explains what this protects. */
#ifndef DDL_CONNECT_HANDSHAKE_H
#define DDL_CONNECT_HANDSHAKE_H

#include <stdint.h>

#include "connect/handshake/hello.h"
#include "connect/handshake/replay_guard.h"
#include "net/seal.h"

/* The secret and the settings that all processes of a job share. */
typedef struct ddl__job {
    ddl__crypto *crypto; /* NULL: no secret */
    unsigned char key[DDL__KEY];
    bool encrypts;
} ddl__job;

/* Set up the job's key from its secret. A job without a secret (NULL or "") cannot encrypt. */
ddl_status ddl__job_open(ddl__job *job, const char *secret, bool encrypts);
void ddl__job_close(ddl__job *job);

/* The state of two ends that have proven the secret to each other. The holder of a session owns its
 * key, and must end the session in any case, even after an error. A seal derives its own keys, so
 * it may outlive the session. If a session is copied, the receiver ends the copy, and the holder of
 * the original ends the original. */
typedef struct ddl__session {
    unsigned char key[DDL__KEY];
} ddl__session;

/* Erase the session's key from memory. */
void ddl__session_end(ddl__session *session);

/* The purpose of a proof. A proof with one label is not valid for another. */
typedef enum ddl__auth_label {
    DDL__AUTH_HELLO = 1,
    DDL__AUTH_ADMISSION,
    DDL__AUTH_MEMBER,
    DDL__AUTH_RECORD,
    DDL__AUTH_RECORDS,
    DDL__AUTH_DIALER_KEY,
    DDL__AUTH_LISTENER_KEY
} ddl__auth_label;

/* Compute the proof of n bytes; verify a proof. */
bool ddl__prove(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                const void *bytes, size_t n, unsigned char proof[DDL__KEY]);
bool ddl__is_proven(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                    const void *bytes, size_t n, const unsigned char proof[DDL__KEY]);

/* Derive the session from a hello and its challenge, and compute the dialer's proof. */
bool ddl__session_begin(const ddl__job *job, const ddl__hello *hello, const ddl__hello *challenge,
                        ddl__session *session, unsigned char proof[DDL__KEY]);

/* Compute the proof that an answer carries; verify the proof of an answer. */
bool ddl__answer_prove(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                       ddl__hello *answer);
bool ddl__answer_is_proven(const ddl__job *job, const ddl__session *session, ddl__auth_label label,
                           const ddl__hello *answer);

/* Create the seal that encrypts a TCP connection from now on; the caller owns *seal. *seal is NULL
 * if the job does not encrypt, or over a unix socket. */
typedef enum ddl__side { DDL__DIALER, DDL__DIALED } ddl__side;
ddl_status ddl__session_seal(const ddl__job *job, const ddl__session *session, int fd,
                             ddl__side side, ddl__seal **seal);

/* ---- the dialer ---- */

/* Return a hello with these fields; all others are zero. */
ddl__hello ddl__hello_begin(const ddl__job *job, uint8_t kind, int from, int to, int size);

/* Send a numbered hello, its proof, and the descriptor `passed` (-1: none). Does not wait for an
 * answer. The caller ends the session, even on failure. */
ddl_status ddl__handshake_start(const ddl__job *job, int fd, ddl__hello *hello, int passed,
                                int64_t deadline, ddl__session *session);

/* Wait until the endpoint has admitted this rank. *handed_over is set even on failure; it is true
 * if the peer now owns the reference that the hello carries. */
ddl_status ddl__handshake_finish(const ddl__job *job, int fd, int64_t deadline,
                                 const ddl__session *session, bool *handed_over);

/* Run the whole handshake, with a challenge. Returns when the endpoint has admitted this rank. The
 * caller ends the session, even on failure. */
ddl_status ddl__handshake_initiate(const ddl__job *job, int fd, ddl__hello *hello, int64_t deadline,
                                   ddl__session *session);

/* ---- the dialed side, which never blocks ---- */

/* The handshake of an incoming connection. Zero-initialize it, except fd and passed. Set passed to
 * -1, or to a descriptor whose number is reserved for the descriptor that the proof may carry. Data
 * of a unix socket (`local`) is only peeked at until the proof is verified (see closer.h), so such
 * a socket must be watched edge-triggered. */
typedef struct ddl__inbound {
    int fd, passed; /* passed: the descriptor that was sent with the proof, or -1 */
    bool local;
    ddl__replay_guard *replay_guard; /* records numbered hellos; NULL: challenge all hellos */
    size_t have;                     /* number of bytes in `received` */
    bool welcome;                    /* the hello was not refused, and the proof is awaited */
    struct {
        ddl__hello hello;
        unsigned char proof[DDL__KEY];
    } received;
    ddl__hello challenge;
    ddl__session session; /* set once the secret is proven; its owner ends it */
} ddl__inbound;

typedef enum ddl__inbound_event {
    DDL__INBOUND_NONE,
    DDL__INBOUND_PROVEN,  /* the proof is valid, and the endpoint's answer was sent */
    DDL__INBOUND_REFUSED, /* a refusal was sent, and the message is set */
    DDL__INBOUND_CLOSED   /* the client has closed the connection */
} ddl__inbound_event;

/* Return the reason to refuse a complete hello, or NULL. Hellos that do not fit the job are refused
 * anyway. */
typedef const char *ddl__refusal_fn(const ddl__inbound *inbound, const void *context);

/* Read until there is an event or no data is left. Answer an acceptable hello with a challenge,
 * unless it is numbered, and a valid proof with an admission. */
ddl__inbound_event ddl__inbound_read(const ddl__job *job, ddl__inbound *inbound,
                                     ddl__refusal_fn *refusal, const void *context);

#endif
