/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - the internal functions that the files of the state machine share. */
#ifndef DDL_MEMBERSHIP_STATE_H
#define DDL_MEMBERSHIP_STATE_H

#include <string.h>

#include "membership/membership.h"

/* ---- sets of ranks: three of each member, and one of this rank ---- */

static inline bool ddl__set_has(const unsigned char *set, int rank)
{
    return set[rank / 8] >> rank % 8 & 1;
}

static inline void ddl__set_add(unsigned char *set, int rank)
{
    set[rank / 8] |= (unsigned char)(1 << rank % 8);
}

static inline void ddl__set_remove(unsigned char *set, int rank)
{
    set[rank / 8] &= (unsigned char)~(1 << rank % 8);
}

static inline unsigned char *ddl__set_at(const ddl__membership *m, int number)
{
    return (unsigned char *)m + m->sets_at + (size_t)number * m->set_bytes;
}

/* Return the set of ranks that `rank` accuses. For this rank itself, it is the set in the last
 * JOIN. */
static inline unsigned char *ddl__accused(const ddl__membership *m, int rank)
{
    return ddl__set_at(m, 3 * rank);
}

/* Return the set of survivors in the verdict of `rank`. For this rank itself, it is the set of the
 * current attempt. */
static inline unsigned char *ddl__verdict(const ddl__membership *m, int rank)
{
    return ddl__set_at(m, 3 * rank + 1);
}

/* Return the set of followers that vouch for `rank`, which this leader has lost. */
static inline unsigned char *ddl__vouchers(const ddl__membership *m, int rank)
{
    return ddl__set_at(m, 3 * rank + 2);
}

static inline unsigned char *ddl__scratch_set(const ddl__membership *m)
{
    return ddl__set_at(m, 3 * m->size);
}

static inline int32_t *ddl__gone(const ddl__membership *m)
{
    return (int32_t *)((unsigned char *)m + m->gone_at);
}

/* ---- members.c ---- */

static inline bool ddl__is_alive(const ddl__membership *m, int rank)
{
    return m->peers[rank].state == DDL__ALIVE;
}

static inline void ddl__member_send(ddl__membership *m, int to, const ddl__member_msg *message)
{
    m->ports->send(m->context, to, message);
}

/* Send a message to all members that are alive. */
void ddl__member_broadcast(ddl__membership *m, const ddl__member_msg *message);

void ddl__member_mark_dead(ddl__membership *m, int rank, ddl__member_state state,
                           const ddl__cause *cause, int64_t now);

/* Record that the member continues without this rank, and declare it dead. */
void ddl__member_mark_continues(ddl__membership *m, int rank, int64_t now);

/* Record that the member has destroyed the comm. */
void ddl__member_leave(ddl__membership *m, int rank);

/* Handle the end of the member's process without LEAVE: watch the pending operations. */
void ddl__member_watch(ddl__membership *m, int rank, int64_t now);

/* Declare a member dead by this rank's own evidence, although it may be alive. */
void ddl__member_lose(ddl__membership *m, int rank, const ddl__cause *cause, int64_t now);

/* Send EXPEL to a member that was declared dead but may be alive, and end the comm. */
void ddl__member_give_up(ddl__membership *m, int rank);

/* ---- gossip.c ---- */

/* Forward a message that `from` has sent, so that all members receive it. */
void ddl__gossip_pass_on(ddl__membership *m, int from, const ddl__member_msg *message);

/* Report that this rank has declared the member dead by its own evidence, for members that have no
 * connection to it. */
void ddl__gossip_lost(ddl__membership *m, int rank);
void ddl__gossip_receive_lost(ddl__membership *m, int from, const ddl__member_msg *message,
                              int64_t now);
void ddl__gossip_left(ddl__membership *m, int rank);
void ddl__gossip_receive_gone(ddl__membership *m, const ddl__member_msg *message);
void ddl__gossip_send_all_gone(ddl__membership *m, int to);

/* ---- agreement.c ---- */

/* Handle a member's JOIN, VERDICT or DONE. */
void ddl__agreement_receive(ddl__membership *m, int from, const ddl__member_msg *message,
                            int64_t now);

/* Send a member that has connected late the messages of the agreement that it has missed. */
void ddl__agreement_send_standing(ddl__membership *m, int to);

#endif
