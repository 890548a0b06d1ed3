/* SPDX-License-Identifier: Apache-2.0 */
/* wireup_state.h - the internals of the wireup, shared by its files: wireup.c (the order of
 * dialing, and the choice of transport), wireup_dial.c (one connection), wireup_tcp.c (paths and
 * lanes), wireup_accept.c (the dialed side), wireup_links.c (links from connections). */
#ifndef DDL_CONNECT_WIREUP_STATE_H
#define DDL_CONNECT_WIREUP_STATE_H

#include <string.h>

#include "connect/addresses/discover.h"
#include "connect/wireup/wireup.h"

/* A connection to a peer over which this rank has sent its hello and proof. */
typedef struct ddl__dial_attempt {
    int fd;    /* -1: none */
    int error; /* the errno of a failure to connect, or to wait for an answer */
    ddl__hello hello;
    ddl__session session;
} ddl__dial_attempt;

/* The state of dialing one lower rank. All lower ranks are dialed before waiting for the first
 * answer. */
typedef struct ddl__peer_dial {
    ddl__dial_attempt attempt;
    ddl__dial_attempt messages; /* the connection for messages, if the links have no lanes */
    bool local, tcp; /* the transport over which dialing was started; tcp: messages have their own
                        connections */
    bool first_use;  /* tcp: only the pair's control connection, no links yet */
    bool peer_is_local; /* the peer has a unix socket on this host */
    bool was_accepted;  /* tcp: a connection was made */
    ddl__paths paths;
    unsigned path, lanes; /* the path in use; the link's number of lanes, 0: no lanes */
    ddl_status status;    /* the status of the last path that was tried */
    char why[200];        /* the error message of that path */
} ddl__peer_dial;

static inline bool ddl__is_over_tcp(uint8_t kind)
{
    return kind == DDL__CONN_TCP || kind == DDL__CONN_MESSAGES || kind == DDL__CONN_PAIR;
}

static inline bool ddl__link_is_tcp(const ddl__link *link)
{
    return !strcmp(link->ops->kind, "tcp");
}

/* ---- wireup_links.c ---- */

/* Create the link, or both links, or add a lane, as the hello requests. `passed` or `pointer`
 * refers to the memory that the peer shares. Takes over `fd` only on success; closes `passed`. */
bool ddl__wireup_make_links(const ddl__wireup *w, int peer, const ddl__hello *hello,
                            const ddl__session *session, ddl__side side, int fd, int passed,
                            uint64_t pointer);

/* Write the connection's name for messages, such as "eth0 10.0.0.1 to 10.0.0.2". */
void ddl__wireup_name_connection(const ddl__address *own, int fd, char *name, size_t size);

/* Destroy the links that ddl__wireup_make_links has created. */
void ddl__wireup_unmake_links(const ddl__wireup *w, int peer, uint8_t kind);

/* ---- wireup_dial.c ---- */

/* Return the time `limit` from now, but not after the deadline. */
int64_t ddl__wireup_within(const ddl__wireup *w, int64_t limit);

ddl__hello ddl__wireup_hello(const ddl__wireup *w, int peer, uint8_t kind);

void ddl__dial_cancel(ddl__dial_attempt *d);

/* Start the handshake, and pass this rank's arena. Does not wait for an answer. Takes over fd. */
ddl_status ddl__dial_start(const ddl__wireup *w, ddl__dial_attempt *d, int fd,
                           const ddl__hello *hello);

/* Return the deadline of one step of a dial, `limit` from now, and the check to call while waiting.
 * The check answers higher ranks and checks the members. There is no check if the wireup has no
 * links. */
ddl__until ddl__wireup_until(const ddl__wireup *w, int64_t limit);

/* Return true if this status is only the failure of a path, so that other paths may be tried.
 * Otherwise the creation fails. */
static inline bool ddl__is_path_failure(const ddl__wireup *w, ddl_status status)
{
    bool is_told = w->creation && ddl__creation_is_told(w->creation);
    return !is_told && (status == DDL_EUNREACHABLE || status == DDL_EREFUSED);
}

/* Wait for the answer of the peer's endpoint. */
ddl_status ddl__dial_await_admission(const ddl__wireup *w, ddl__dial_attempt *d);

/* Return true if both links with the peer exist, with all their lanes. */
bool ddl__wireup_is_connected(const ddl__wireup *w, int peer);

/* Describe the members that this rank waits for, and the endpoint's last refusal, like "1 on a, 3
 * on b; it refused rank 2: ...". A rank waits for one lower rank at a time. Returns the number of
 * members named. */
enum { DDL__MISSING_TEXT = 400 };
int ddl__wireup_describe_missing(const ddl__wireup *w, char text[DDL__MISSING_TEXT]);

/* Fail with DDL_ETIMEDOUT, and name the missing ranks in the message. But if no rank is missing and
 * `otherwise` is an error, whose message is set, return `otherwise`. */
ddl_status ddl__wireup_fail_late(const ddl__wireup *w, ddl_status otherwise);

/* Fail if waiting is pointless (until.h), if a member has reported that it cannot create the comm,
 * or if a member takes part in a later creation. */
ddl_status ddl__wireup_check_reasons(const ddl__wireup *w);

/* Check the members as above, and also fail if a member has closed its link, with or without a
 * reason. */
ddl_status ddl__wireup_check_members(const ddl__wireup *w);

/* Wait for the answer of the peer's comm, and create the link. */
ddl_status ddl__dial_join(const ddl__wireup *w, int peer, ddl__dial_attempt *d);

/* ---- wireup_tcp.c ---- */

/* The ends of a path to a member. If is_bound is false, the local end may be any address. */
typedef struct ddl__path_ends {
    bool is_bound;
    socklen_t length; /* length of each address */
    struct sockaddr_storage from, to;
} ddl__path_ends;

ddl__path_ends ddl__wireup_path_ends(const ddl__wireup *w, int peer, ddl__path path);

/* Start a handshake with the peer over a path; see ddl__is_path_failure. */
ddl_status ddl__wireup_start_on_path(const ddl__wireup *w, int peer, ddl__dial_attempt *d,
                                     uint8_t kind, unsigned lane, ddl__path path);

/* Dial over the remaining paths in turn until one connects. If the result is not DDL_OK, a member
 * has failed. */
ddl_status ddl__wireup_dial_path(const ddl__wireup *w, int peer, ddl__peer_dial *a, uint8_t kind);

/* Connect to the ranks from `first` to first + n - 1 that use TCP (a[i].tcp), all at once, and
 * start their handshakes. If the result is not DDL_OK, a member has failed
 * (ddl__wireup_check_members). */
ddl_status ddl__wireup_start_tcp(const ddl__wireup *w, int first, int n, ddl__peer_dial *a);

/* Complete the link, with its lanes. */
ddl_status ddl__wireup_join_tcp(const ddl__wireup *w, int peer, ddl__peer_dial *a);

ddl_status ddl__wireup_join_messages(const ddl__wireup *w, int peer, ddl__peer_dial *a);

/* ---- wireup_accept.c ---- */

/* Wait for all higher ranks. */
ddl_status ddl__wireup_accept_higher(const ddl__wireup *w);

/* Accept the connections that are waiting. */
void ddl__wireup_accept_waiting(const ddl__wireup *w);

#endif
