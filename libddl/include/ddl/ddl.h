/* ddl.h - the whole public interface of libddl. This file is the ABI; cffi reads it too.
 * SPDX-License-Identifier: Apache-2.0
 * libddl runs collective operations (all-reduce, all-gather, all-to-all, broadcast, ...) and
 * messages between processes on one host or many, over shared memory and TCP.
 *
 * In five steps:
 *   1. ddl_endpoint_create    this process's identity and its listening ports
 *   2. ddl_rendezvous         or any exchange of ddl_endpoint_address and then ddl_comm_create
 *   3. ddl_allreduce, ...     blocking (work NULL) or asynchronous
 *   4. ddl_work_wait          for the asynchronous ones
 *   5. ddl_comm_destroy, ddl_endpoint_destroy
 *
 * Every function returning ddl_status leaves its outputs untouched on failure and stores a message
 * for the calling thread (ddl_last_error). The library never prints to stdout, never exits and
 * never aborts the process.
 */
#ifndef DDL_H
#define DDL_H

#include <stddef.h>
#include <stdint.h>

#ifndef DDL_API
#define DDL_API __attribute__((visibility("default")))
#endif

/* This header's version; the loaded library's is ddl_version. */
#define DDL_VERSION_MAJOR 0
#define DDL_VERSION_MINOR 2
#define DDL_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif
/* ---- ddl: declarations (cffi reads from here to the end mark) ---- */

/* ------------------------------------------------------------------------------------- status */

/* Grouped by what the caller does next, not by where it came from. Values are ABI: never
 * renumbered, only added to. */
typedef enum ddl_status {
    DDL_OK = 0,
    DDL_INPROGRESS = 1, /* ddl_work_test: not complete yet */

    /* Fix the call: it was refused, nothing changed, no buffer was touched. */
    DDL_EINVAL = -1,       /* an argument is out of range; the message names it and its value */
    DDL_ESTATE = -2,       /* the object is in a state that does not allow the call */
    DDL_EUNSUPPORTED = -3, /* well formed, but this libddl cannot do it */

    /* Retry or give up: the call failed, existing objects are as they were. */
    DDL_ETIMEDOUT = -20,    /* the given time passed; a work stays pending */
    DDL_ENOMEM = -21,       /* out of memory */
    DDL_EUNREACHABLE = -22, /* an address does not answer */
    DDL_EREFUSED = -23,     /* a peer refused us: another version, another job, a wrong rank */
    DDL_ESYSTEM = -24,      /* the operating system refused a resource */

    /* This comm is dead (sticky). Destroy it; endpoints live on. */
    DDL_EPEER = -40,     /* a member died or left while it was needed */
    DDL_EMISMATCH = -41, /* members called different operations; the message says which */
    DDL_EABORTED = -42,  /* a member called ddl_comm_abort; the message holds its reason */
    DDL_EEXPIRED = -43,  /* an operation ran past its own time limit */
    DDL_EMINORITY = -44, /* ddl_comm_shrink: the others go on without this rank */

    /* The library itself is wrong. Report it. */
    DDL_EINTERNAL = -60
} ddl_status;

/* Static English text for a status, never NULL. Thread-safe. Does not block. */
DDL_API const char *ddl_strerror(ddl_status status);

/* What was wrong in the calling thread's last failed ddl_ call, with ranks, hosts and values; ""
 * if none failed. Owned by the library, valid until this thread's next ddl_ call. Thread-safe. */
DDL_API const char *ddl_last_error(void);

/* major << 16 | minor << 8 | patch of the library that is loaded. Thread-safe. */
DDL_API uint32_t ddl_version(void);

/* -------------------------------------------------------------------------------------- types */

typedef struct ddl_endpoint ddl_endpoint; /* this process's identity and listening ports */
typedef struct ddl_comm ddl_comm;         /* one group of ranks at one epoch */
typedef struct ddl_work ddl_work;         /* one asynchronous operation */
typedef struct ddl_group ddl_group;       /* operations to be submitted as one */
typedef struct ddl_order ddl_order;       /* the order of an ordered sum */

/* Element types. Values are ABI. */
typedef enum ddl_dtype {
    DDL_BOOL = 1, /* one byte: 0 is false, anything else true; results are 0 and 1 */
    DDL_I8 = 2,
    DDL_U8 = 3,
    DDL_I16 = 4,
    DDL_U16 = 5,
    DDL_I32 = 6,
    DDL_U32 = 7,
    DDL_I64 = 8,
    DDL_U64 = 9,
    DDL_F16 = 10,  /* IEEE 754 binary16 */
    DDL_BF16 = 11, /* bfloat16: the upper half of a binary32 */
    DDL_F32 = 12,
    DDL_F64 = 13,
    DDL_F8_E4M3 = 14, /* OCP FP8 E4M3: finite up to 448, no infinities; overflow gives NaN */
    DDL_F8_E5M2 = 15, /* OCP FP8 E5M2: overflow gives infinity */
    DDL_C64 = 16,     /* complex: two f32, real and imaginary */
    DDL_C128 = 17     /* complex: two f64 */
} ddl_dtype;

/* Reductions. Results are bit-identical on all ranks and from run to run.
 *   fp8, f16, bf16 accumulate in f32, rounded to nearest even once per pass over the operands.
 *   integer sum, product wrap modulo 2^bits.
 *   average        sum / size; floats divide before the last rounding; integers divide the wrapped
 *                  sum and truncate toward zero.
 *   min, max       NaN if any operand is NaN (payload unspecified). The order of -0 and +0 is
 *                  unspecified but the same on all ranks.
 *   bool           sum, max and the two ors are "any"; product, min and the two ands are "all";
 *                  xor is "an odd number"; no average.
 *   bit-wise and logical ops are for integers and bool; logical ones give 1 or 0.
 *   complex        sum and average only.
 * The rounding and the flushing of subnormals to zero that a calling thread has set play no part:
 * the library computes in IEEE 754's default mode, and leaves the thread's as it was.
 * Other pairs of dtype and op are refused with DDL_EUNSUPPORTED. */
typedef enum ddl_op {
    DDL_SUM = 1,
    DDL_AVERAGE = 2,
    DDL_MIN = 3,
    DDL_MAX = 4,
    DDL_PRODUCT = 5,
    DDL_BIT_AND = 6,
    DDL_BIT_OR = 7,
    DDL_BIT_XOR = 8,
    DDL_LOGICAL_AND = 9,
    DDL_LOGICAL_OR = 10
} ddl_op;

/* Where a buffer lies. */
typedef enum ddl_memory { DDL_MEMORY_HOST = 0, DDL_MEMORY_CUDA = 1 } ddl_memory;

/* How two ranks may be joined, as bits of ddl_comm_config.links. */
typedef enum ddl_link_kind {
    DDL_LINK_INPROC = 1, /* ranks in one process, over one mapping */
    DDL_LINK_SHM = 2,    /* processes that share memory */
    DDL_LINK_TCP = 4
} ddl_link_kind;

/* Bytes of one element, 0 for an unknown dtype. Thread-safe. */
DDL_API size_t ddl_dtype_size(ddl_dtype dtype);

/* All structs: set struct_size = sizeof(the struct); every other field at zero means its default.
 * A smaller struct than this library's is an older caller and is accepted; a larger one is
 * accepted when its unknown bytes are zero. Pointers are borrowed for the call only. */

/* How an endpoint listens. */
typedef struct ddl_endpoint_config {
    uint32_t struct_size;
    uint32_t sockets; /* for each pair of interfaces, 1 to 16; 0: $DDL_SOCKETS, else 1 */
    /* All processes of a job share it and prove it to each other; "" for none. NULL: $DDL_SECRET,
     * else what is in the file $DDL_SECRET_FILE, else "". One that is not "" needs libcrypto. */
    const char *secret;
    const char *host; /* IP address to listen on and to give to peers; NULL: by `interfaces` */
    /* The network interfaces to listen on and to reach peers by, in any order: names or beginnings
     * of names, networks, and with "^" those not to be used, as in "eth,^eth3,10.1.0.0/16"; NULL:
     * $DDL_INTERFACES, else all but those of containers, 169.254.0.0/16 and addresses that are
     * routed to the loopback. Networks shared with a peer are used at once. Not with host. */
    const char *interfaces;
    const char *ports; /* to listen on one of, "20000-20100"; NULL: $DDL_PORTS, else any free one */
    /* What travels over TCP is encrypted: 1; not: negative; 0: $DDL_ENCRYPT, else not. Equal on all
     * members; wants a secret. What goes through shared memory never is. */
    int32_t encrypt;
    uint32_t reserved;
} ddl_endpoint_config;

/* How a comm is made. */
typedef struct ddl_comm_config {
    uint32_t struct_size;
    uint32_t links;               /* ddl_link_kind bits, equal on a host; 0: $DDL_LINKS, else all */
    uint64_t tag;                 /* 0: the members number the creations over this address list */
    uint64_t epoch;               /* equal on all members */
    int64_t timeout_ms;           /* creation; 0: 5 minutes */
    int64_t operation_timeout_ms; /* each operation's own limit; 0: 30 minutes */
    uint64_t segment_bytes;       /* pipeline granularity; 0: chosen. Equal on all members */

    /* Members tell each other that they are alive, every so often, whatever their program does: see
     * "Failures" below. 0: $DDL_HEARTBEAT_MS, _SUSPECT_MS, _DEAD_MS and _STALL_WARN_MS, else 100,
     * 1000, 3000 and 10000. Negative: never (not for heartbeat_ms). */
    int64_t heartbeat_ms;  /* equal on all members */
    int64_t suspect_ms;    /* a member silent for so long is warned of */
    int64_t dead_ms;       /* and for so long, is dead; at least three heartbeats */
    int64_t stall_warn_ms; /* an operation or a creation that waits longer is warned of */
} ddl_comm_config;

/* How one operation runs. */
typedef struct ddl_options {
    uint32_t struct_size;
    uint32_t memory;    /* ddl_memory of both buffers */
    int64_t timeout_ms; /* this operation's own limit; 0: the comm's */
    uint32_t queued;    /* 1: report completion through ddl_comm_completed */
    /* Only for a call with a work that is not queued: the call first waits up to so long. If the
     * operation is complete by then, *work is NULL, and the call returns its result. 0: no wait. */
    uint32_t wait_ms;
    void *user; /* handed back by ddl_comm_completed; never dereferenced */

    /* Match by name instead of by order (NULL or ""): see "Names" below. Borrowed for the call. */
    const char *name; /* at most DDL_NAME_MAX bytes, with its end */
    /* Every rank's elements times its own prescale before a reduction, the result times postscale
     * after it; each product is rounded to the dtype. Floats and complex only. 0 means 1. */
    double prescale, postscale;
    /* Collect this operation for ddl_group_submit instead of submitting it: see "Groups" below. */
    ddl_group *group;
    void *stream; /* the CUstream of buffers in DDL_MEMORY_CUDA; NULL: the default stream */
} ddl_options;
enum { DDL_NAME_MAX = 256 };

/* ----------------------------------------------------------------------------------- endpoint */

/* Open this process's listening ports and start its progress thread. config may be NULL. *endpoint
 * is owned by the caller. Thread-safe. Does not block. Any number may live in one process. */
DDL_API ddl_status ddl_endpoint_create(const ddl_endpoint_config *config, ddl_endpoint **endpoint);

/* The endpoint's address: opaque bytes that every member passes to ddl_comm_create, brought there
 * by any means. Writes at most `capacity` bytes and stores the length in *length; with too small a
 * capacity returns DDL_EINVAL and still stores the length. DDL_ADDRESS_MAX always suffices.
 * Thread-safe. Does not block. */
DDL_API ddl_status ddl_endpoint_address(const ddl_endpoint *endpoint, void *address,
                                        size_t capacity, size_t *length);
enum { DDL_ADDRESS_MAX = 1024 }; /* bytes of any address */

/* Close the ports, stop the thread, free. NULL is fine. Cannot fail. Destroy its comms first. Not
 * concurrently with other calls on the same endpoint. */
DDL_API void ddl_endpoint_destroy(ddl_endpoint *endpoint);

/* Zeroed memory for long buffers, which members on this host read where it is instead of through a
 * copy, over DDL_LINK_SHM in comms of this endpoint. In an all-reduce in place they also store
 * their results there. Otherwise it is like any memory; members decide each for themselves. Aligned
 * to at least 64 bytes; freed by ddl_free. What is shorter than 128 KiB, beyond 256 allocations, or
 * not to be had is ordinary memory. A forked child has a copy of its own, as it was at the fork,
 * and may free it. Thread-safe. Does not block. */
DDL_API ddl_status ddl_alloc(ddl_endpoint *endpoint, size_t bytes, void **memory);

/* No operation may be using the memory; its endpoint may be gone. NULL is fine. Cannot fail.
 * Thread-safe. */
DDL_API void ddl_free(void *memory);

/* --------------------------------------------------------------------------------------- comm */

/* Join a group. addresses[i], lengths[i] is the address of rank i, the same list in the same order
 * on every member; addresses[rank] is this endpoint's own. All members must call it. Blocks until
 * all members are connected, at most config->timeout_ms. config may be NULL. *comm is owned by the
 * caller; the endpoint must outlive it. Thread-safe. */
DDL_API ddl_status ddl_comm_create(ddl_endpoint *endpoint, const void *const *addresses,
                                   const size_t *lengths, int rank, int size,
                                   const ddl_comm_config *config, ddl_comm **comm);

/* Exchange addresses over TCP and join: for programs that have no other means. Rank 0 listens at
 * url ("tcp://host:port"), the others connect to it, retrying until the creation timeout. url NULL,
 * rank -1 and size 0 are taken from the variables of ddlrun, torchrun or srun, of which a part is
 * refused; without these, a comm of size 1. Under mpirun see ddl_mpi.h, or set $DDL_RENDEZVOUS. All
 * members must call it. Blocks at most config->timeout_ms. Otherwise as ddl_comm_create. */
DDL_API ddl_status ddl_rendezvous(ddl_endpoint *endpoint, const char *url, int rank, int size,
                                  const ddl_comm_config *config, ddl_comm **comm);

/* This process's rank in the comm, and the comm's size; -1 for NULL. Thread-safe. */
DDL_API int ddl_comm_rank(const ddl_comm *comm);
DDL_API int ddl_comm_size(const ddl_comm *comm);

/* The same among the members proven to share this rank's memory; -1 for NULL. Thread-safe. */
DDL_API int ddl_comm_local_rank(const ddl_comm *comm);
DDL_API int ddl_comm_local_size(const ddl_comm *comm);

/* Failures. The first one ends the comm for all members: pending and later operations end with its
 * status and message, within milliseconds where somebody waits, else within 0.2 s. Endpoints and
 * other comms live on.
 *   A process that ends without ddl_comm_destroy is dead (DDL_EPEER). What waits for it ends at
 *   once. What is under way otherwise goes on, and what it had sent still arrives there; when that
 *   is over or stands still for 0.1 s, and when nothing was under way, the comm ends.
 *   A process that is stopped, or out of reach, is dead after dead_ms without a sign of life. Back
 *   again, its comm is dead as well. Signs of life come from a thread of the library: a program
 *   that computes, or holds an interpreter's lock, is alive.
 *   A member that left by ddl_comm_destroy fails only the operations that it had not begun.
 *   An operation that has waited for a second compares what all members called in its place. If
 *   different calls have ended on all members, heartbeats or ddl_comm_destroy find the difference.
 * An operation may succeed on some members and fail on others, as when its last data had been sent
 * already. Send buffers are never written, unless they are in place. */

/* DDL_OK while the comm works, else the first error that killed it, its message then in
 * ddl_last_error. Sticky. Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_status(ddl_comm *comm);

/* The members known to be dead, by their ranks in ascending order: up to capacity into ranks, their
 * number in *count. ranks may be NULL when capacity is 0. Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_failed(ddl_comm *comm, int *ranks, int capacity, int *count);

/* Count a member as dead from now on, as if its process had ended, with `reason` (borrowed for the
 * call; its first 127 bytes count; may be NULL): for an agent that sees it hang, a scheduler that
 * takes its host. The comm ends for all members with DDL_EPEER. The expelled rank cannot go on: if
 * it is alive, its operations and its ddl_comm_shrink (DDL_EMINORITY) name who expelled it, and
 * why. Of two that expel each other at most one goes on. A member that is dead already is then
 * known to have ended; one that has left stays so. At any time, also when the comm is dead, from
 * any thread. Does not block. */
DDL_API ddl_status ddl_comm_expel(ddl_comm *comm, int rank, const char *reason);

/* Go on without the dead: a comm of the members of this dead comm that are alive, in their order.
 * All of those must call it; they agree on one list, in which nobody is who was found dead. No
 * process starts anew, the endpoints live on, and also aborted comms can be begun anew so. Members
 * that die meanwhile are left out; one that dies at the very end is in the new comm, which is then
 * dead already. DDL_EMINORITY: this rank is not among those who go on, since the others have given
 * it up, or since more than half of those who may be alive are out of reach (of two halves, the one
 * with the lowest rank goes on). DDL_ESTATE: the comm is alive. config may be NULL; what it leaves
 * at 0 is as in `comm`. Blocks at most config->timeout_ms. *next is owned by the caller and lives
 * independently of `comm`, which is still to be destroyed. Thread-safe. */
DDL_API ddl_status ddl_comm_shrink(ddl_comm *comm, const ddl_comm_config *config, ddl_comm **next);

/* How the comm goes, as JSON: what waits and for how long, who has not come to it ("missing"), and
 * for each member whether it is alive and what it was last in. Also of a dead comm. Written as by
 * ddl_endpoint_address, with a NUL that *length does not count. Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_report(ddl_comm *comm, char *buffer, size_t capacity, size_t *length);

/* The last 1024 operations and messages of the comm with their times, in the trace event format of
 * Chrome and Perfetto; times are the system's clock in microseconds. Otherwise as ddl_comm_report.
 * When $DDL_TRACE_DIR names a folder, a comm that dies leaves the same there as a file. */
DDL_API ddl_status ddl_comm_trace(ddl_comm *comm, char *buffer, size_t capacity, size_t *length);

/* What ddl_comm_counters tells. */
typedef struct ddl_counters {
    uint32_t struct_size; /* set by the caller: so much is filled in */
    uint32_t reserved;
    uint64_t operations;   /* and messages, that have succeeded; one is the comm's own */
    uint64_t bytes;        /* count times element size of those */
    uint64_t pending;      /* submitted and not complete */
    uint64_t deaths;       /* members that were noticed to be dead */
    uint64_t detection_ns; /* the longest that one was silent before */
} ddl_counters;

/* Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_counters(ddl_comm *comm, ddl_counters *counters);

/* A comm of the members that give the same color, ranked by key, then by their rank in `comm`. A
 * negative color takes part but joins none: *part is then NULL. An operation of `comm` in the order
 * of submission: all members must call it. config may be NULL; its epoch and links as for
 * ddl_comm_create. Blocks at most config->timeout_ms. *part is owned by the caller and lives
 * independently of `comm`. Thread-safe. */
DDL_API ddl_status ddl_comm_split(ddl_comm *comm, int color, int key, const ddl_comm_config *config,
                                  ddl_comm **part);

/* A comm of the `size` members whose ranks in `comm` are listed, in that order. Only these call it,
 * with equal lists; no operation of `comm` takes place. Otherwise as ddl_comm_create.
 * Thread-safe. */
DDL_API ddl_status ddl_comm_subset(ddl_comm *comm, const int *ranks, int size,
                                   const ddl_comm_config *config, ddl_comm **part);

/* A second comm of the same members in the same order: operations of the two are independent. All
 * members must call it. Otherwise as ddl_comm_create. Thread-safe. */
DDL_API ddl_status ddl_comm_duplicate(ddl_comm *comm, const ddl_comm_config *config,
                                      ddl_comm **twin);

/* A descriptor, always the same, that is readable while ddl_comm_completed has something to give.
 * Owned by the comm: neither read nor close it. Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_fd(ddl_comm *comm, int *fd);

/* Kill the comm everywhere: pending and later operations of all members end with DDL_EABORTED and
 * this reason (borrowed for the call); the first one wins. From any thread. Does not block. */
DDL_API ddl_status ddl_comm_abort(ddl_comm *comm, const char *reason);

/* Leave. Completes all works of the comm first (pending ones with DDL_EABORTED), tells the peers,
 * frees. NULL is fine. Cannot fail. Works stay valid until ddl_work_destroy. Not concurrently with
 * other calls on the same comm.
 *   Members tell their last operation as they leave. If a member's differs from this rank's, and no
 * call has reported it, the log and ddl_last_error name both; that is "" otherwise. Of two members,
 * at least the one that leaves later reports it. */
DDL_API void ddl_comm_destroy(ddl_comm *comm);

/* --------------------------------------------------------------------------------- operations */

/* Common rules. All members call the same collective operations on a comm in the same order, with
 * equal count, dtype, op and root; a difference ends with DDL_EMISMATCH. Operations of one comm
 * start in the order of submission, and collectives complete in it; messages (send, receive)
 * complete as they are matched, and those of different comms are independent. Counts are in
 * elements and may be zero; buffers need no alignment. In place means send == recv, send NULL, or
 * one is the own block in the other, which has those of all ranks (as in NCCL). Else they must not
 * overlap, and send is only read. Where a rank gives or receives nothing, its pointer is ignored.
 * Arrays of counts and displacements have one entry per rank, in elements, and are borrowed for the
 * call only. Displacements NULL: blocks lie one behind the other in rank order. Blocks that are
 * written must not overlap. When two ranks do not agree on whether a block between them is empty,
 * nothing may tell before their next operation (DDL_EMISMATCH) or the limit (DDL_EEXPIRED).
 * work NULL: blocks until complete. Else *work is owned by the caller (ddl_work_destroy), and both
 * buffers are borrowed until it is complete. options may be NULL.
 * After a failure the contents of recv are undefined. Thread-safe; threads that share one comm must
 * order their calls equally on all members.
 *
 * Names. Collective operations with options.name are matched by name: each rank may submit them in
 * an order of its own, and operations without a name are not affected. A rank cannot have two
 * operations of one name under way (DDL_EINVAL); ranks that give one name different operations end
 * with DDL_EMISMATCH. Named operations complete in one order on all ranks, which rank 0 decides.
 *
 * Buffers on a GPU. With options.memory DDL_MEMORY_CUDA all buffers of this rank are on one GPU. An
 * operation starts after what options.stream holds by now; the stream goes on when the results are
 * there, or it has failed. Only collective operations, without names and CUDA graphs. The call of
 * the first one of $DDL_GPU_DIRECT_BYTES or more waits for all ranks. Needs CUDA 11.7 or later. */

/* recv[i] = op over all ranks of send[i], for i < count. */
DDL_API ddl_status ddl_allreduce(ddl_comm *comm, const void *send, void *recv, int64_t count,
                                 ddl_dtype dtype, ddl_op op, const ddl_options *options,
                                 ddl_work **work);

/* recv[i] = op over all ranks of send[rank * count + i], for i < count: send holds size * count
 * elements, recv count. In place: recv holds size * count elements and the result lies at
 * rank * count; the other blocks are left as they were. */
DDL_API ddl_status ddl_reduce_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count,
                                      ddl_dtype dtype, ddl_op op, const ddl_options *options,
                                      ddl_work **work);

/* recv[r * count + i] = rank r's send[i], for i < count: send holds count elements, recv
 * size * count. In place: the own block already lies at rank * count of recv. */
DDL_API ddl_status ddl_allgather(ddl_comm *comm, const void *send, void *recv, int64_t count,
                                 ddl_dtype dtype, const ddl_options *options, ddl_work **work);

/* As ddl_reduce_scatter, with counts[r] elements for rank r: send holds the sum of all counts, recv
 * counts[rank]. counts is equal on all members. */
DDL_API ddl_status ddl_reduce_scatterv(ddl_comm *comm, const void *send, void *recv,
                                       const int64_t *counts, ddl_dtype dtype, ddl_op op,
                                       const ddl_options *options, ddl_work **work);

/* As ddl_allgather, with counts[r] elements from rank r, which come to displs[r] of recv. counts is
 * equal on all members; displs need not be. */
DDL_API ddl_status ddl_allgatherv(ddl_comm *comm, const void *send, void *recv,
                                  const int64_t *counts, const int64_t *displs, ddl_dtype dtype,
                                  const ddl_options *options, ddl_work **work);

/* buffer[i] on every rank = root's buffer[i], for i < count. */
DDL_API ddl_status ddl_broadcast(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype,
                                 int root, const ddl_options *options, ddl_work **work);

/* On root: recv[i] = op over all ranks of send[i], for i < count. Elsewhere recv is not written,
 * and may be NULL when send is not; in place, the elements lie in recv. */
DDL_API ddl_status ddl_reduce(ddl_comm *comm, const void *send, void *recv, int64_t count,
                              ddl_dtype dtype, ddl_op op, int root, const ddl_options *options,
                              ddl_work **work);

/* On root: recv[r * count + i] = rank r's send[i], for i < count; elsewhere recv is ignored. In
 * place (on root only): its own block already lies at root * count of recv. */
DDL_API ddl_status ddl_gather(ddl_comm *comm, const void *send, void *recv, int64_t count,
                              ddl_dtype dtype, int root, const ddl_options *options,
                              ddl_work **work);

/* As ddl_gather, with count elements from this rank, and on root counts[r] from rank r, which come
 * to displs[r] of recv; there counts[root] is count. Elsewhere counts and displs are ignored. */
DDL_API ddl_status ddl_gatherv(ddl_comm *comm, const void *send, int64_t count, void *recv,
                               const int64_t *counts, const int64_t *displs, ddl_dtype dtype,
                               int root, const ddl_options *options, ddl_work **work);

/* recv[i] = root's send[rank * count + i], for i < count; elsewhere send is ignored. In place (on
 * root only): recv NULL or equal to send; root's own block stays where it is. */
DDL_API ddl_status ddl_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count,
                               ddl_dtype dtype, int root, const ddl_options *options,
                               ddl_work **work);

/* As ddl_scatter, with count elements for this rank, and on root counts[r] for rank r, which lie at
 * displs[r] of send; there counts[root] is count. Elsewhere counts and displs are ignored. */
DDL_API ddl_status ddl_scatterv(ddl_comm *comm, const void *send, const int64_t *counts,
                                const int64_t *displs, void *recv, int64_t count, ddl_dtype dtype,
                                int root, const ddl_options *options, ddl_work **work);

/* recv[r * count + i] = rank r's send[rank * count + i], for i < count: both hold size * count. */
DDL_API ddl_status ddl_alltoall(ddl_comm *comm, const void *send, void *recv, int64_t count,
                                ddl_dtype dtype, const ddl_options *options, ddl_work **work);

/* As ddl_alltoall, with send_counts[r] elements at send_displs[r] for rank r, and recv_counts[r]
 * from rank r to recv_displs[r]. What r sends to q must be what q receives from r. In place: both
 * counts and both displacements must be equal. */
DDL_API ddl_status ddl_alltoallv(ddl_comm *comm, const void *send, const int64_t *send_counts,
                                 const int64_t *send_displs, void *recv, const int64_t *recv_counts,
                                 const int64_t *recv_displs, ddl_dtype dtype,
                                 const ddl_options *options, ddl_work **work);

/* Complete on no rank before every rank has called it. */
DDL_API ddl_status ddl_barrier(ddl_comm *comm, const ddl_options *options, ddl_work **work);

/* -------------------------------------------------------------------------------------- ordered */

/* Ordered sums. A sum whose bits depend neither on how many ranks there are nor on which of them
 * computed what. Its operands are those of logical workers, of which each rank owns any number, and
 * they are added by one binary tree over the workers: the sum over n workers is that over the first
 * m plus that over the others, where m is the largest power of two below n.
 * A rank adds up the operands of its own workers as far as the tree has it (ddl_add), and brings
 * these sums, its parts: the largest nodes of the tree whose workers it owns. The fewer parts, the
 * less is sent. */

/* owners[v] is the rank, below `ranks`, that brings the operand of worker v; a rank may own none.
 * workers: 1 to 4096. *order is owned by the caller, belongs to no comm, and may be used by several
 * at once. Thread-safe. Does not block. */
DDL_API ddl_status ddl_order_create(const int *owners, int workers, int ranks, ddl_order **order);

/* What a rank brings, its parts: the largest sums of the tree all of whose workers it owns, in
 * ascending order. Part k is the sum over the sizes[k] workers from firsts[k] on, added up as the
 * tree over so many workers has it. Up to capacity into firsts and sizes, which may be NULL when
 * capacity is 0; their number in *count. Thread-safe. Does not block. */
DDL_API ddl_status ddl_order_parts(const ddl_order *order, int rank, int *firsts, int *sizes,
                                   int capacity, int *count);

/* recv[i] = the tree's sum over the parts of all ranks of part[i], for i < count, or, with
 * DDL_AVERAGE, this divided by the number of workers. parts[k] is this rank's part k; the array is
 * borrowed for the call, what it points to until the operation is complete. Parts are only read,
 * and must not overlap recv: after a failure they can be brought again. The order is for as many
 * ranks as the comm has, and owners are equal on all members; a difference ends with DDL_EMISMATCH.
 * Integers, f32, f64 and complex numbers; also f16 and bf16, of which all parts are f32, and the
 * results are rounded once, at the end. Not with prescale or postscale. Common rules. */
DDL_API ddl_status ddl_allreduce_ordered(ddl_comm *comm, ddl_order *order, const void *const *parts,
                                         void *recv, int64_t count, ddl_dtype dtype, ddl_op op,
                                         const ddl_options *options, ddl_work **work);

/* Free. NULL is fine. Cannot fail. Operations that are under way, and groups that hold some, keep
 * what they need. Not concurrently with other calls on the same order. */
DDL_API void ddl_order_destroy(ddl_order *order);

/* dst[i] = left[i] + right[i], for i < count, to the bit as ordered sums add, whatever mode the
 * calling thread's floating-point unit is in. dst may be left or right, and must not overlap them
 * otherwise. Integers, f32, f64 and complex numbers: of half types, widen the operands to f32.
 * Works on memory alone, without a comm. Thread-safe. Does not block. */
DDL_API ddl_status ddl_add(void *dst, const void *left, const void *right, int64_t count,
                           ddl_dtype dtype);

/* ------------------------------------------------------------------------------------ messages */

/* A message goes from one rank to one other, or to itself. A receive takes the oldest message that
 * no other has taken, from its source and with its tag; of equal receives the older one is served
 * first. Neither waits for collective operations, nor they for it. Count and dtype must be equal on
 * both sides; a difference ends with DDL_EMISMATCH. Tags are 0 or more. */

/* From any member, for ddl_recv. */
enum { DDL_ANY_SOURCE = -1 };

/* Send to rank `dest`. Complete when buffer may be used again; that need not mean that it has been
 * received. Common rules. */
DDL_API ddl_status ddl_send(ddl_comm *comm, const void *buffer, int64_t count, ddl_dtype dtype,
                            int dest, int tag, const ddl_options *options, ddl_work **work);

/* Receive from rank `source`, or from any. *sender gets the rank it came from when complete; it may
 * be NULL, and is borrowed until then. Common rules. */
DDL_API ddl_status ddl_recv(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype,
                            int source, int tag, int *sender, const ddl_options *options,
                            ddl_work **work);

/* Both at once; complete when both are. The two buffers must not overlap. Common rules. */
DDL_API ddl_status ddl_sendrecv(ddl_comm *comm, const void *send, int64_t send_count, int dest,
                                int send_tag, void *recv, int64_t recv_count, int source,
                                int recv_tag, ddl_dtype dtype, const ddl_options *options,
                                ddl_work **work);

/* -------------------------------------------------------------------------------------- groups */

/* Groups. Operations called with options.group are checked and collected, not submitted; their
 * `work` must be NULL and of their options only memory, prescale and postscale count.
 * ddl_group_submit submits them as one, in the order of collection, with one work for all: its
 * options hold the limit, the name (then without messages), the report of completion, and the
 * stream with the operations' one memory. Small all-reduces of equal dtype and op travel together,
 * so the order of additions, hence the last bit of a float, may differ from single calls; it is the
 * same on all ranks and from run to run. No operation may read what another of its group writes.
 * All members must collect the same collective operations in the same order. After its work is
 * complete a group may be submitted again, as it is: a training step repeats. */

/* A group of operations of this comm. *group is owned by the caller. Thread-safe. Does not block.
 */
DDL_API ddl_status ddl_group_create(ddl_comm *comm, ddl_group **group);

/* Submit what was collected; an empty group is complete at once. work NULL: blocks until complete;
 * else *work is owned by the caller. Buffers are borrowed until then; the group must not be
 * changed, submitted again or destroyed before. Not concurrently with other calls on the same
 * group. */
DDL_API ddl_status ddl_group_submit(ddl_group *group, const ddl_options *options, ddl_work **work);

/* Free. NULL is fine. Cannot fail. Destroy a comm's groups before the comm. Not concurrently with
 * other calls on the same group. */
DDL_API void ddl_group_destroy(ddl_group *group);

/* --------------------------------------------------------------------------------------- work */

/* Wait until the work is complete and return its result; waiting again returns the same. timeout_ms
 * 0 only looks, negative waits without limit of its own (the operation's limit still holds). On
 * DDL_ETIMEDOUT the work stays pending and its buffers borrowed. Thread-safe. */
DDL_API ddl_status ddl_work_wait(ddl_work *work, int64_t timeout_ms);

/* DDL_INPROGRESS, or the work's result. Thread-safe. Does not block. */
DDL_API ddl_status ddl_work_test(ddl_work *work);

/* Give the work up. A pending one is released when it completes, and its buffers stay borrowed
 * until then. NULL is fine. Cannot fail. Not concurrently with other calls on the same work. */
DDL_API void ddl_work_destroy(ddl_work *work);

/* Take up to max finished works that were submitted with options.queued, in the order they
 * completed: works[i] with its user pointer in users[i] (either array may be NULL), their number in
 * *taken. Blocks until there is at least one, at most timeout_ms (0: does not block; negative:
 * no limit); then DDL_ETIMEDOUT. Returns DDL_ESTATE at once when no queued work is pending or
 * finished. The works stay owned by whoever submitted them. Thread-safe. */
DDL_API ddl_status ddl_comm_completed(ddl_comm *comm, ddl_work **works, void **users, int max,
                                      int64_t timeout_ms, int *taken);

/* ---- ddl: end ---- */
#ifdef __cplusplus
}
#endif

#endif
