/* wireup_state.h - the insides of the wireup, for the files that make it up: wireup.c (whom to
 * dial, and over what), wireup_dial.c (one connection), wireup_tcp.c (paths and lanes),
 * wireup_accept.c (the dialed side), wireup_links.c (links from connections). */
#ifndef DDL_CONNECT_WIREUP_STATE_H
#define DDL_CONNECT_WIREUP_STATE_H

#include <string.h>

#include "connect/discover.h"
#include "connect/wireup.h"

/* A connection to a peer, over which our hello and its proof were sent. */
typedef struct ddl__dial_attempt {
    int fd; /* -1: none */
    ddl__hello hello;
    ddl__session session;
} ddl__dial_attempt;

/* What a rank does to join a lower one. All are dialed before an answer is waited for. */
typedef struct ddl__peer_dial {
    ddl__dial_attempt attempt;
    ddl__dial_attempt messages; /* dialed beside it where neither has lanes */
    bool local, tcp;    /* which way it was begun; tcp: messages have connections of their own */
    bool peer_is_local; /* it has a unix socket on this host */
    ddl__paths paths;
    unsigned path, lanes; /* the path by which the peer answers; of the link, 0: none */
    ddl_status status;    /* of the last path that was tried, */
    char why[200];        /* and what was wrong with it */
} ddl__peer_dial;

static inline bool ddl__is_over_tcp(uint8_t kind)
{
    return kind == DDL__CONN_TCP || kind == DDL__CONN_MESSAGES;
}

static inline bool ddl__link_is_tcp(const ddl__link *link)
{
    return !strcmp(link->ops->kind, "tcp");
}

/* ---- wireup_links.c ---- */

/* Make the link, or both, of what the two sides exchanged, as the hello says, or give it a lane.
 * Takes `fd` over only on success; `passed` is closed. */
bool ddl__wireup_make_links(const ddl__wireup *w, int peer, const ddl__hello *hello,
                            const ddl__session *session, ddl__side side, int fd, int passed,
                            uint64_t pointer);

/* Forget what make_links made. */
void ddl__wireup_unmake_links(const ddl__wireup *w, int peer, uint8_t kind);

/* ---- wireup_dial.c ---- */

int64_t ddl__wireup_address_deadline(const ddl__wireup *w);

ddl__hello ddl__wireup_hello(const ddl__wireup *w, int peer, uint8_t kind);

void ddl__dial_cancel(ddl__dial_attempt *d);

/* Start the handshake, with our memory; do not wait for an answer. Takes fd over. */
ddl_status ddl__dial_start(const ddl__wireup *w, ddl__dial_attempt *d, int fd,
                           const ddl__hello *hello);

/* Wait until the peer's endpoint admits us. */
ddl_status ddl__dial_await_admission(const ddl__wireup *w, ddl__dial_attempt *d);

/* Whether both links with the peer are there, with all their lanes. */
bool ddl__wireup_is_connected(const ddl__wireup *w, int peer);

/* "1 on a, 3 on b": the members that are waited for. Of lower ranks that is one at a time. */
void ddl__wireup_list_missing(const ddl__wireup *w, char *list, size_t size);

/* A member that cannot create the comm says so, or why it has hung up; who just goes away again
 * ends the creation for all as well. */
ddl_status ddl__wireup_check_members(const ddl__wireup *w);

/* Wait until the peer's comm accepts us, and make the link. */
ddl_status ddl__dial_join(const ddl__wireup *w, int peer, ddl__dial_attempt *d);

/* ---- wireup_tcp.c ---- */

/* Dial by the first path on which there is somebody. */
void ddl__wireup_dial_path(const ddl__wireup *w, int peer, ddl__peer_dial *a, uint8_t kind);

void ddl__wireup_start_tcp(const ddl__wireup *w, int peer, ddl__peer_dial *a);

/* The link, with its lanes. */
ddl_status ddl__wireup_join_tcp(const ddl__wireup *w, int peer, ddl__peer_dial *a);

ddl_status ddl__wireup_join_messages(const ddl__wireup *w, int peer, ddl__peer_dial *a);

/* ---- wireup_accept.c ---- */

ddl_status ddl__wireup_accept_higher(const ddl__wireup *w);

#endif
