/* create_failures.h - notices of members that cannot create a comm, for those who have not met them
 * yet.
 *
 * Of an attempt that has failed nobody is told twice. But where several members fail at once, by
 * themselves, the notice of one may reach another that has not heard of it when that tries again,
 * and fails that attempt, once: nothing tells whose attempts belong together, and to fail in vain
 * is better than to wait in vain.
 */
#ifndef DDL_CONNECT_CREATE_FAILURES_H
#define DDL_CONNECT_CREATE_FAILURES_H

#include "connect/hello.h"
#include "connect/wireup.h"

/* ---- what an endpoint was told, until somebody asks; a few, of which the oldest gives way. The
 * caller locks. ---- */

/* A member's hello says it, unless it is known of that attempt. */
void ddl__create_failures_add(ddl__create_failures *failures, const ddl__hello *hello);

/* It is known, and nobody is to ask: what the member itself still says of it comes late. */
void ddl__create_failures_ignore(ddl__create_failures *failures, ddl__digest comm, int from,
                                 uint32_t attempt);

/* The member tries again; or (from -1) nobody is to ask any more. */
void ddl__create_failures_forget(ddl__create_failures *failures, ddl__digest comm, int from);

/* Whether a member of this comm has said it. */
bool ddl__create_failures_find(const ddl__create_failures *failures, ddl__digest comm,
                               ddl__create_failure *failure);

/* ---- telling ---- */

/* This member fails, with the message set, which stays: those it has links with learn it by them,
 * the others at their endpoints, as far as it can be done within a second. Nobody is told twice by
 * different members of the same (`told`); and who fails for want of time may come again, so those
 * who are late are not told that. */
void ddl__wireup_announce_failure(const ddl__wireup *wireup, ddl_status status);

#endif
