/* SPDX-License-Identifier: Apache-2.0 */
/* The points in the life of a comm at which C tests can stop, kill, delay or fail a member. A test
 * sets ddl__test_hook, which gets the point and its subject. If the hook returns another status
 * than DDL_OK, the step fails with it. A library built without tests has no hook, and its
 * operations pass no points. Each comment below describes the point, and then names its subject. */
#ifndef DDL_BASE_TEST_POINTS_H
#define DDL_BASE_TEST_POINTS_H

#include "ddl/ddl.h"

typedef enum ddl__test_point {
    DDL__AT_WIREUP,    /* no member is connected; the ddl__wireup */
    DDL__AT_ENGINE,    /* all links are open, and the engine does not exist; the ddl__wireup */
    DDL__AT_CONTROL,   /* this member has not dialed its control connections; the ddl_comm */
    DDL__AT_HEALTH,    /* this member waits for control connections; the ddl_comm */
    DDL__AT_DETECTOR,  /* all control connections are open, and not yet watched; the ddl__health */
    DDL__AT_AGREEMENT, /* the members will exchange their settings; the ddl_comm */
    DDL__AT_LAYOUT,    /* the settings are exchanged, and the layout is applied; the ddl_comm */
    DDL__AT_COMMIT,    /* the barrier that commits the comm comes next; the ddl_comm */
    DDL__AT_FAILURE, /* the creation has failed, and no other member is informed yet; the ddl_status
                      */
    DDL__AT_ENGINE_END, /* this member has left, and its engine exists; the ddl_comm */
    /* While members connect, in a creation or on first use of a link. */
    DDL__AT_PATH,       /* the socket is not open; the hello. A hook that fails must set errno */
    DDL__AT_HELLO,      /* the socket is open, and the hello not sent; the hello */
    DDL__HELLO_SENT,    /* the hello was sent; the hello */
    DDL__ADMITTED,      /* the peer's endpoint has accepted the hello; the hello */
    DDL__AT_ACCEPT,     /* in a creation, before a connection is accepted; the ddl__wireup */
    DDL__AT_ANSWER,     /* the answer to a peer's hello is not proven and sent; the answer */
    DDL__AT_OPENING,    /* both ranks have agreed to open a link on first use; its ddl__link */
    DDL__AT_SUPERSEDED, /* the peer is at a later creation of the comm; the ddl_endpoint */
    DDL__AT_REASON,     /* a member is lost, and the search for the reason begins; the
                         * ddl__wireup */
    /* While the address list of a large job is distributed. */
    DDL__AT_ASKING, /* this rank knows which rank has the list; a ddl__rendezvous_record */
    DDL__AT_GIVING, /* the list is about to be sent; the ddl__rendezvous_plan */
    /* Operations. */
    DDL__AT_SLEEP, /* the driver has announced its sleep, and polls once more; the ddl__engine */
    /* Heartbeats. */
    DDL__AT_BEAT,      /* heartbeats are due; the ddl__health */
    DDL__AT_HEARTBEAT, /* a heartbeat is about to be sent; the ddl__member */
} ddl__test_point;

#ifdef DDL__TEST_POINTS
extern ddl_status (*ddl__test_hook)(ddl__test_point point, const void *subject);
#define DDL__TEST_POINT(point, subject)                                                            \
    (ddl__test_hook ? ddl__test_hook((point), (subject)) : DDL_OK)
#else
#define DDL__TEST_POINT(point, subject) DDL_OK
#endif

#endif
