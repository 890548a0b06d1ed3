/* SPDX-License-Identifier: Apache-2.0 */
/* Moments of a comm's life at which the C tests interfere: there a member stops, dies, is late or
 * fails. A test sets ddl__test_hook, which gets the moment and its subject; a status other than
 * DDL_OK is that of the step. The library of a build without tests has no hook, and no operation
 * passes a point. */
#ifndef DDL_BASE_TEST_POINTS_H
#define DDL_BASE_TEST_POINTS_H

#include "ddl/ddl.h"

typedef enum ddl__test_point {
    DDL__AT_WIREUP,     /* no member is connected; the ddl__wireup */
    DDL__AT_ENGINE,     /* all links are open, and the engine does not exist; the ddl__wireup */
    DDL__AT_CONTROL,    /* this member has dialled no control connection; the ddl_comm */
    DDL__AT_HEALTH,     /* it awaits the control connections; the ddl_comm */
    DDL__AT_DETECTOR,   /* all control connections are open, and not yet watched; the ddl__health */
    DDL__AT_AGREEMENT,  /* the members will exchange their settings; the ddl_comm */
    DDL__AT_LAYOUT,     /* they have agreed, and the layout is applied; the ddl_comm */
    DDL__AT_COMMIT,     /* the barrier that commits the comm comes next; the ddl_comm */
    DDL__AT_FAILURE,    /* the creation has failed, and the others do not know; the ddl_status */
    DDL__AT_ENGINE_END, /* this member has left, and its engine exists; the ddl_comm */
    /* While members connect, in a creation or on first use. */
    DDL__AT_PATH,       /* no socket is open; the hello; fails with errno */
    DDL__AT_HELLO,      /* the socket is open; the hello, which comes next */
    DDL__HELLO_SENT,    /* ... which was sent */
    DDL__ADMITTED,      /* ... which the peer's endpoint has accepted */
    DDL__AT_ACCEPT,     /* in a creation, before a connection is accepted; the ddl__wireup */
    DDL__AT_ANSWER,     /* the hello that answers the peer, to be proven and sent */
    DDL__AT_OPENING,    /* both have agreed to open a link on first use; its ddl__link */
    DDL__AT_SUPERSEDED, /* the peer is at a later creation of the comm; the ddl_endpoint */
    DDL__AT_REASON,     /* a member is lost: its reason is looked for; the ddl__wireup */
    /* While the list of addresses of a large job is handed out. */
    DDL__AT_ASKING, /* this rank knows which rank has the list: a ddl__rendezvous_record */
    DDL__AT_GIVING, /* the list is about to be sent; the ddl__rendezvous_plan */
    /* Operations. */
    DDL__AT_SLEEP, /* the driver has announced that it sleeps, and looks once more; the ddl__engine
                    */
    /* Heartbeats. */
    DDL__AT_BEAT,      /* the time has come to send them; the ddl__health */
    DDL__AT_HEARTBEAT, /* one is about to be sent; the ddl__member */
} ddl__test_point;

#ifdef DDL__TEST_POINTS
extern ddl_status (*ddl__test_hook)(ddl__test_point point, const void *subject);
#define DDL__TEST_POINT(point, subject)                                                            \
    (ddl__test_hook ? ddl__test_hook((point), (subject)) : DDL_OK)
#else
#define DDL__TEST_POINT(point, subject) DDL_OK
#endif

#endif
