/* SPDX-License-Identifier: Apache-2.0 */
/* ucx.h - links whose spans are sent over UCX, which supports InfiniBand, RoCE and other networks.
 * libucp.so.0 is loaded at run time. A link over UCX is a TCP link whose spans are sent over UCX.
 * The TCP connection remains for leave messages, for aborts, and for the detection of failures. */
#ifndef DDL_NET_UCX_H
#define DDL_NET_UCX_H

#include "net/link.h"
#include "net/tcp/slots.h"

typedef struct ddl__ucx ddl__ucx;

/* Return the value of an environment variable, or NULL if the user has not set it. */
typedef const char *ddl__ucx_lookup_fn(const char *name);

/* Load libucp and open its devices for the links of one comm. slots is borrowed. Sets some of UCX's
 * settings to other defaults, which replace the values of a ucx.conf, unless `lookup` finds the
 * setting's variable. Return NULL if UCX cannot be used, with the reason as message
 * (DDL_EUNSUPPORTED). */
ddl__ucx *ddl__ucx_create(ddl__slots *slots, int rank, int size, ddl__ucx_lookup_fn *lookup);

/* Return this rank's address, which the members exchange. */
const void *ddl__ucx_address(const ddl__ucx *ucx, size_t *bytes);

/* Return the version of libucp as text. */
const char *ddl__ucx_version(const ddl__ucx *ucx);

/* Return a descriptor that becomes readable when spans arrive. After an event, the thread must poll
 * one of the links (any of them). */
int ddl__ucx_fd(const ddl__ucx *ucx);

/* Keep the addresses of all members: `rows`, a row for each rank. Takes ownership. */
void ddl__ucx_set_addresses(ddl__ucx *ucx, void *rows, size_t row_bytes);

/* Send a probe to this peer, which does the same, after ddl__ucx_set_addresses. */
void ddl__ucx_probe(ddl__ucx *ucx, int peer);

/* Let UCX work. Return true if all probed peers are reached or have failed. Otherwise wait for an
 * event, for at most this time, and return false. */
bool ddl__ucx_await_probes(ddl__ucx *ucx, int timeout_ms);

/* Return the lowest rank that was probed and is not reached, or -1. *why is UCX's error, or NULL if
 * there was none. */
int ddl__ucx_find_unreached(ddl__ucx *ucx, const char **why);

/* Send and receive the spans of this TCP link over UCX from now on. The peer switches after the
 * same span. `second`: this is the pair's link for messages. Called by the driver. */
void ddl__ucx_carry(ddl__ucx *ucx, ddl__link *link, int peer, bool second);

/* Free the object, after its links. Waits, at most DDL__UCX_FLUSH_LIMIT, until the network has
 * accepted the data that the links have sent. `ucx` may be NULL. */
void ddl__ucx_destroy(ddl__ucx *ucx);

#endif
