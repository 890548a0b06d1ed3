/* SPDX-License-Identifier: Apache-2.0 */
/* time_limits.h - all time limits of the library, with the timeline of a death. Durations of
 * measurements are defined where they are used. A comment that begins with "for" describes a limit;
 * one that begins with "between" describes an interval.
 *
 * From a lost connection to a dead comm, with the defaults of the limits that a user sets
 * (heartbeat 100 ms, suspect 1 s, dead 3 s). docs/reliability.md defines the evidence of a death.
 *
 *   the process exits                a connection is silent
 *   |                                |
 *   0       its sockets end          0
 *   |       |                        |
 *   |       +- an operation that     1 s    a warning: the peer is suspect
 *   |       |  needs the peer fails  |
 *   |       +- GRACE: others may     3 s    the peer is declared dead: it is expelled,
 *   |       |  complete, while they         and the comm ends
 *   |       |  make progress
 *   100 ms  the comm ends
 *   |
 *   1 s     EVIDENCE: until then a witness that saw the process exit is believed
 *
 * A shrink that finds no majority waits for EVIDENCE, too. */
#ifndef DDL_BASE_TIME_LIMITS_H
#define DDL_BASE_TIME_LIMITS_H

#include <stdint.h>

#define DDL__MS INT64_C(1000000) /* nanoseconds */
#define DDL__S  (1000 * DDL__MS)

/* ---- creating a comm ---- */

#define DDL__CREATION_LIMIT                                                                        \
    (300 * DDL__S) /* default limit of a creation; timeout_ms replaces it                          \
                    */
#define DDL__OPERATION_LIMIT                                                                       \
    (1800 * DDL__S) /* default limit of an operation; operation_timeout_ms replaces it */
#define DDL__COMMIT_LEAST                                                                          \
    (1 * DDL__S) /* minimum for the last step of a creation, even if less time is left */
#define DDL__ADDRESS_LIMIT                                                                         \
    (5 * DDL__S) /* for one address to answer, before the next one is tried */
/* head start of a path before the next one is tried in parallel */
#define DDL__PATH_HEAD_START (250 * DDL__MS)
#define DDL__PATH_LEAD                                                                             \
    (1200 * DDL__MS) /* lead of the first path to answer; a lost packet is resent after 1 s */
/* minimum for one attempt to reach the rendezvous' root, and between checks of its clients */
#define DDL__ATTEMPT_LEAST   (500 * DDL__MS)
#define DDL__HANDSHAKE_LIMIT (10 * DDL__S) /* for a client to complete its handshake */
#define DDL__LATE_DIAL_LIMIT                                                                       \
    (1500 * DDL__MS) /* for one address to accept; a lost packet is resent after 1 s */
#define DDL__FIRST_USE_LIMIT (4 * DDL__S)   /* to reach a member that is not known to be dead */
#define DDL__PARKED_LIMIT    (600 * DDL__S) /* for a connection to wait for its comm's creation */
#define DDL__AWAKE_LIMIT     (DDL__MS / 10) /* for polling for a member without sleeping */
#define DDL__MEMBERS_POLL    (50 * DDL__MS) /* between checks that the members are alive */
/* for one probe of a member that has not connected, and the maximum time between two probes */
#define DDL__SEARCH_LIMIT (100 * DDL__MS)
#define DDL__SEARCH_MOST  (1 * DDL__S)

/* for sending create-failure notices: to all members, and to one member */
#define DDL__CREATE_FAILURE_LIMIT (1 * DDL__S)
#define DDL__CREATE_FAILURE_EACH  (200 * DDL__MS)
/* for reporting a failure of the rendezvous to its clients */
#define DDL__RENDEZVOUS_FAILURE_LIMIT (100 * DDL__MS)

/* ---- listening ---- */

#define DDL__OVERLOAD_POLL (10 * DDL__MS) /* between polls while clients exceed the rate limit */
/* pause after accepting has failed, for example for lack of descriptors */
#define DDL__ACCEPT_RETRY (100 * DDL__MS)
/* if accepting has not failed for this time, the next failure is logged */
#define DDL__ACCEPT_RECOVERED (10 * DDL__S)

/* ---- background progress ---- */

#define DDL__PROGRESS_TICK (100 * DDL__MS) /* between runs of a waiting task */
#define DDL__PROGRESS_SOON (1 * DDL__MS)   /* before a task runs, unless a caller has driven */

/* ---- a lost link ---- */

#define DDL__KEEPALIVE_IDLE (6 * DDL__S) /* idle time after which TCP probes the peer's host */
#define DDL__KEEPALIVE_EACH (3 * DDL__S) /* between its probes, of which there are three */
#define DDL__UNACKNOWLEDGED_LIMIT                                                                  \
    (15 * DDL__S) /* without an acknowledgement of sent data, until the link is lost */
#define DDL__UNACKNOWLEDGED_POLL (1 * DDL__S)    /* between checks for acknowledgements */
#define DDL__LANE_REASON_LIMIT   (1 * DDL__S)    /* for the peer to report why a lane has failed */
#define DDL__UCX_PROBE_LIMIT     (10 * DDL__S)   /* for members to reach each other over UCX */
#define DDL__UCX_FLUSH_LIMIT     (1 * DDL__S)    /* for UCX to send the last spans of a comm */
#define DDL__UCX_LEAVE_LIMIT     (10 * DDL__S)   /* for the spans of a member that has left */
#define DDL__UNCONFIRMED_LIMIT   (50 * DDL__MS)  /* until a lost link is treated as a dead peer */
#define DDL__DRAIN_LIMIT         (100 * DDL__MS) /* for receiving spans when a comm ends */
#define DDL__SLEEP_LIMIT         (1 * DDL__S)    /* sleep of a driver without events */
#define DDL__PROBE_EACH          (1 * DDL__S)    /* between checks that peers exist */

/* ---- a member's death ---- */

#define DDL__FAR_HEARTBEAT  (6 * DDL__MS)   /* between heartbeats to members that are not near */
#define DDL__GRACE          (100 * DDL__MS) /* for operations without progress after a death */
#define DDL__GRACE_POLL     (25 * DDL__MS)  /* between checks for progress */
#define DDL__EVIDENCE_LIMIT (1 * DDL__S)    /* for a witness to confirm that a process has exited */
#define DDL__WITNESS_DIAL   (200 * DDL__MS) /* for the launcher to accept a connection */

/* ---- a GPU's buffers ---- */

#define DDL__DEVICE_DRAIN_LIMIT (10 * DDL__S) /* for the copies of a destroyed comm to end */
#define DDL__NCCL_START_LIMIT   (60 * DDL__S) /* for the ranks of a host to connect by NCCL */
#define DDL__DEVICE_IDLE_TICK                                                                      \
    (1 * DDL__S) /* between checks whether a comm that uses NCCL has ended */
#define DDL__DEVICE_LATE_LIMIT (1 * DDL__S) /* for the last copy, after an operation's limit */

/* ---- operations that wait ---- */

#define DDL__ASK_AFTER    (1 * DDL__S)    /* wait before the members are queried */
#define DDL__ANSWER_LIMIT (250 * DDL__MS) /* for the members' replies */
/* validity of a position that another rank has reported */
#define DDL__POSITION_LIMIT (3 * DDL__S)
/* wait before members that have left are considered */
#define DDL__LEFT_AFTER (200 * DDL__MS)

/* ---- the survivors' agreement ---- */

/* Limits for reaching the rank that leads the agreement, while it is not known to be dead: in
 * general (plus dead_ms if it accepts but does not answer); if another rank has lost it; if its
 * host refuses connections. */
#define DDL__LEADER_LIMIT         (4 * DDL__S)
#define DDL__LOST_LEADER_LIMIT    (1500 * DDL__MS)
#define DDL__REFUSED_LEADER_LIMIT (500 * DDL__MS)
/* pause after a leader has left, before the next one is dialed */
#define DDL__LEFT_LEADER_PAUSE (1 * DDL__S)

#define DDL__AGREEMENT_POLL (50 * DDL__MS) /* between two checks if no event arrives */

#endif
