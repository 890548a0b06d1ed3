/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h - the communicator: one group of ranks at one epoch. */
#ifndef DDL_COMM_COMM_H
#define DDL_COMM_COMM_H

#include "base/text.h"
#include "base/until.h"
#include "comm/fabric.h"
#include "comm/layout.h"
#include "comm/operation_times.h"
#include "connect/endpoint/endpoint.h"
#include "device/device.h"
#include "health/health.h"
#include "net/shm/shm.h"
#include "net/tcp/tcp.h"

struct ddl_comm {
    ddl_endpoint *endpoint;
    ddl__comm_slot *slot;
    unsigned generation; /* generation of the process that created it */
    ddl__comm_id id;
    ddl__engine *engine;
    _Atomic(ddl__device *) device; /* for buffers on a GPU, created on their first use; or NULL */
    ddl__health *health;           /* the failure detector; NULL in a comm of one rank */
    int rank, size, local_rank, local_size;
    int64_t operation_timeout_ms;
    uint64_t segment_bytes;
    char **names;            /* "rank 2 on host", by rank */
    ddl__address *addresses; /* by rank */
    ddl_comm_config config;  /* completed by the environment */
    ddl__layout layout;      /* the environment's description of all ranks of the job */
    bool is_world;           /* the comm was created at a rendezvous: it has all ranks of the job */
    bool explores;           /* -mode p is set, and there are no choices yet */
    const char *plan_file;   /* rank 0's $DDL_PLAN_FILE, or NULL; owned by the environment */
    ddl__topology *topology;
    bool never_packs;            /* wire formats are not possible on these hosts */
    atomic_bool warned_unpacked; /* never_packs has been logged */
    ddl_order *order;            /* the order in which floats are added, or NULL (invariant.c) */
    ddl__operation_times *times; /* the time measurements for -dump_iter, or NULL */
    ddl__arena *arena;
    ddl__slots *slots;
    ddl__fabric fabric;
    ddl__first_use *first_use; /* opens the links of a large comm on first use, or NULL */
};

/* Create a comm within the config's time limit, and while `until` allows it to wait. Comms created
 * from it inherit the time limit, not `until`. */
ddl_status ddl__comm_create(ddl_endpoint *endpoint, const void *const *addresses,
                            const size_t *lengths, int rank, int size,
                            const ddl_comm_config *config, bool is_world, const ddl__until *until,
                            ddl_comm **comm);

/* Destroy the comm. Return DDL_EMISMATCH, with the message set, if members are known to have called
 * different operations and no caller has received that error yet. */
ddl_status ddl__comm_destroy(ddl_comm *comm);

/* Destroy the comm without a leave message, because its members continue in another comm. `comm`
 * may be NULL. */
void ddl__comm_abandon(ddl_comm *comm);

/* Create a comm like ddl__comm_create, but from decoded addresses. Takes ownership of them in any
 * case. `parent` is the comm that it is created from, or NULL. Children of different comms are
 * never confused. */
ddl_status ddl__comm_join(ddl_endpoint *endpoint, const ddl_comm *parent, ddl__address *addresses,
                          int rank, int size, const ddl_comm_config *config, bool is_world,
                          const ddl__until *until, ddl_comm **comm);

/* Return the comm's wire format (ddl_wire): f32 if these hosts do not allow another one. */
static inline uint32_t ddl__comm_wire(const ddl_comm *comm)
{
    return comm->never_packs ? DDL_WIRE_F32 : comm->config.wire;
}

/* If a wire format other than f32 is set and these hosts do not allow it, log this once, on rank
 * 0. */
void ddl__comm_warn_unpacked(ddl_comm *comm, uint32_t wire);

/* Return a child's config: fields that are 0 are taken from the parent, except tag and epoch. */
ddl_comm_config ddl__comm_inherit(const ddl_comm *parent, const ddl_comm_config *config);

/* Create a comm from a comm (family.c), with a config that ddl__comm_inherit has returned. */
ddl_status ddl__comm_subset(ddl_comm *parent, const int *ranks, int size,
                            const ddl_comm_config *config, const ddl__until *until,
                            ddl_comm **comm);
ddl_status ddl__comm_split(ddl_comm *parent, int color, int key, const ddl_comm_config *config,
                           ddl_comm **comm);
ddl_status ddl__comm_duplicate(ddl_comm *parent, const ddl_comm_config *config, ddl_comm **comm);

/* Create a comm of the surviving members of a dead comm, which all call this function. */
ddl_status ddl__comm_shrink(ddl_comm *parent, const ddl_comm_config *config, ddl_comm **next);

/* Create the comm of all ranks of the job: exchange addresses at the URL, then create it. */
ddl_status ddl__comm_create_world(ddl_endpoint *endpoint, const char *url, int rank, int size,
                                  const ddl_comm_config *config, ddl_comm **comm);

/* ---- invariant.c: the order of additions ---- */

enum { DDL__INVARIANT_TEXT = 24 };

/* Return a setting as text, in the form of $DDL_INVARIANT. The result is static or in `text`. */
const char *ddl__invariant_text(int32_t invariant, char text[DDL__INVARIANT_TEXT]);

/* Check the comm's invariant setting, and give its order of additions to the engine. */
ddl_status ddl__comm_set_order(ddl_comm *comm);

/* Check that the comm's invariant setting allows a reduction of one operand for each rank. */
ddl_status ddl__check_invariant(const ddl_comm *comm, const ddl__call *call);

/* Return the limit of the creation in milliseconds, with the default instead of 0. */
int64_t ddl__comm_creation_ms(const ddl_comm_config *config);

/* ---- settings.c: the exchange of settings at the end of a creation ---- */

/* Exchange the settings and the sets of members that share memory. This is the first operation of
 * every comm: when it is complete, all members have connected. */
ddl_status ddl__exchange_settings(ddl_comm *comm, const ddl__wireup *wireup,
                                  const ddl__until *until);

/* All-gather the `rows` of all ranks, of `row` bytes each, in place. `counted` means that it gets
 * an operation's number. */
ddl_status ddl__gather_rows(ddl_comm *comm, void *rows, size_t row, bool counted,
                            const ddl__until *until);

/* Return a failure, whose message is set and whose reason all members find. A member that fails
 * ends the comm, so first wait for up to a second until the other members have found the reason,
 * too. */
ddl_status ddl__fail_together(ddl_comm *comm, ddl_status status, const ddl__until *until);

/* Wait until all members have created the comm, so that the creation fails on all members or on
 * none. A member that fails reports this, and the failure detector already monitors the members. A
 * comm of two members has no third member to wait for, so its exchange of settings is
 * sufficient. */
ddl_status ddl__creation_commit(ddl_comm *comm, const ddl__until *until);

/* ---- explore.c ---- */

/* For -mode p: run every kind of operation in growing sizes, with each of its candidate algorithms.
 * Stores the choices in the comm's layout, equal on all members, and on rank 0 in $DDL_PLAN_FILE.
 * All members call it, with an empty layout.choices; nothing else may run on the comm meanwhile. */
ddl_status ddl__explore(ddl_comm *comm, int64_t deadline);

/* ---- report.c ---- */

/* Write the comm's state as JSON: pending operations, missing ranks, and the members. */
void ddl__report_json(ddl_comm *comm, ddl__text *to);

void ddl__comm_counters(ddl_comm *comm, ddl_counters *counters);

#endif
