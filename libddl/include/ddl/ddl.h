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

/* The version of this header. ddl_version returns the version of the loaded library. */
#define DDL_VERSION_MAJOR 0
#define DDL_VERSION_MINOR 2
#define DDL_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif
/* ---- ddl: declarations (cffi reads from here to the end mark) ---- */

/* ------------------------------------------------------------------------------------- status */

/* The statuses, grouped by what the caller should do next. Values are ABI: they never change, and
 * new ones may be added. */
typedef enum ddl_status {
    DDL_OK = 0,
    DDL_INPROGRESS = 1, /* ddl_work_test: not complete yet */

    /* Fix the call. It was rejected: nothing has changed, and no buffer was touched. */
    DDL_EINVAL = -1,       /* an argument is out of range; the message names it and its value */
    DDL_ESTATE = -2,       /* the object is in a state that does not allow the call */
    DDL_EUNSUPPORTED = -3, /* valid, but this libddl does not support it */

    /* Retry or give up: the call failed, existing objects are unchanged. */
    DDL_ETIMEDOUT = -20,    /* the call's time limit passed; a work stays pending */
    DDL_ENOMEM = -21,       /* out of memory */
    DDL_EUNREACHABLE = -22, /* an address does not answer */
    DDL_EREFUSED = -23,     /* a peer rejected this process: wrong version, job or rank */
    DDL_ESYSTEM = -24,      /* the operating system refused a resource */

    /* This comm is dead (sticky). Destroy it. Endpoints stay open. */
    DDL_EPEER = -40,     /* a member died or left while it was needed */
    DDL_EMISMATCH = -41, /* members called different operations; the message says which */
    DDL_EABORTED = -42,  /* a member called ddl_comm_abort; the message holds its reason */
    DDL_EEXPIRED = -43,  /* an operation exceeded its time limit */
    DDL_EMINORITY = -44, /* ddl_comm_shrink: the others continue without this rank */

    /* A defect in libddl. Report it. */
    DDL_EINTERNAL = -60
} ddl_status;

/* Return a static English text for a status; never NULL. Thread-safe. Does not block. */
DDL_API const char *ddl_strerror(ddl_status status);

/* Return the message of the calling thread's last failed ddl_ call, with ranks, hosts and values,
 * or "" if none failed. Owned by the library, valid until this thread's next ddl_ call other than
 * ddl_strerror. Thread-safe. */
DDL_API const char *ddl_last_error(void);

/* Return the version of the loaded library: major << 16 | minor << 8 | patch. Thread-safe. */
DDL_API uint32_t ddl_version(void);

/* -------------------------------------------------------------------------------------- types */

typedef struct ddl_endpoint ddl_endpoint; /* this process's identity and listening ports */
typedef struct ddl_comm ddl_comm;         /* one group of ranks at one epoch */
typedef struct ddl_work ddl_work;         /* an asynchronous operation: its state and result */
typedef struct ddl_group ddl_group;       /* operations that are submitted as one */
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
 *   integer sum and product wrap modulo 2^bits.
 *   average        sum / size; floats divide before the last rounding; integers divide the wrapped
 *                  sum and truncate toward zero.
 *   min, max       NaN if any operand is NaN (payload unspecified). The order of -0 and +0 is
 *                  unspecified but the same on all ranks.
 *   bool           sum, max and the two ors are "any"; product, min and the two ands are "all"; xor
 *                  is "an odd number"; no average.
 *   bit-wise and logical ops are for integers and bool; logical ones give 1 or 0.
 *   complex        sum and average only.
 * The library computes in the default mode of IEEE 754. A calling thread's rounding mode and its
 * flushing of subnormals to zero have no effect and are not changed. Other pairs of dtype and op
 * fail with DDL_EUNSUPPORTED. */
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

/* The memory that holds a buffer. */
typedef enum ddl_memory { DDL_MEMORY_HOST = 0, DDL_MEMORY_CUDA = 1 } ddl_memory;

/* The kinds of links between two ranks, as bits of ddl_comm_config.links. */
typedef enum ddl_link_kind {
    DDL_LINK_INPROC = 1, /* ranks that are threads of one process */
    DDL_LINK_SHM = 2,    /* processes that share memory */
    DDL_LINK_TCP = 4,
    /* UCX, over InfiniBand, RoCE and other networks, with the system's libucp. If a member cannot
     * use UCX, the comm uses TCP if DDL_LINK_TCP is set, too; otherwise its creation fails. */
    DDL_LINK_UCX = 8
} ddl_link_kind;

/* The formats in which operations on f32 can send their elements between hosts. */
typedef enum ddl_wire {
    DDL_WIRE_F32 = 1,
    DDL_WIRE_INT8 = 2,
    DDL_WIRE_INT4 = 3,
    DDL_WIRE_BF16 = 4
} ddl_wire;

/* Return the number of bytes of one element, 0 for an unknown dtype. Thread-safe. */
DDL_API size_t ddl_dtype_size(ddl_dtype dtype);

/* Rules for all structs. Set struct_size to sizeof(the struct). 0 in any other field selects its
 * default. A struct that is smaller than this library's comes from an older caller and is accepted.
 * A larger struct is accepted if its unknown bytes are zero. Pointers are borrowed for the call
 * only. */

/* Settings of an endpoint. */
typedef struct ddl_endpoint_config {
    uint32_t struct_size;
    uint32_t sockets; /* sockets for each pair of interfaces, 1 to 16; 0: $DDL_SOCKETS, else 1 */
    /* A secret that all processes of a job share and prove to each other; "" for none. NULL:
     * $DDL_SECRET, else the content of the file $DDL_SECRET_FILE, else "". A secret needs
     * libcrypto. */
    const char *secret;
    /* IP address to listen on and to give to peers; NULL: chosen by `interfaces` */
    const char *host;
    /* The network interfaces to listen on and to reach peers by, in any order. Entries are names or
     * beginnings of names, networks, and exclusions with "^", as in "eth,^eth3,10.1.0.0/16". NULL:
     * $DDL_INTERFACES, else all except the interfaces of containers, 169.254.0.0/16, and addresses
     * that are routed to the loopback. All networks that both this host and a peer have are used in
     * parallel. Cannot be combined with host. */
    const char *interfaces;
    /* ports to choose from, "20000-20100"; NULL: $DDL_PORTS, else any free one */
    const char *ports;
    /* 1: encrypt TCP traffic; negative: do not; 0: $DDL_ENCRYPT, else do not. Must be equal on all
     * members. Encryption needs a secret. Shared memory is never encrypted. */
    int32_t encrypt;
    uint32_t reserved; /* must be 0 */
} ddl_endpoint_config;

/* Settings of a comm. */
typedef struct ddl_comm_config {
    uint32_t struct_size;
    uint32_t links;     /* ddl_link_kind bits, equal on a host; 0: $DDL_LINKS, else all but UCX */
    uint64_t tag;       /* distinguishes creations with equal addresses; 0: numbered by the
                         * members */
    uint64_t epoch;     /* equal on all members */
    int64_t timeout_ms; /* time limit of the creation; 0: 5 minutes */
    int64_t operation_timeout_ms; /* time limit of each operation; 0: 30 minutes */
    uint64_t segment_bytes;       /* pipeline segment; 0: libddl chooses. Equal on all members */

    /* Members send each other heartbeats, even while their programs compute: see "Failures" below.
     * 0: $DDL_HEARTBEAT_MS, _SUSPECT_MS, _DEAD_MS and _STALL_WARN_MS, else 100, 1000, 3000 and
     * 10000. Negative values disable a time; heartbeat_ms cannot be negative. */
    int64_t heartbeat_ms;  /* interval of heartbeats; equal on all members */
    int64_t suspect_ms;    /* silence after which a warning names the member */
    int64_t dead_ms;       /* silence after which the member is dead; at least three heartbeats */
    int64_t stall_warn_ms; /* wait after which a warning names the operation or creation */

    /* The order of additions, see "Invariant sums" below: DDL_INVARIANT_SIZE, the number of logical
     * workers, or DDL_INVARIANT_NONE. 0: $DDL_INVARIANT ("size", "ranks:8" or "none"), else none.
     * Equal on all members. */
    int32_t invariant;
    /* ddl_wire: the format that all-reduces and reduce-scatters of f32 send between hosts, see
     * "Wire formats" below. 0: $DDL_WIRE ("f32", "bf16", "int8" or "int4"), else f32. Equal on all
     * members. */
    uint32_t wire;
} ddl_comm_config;
enum { DDL_INVARIANT_NONE = -1, DDL_INVARIANT_SIZE = -2 }; /* values of `invariant` */

/* Settings of one operation. */
typedef struct ddl_options {
    uint32_t struct_size;
    uint32_t memory;    /* ddl_memory of both buffers */
    int64_t timeout_ms; /* time limit of this operation; 0: the limit of the comm */
    uint32_t queued;    /* 1: report completion through ddl_comm_completed */
    /* A call with a work that is not queued first waits for up to this time. If the operation
     * completes in this time, *work is NULL and the call returns the result. 0: no wait. */
    uint32_t wait_ms;
    void *user; /* returned by ddl_comm_completed; never dereferenced */

    /* Match by this name; NULL or "": by order. See "Names" below. At most DDL_NAME_MAX bytes
     * including the NUL. Borrowed for the call. */
    const char *name;
    /* Scaling of a reduction: each rank's elements are multiplied by its own prescale before the
     * reduction, the result by postscale after it. Each product is rounded to the dtype. Floats and
     * complex only. 0 means 1. */
    double prescale, postscale;
    /* Add this operation to the group instead of submitting it: see "Groups" below. */
    ddl_group *group;
    void *stream; /* the CUstream of buffers in DDL_MEMORY_CUDA; NULL: the default stream */
    /* The error feedback of an all-reduce or a reduce-scatter with a wire format: as many elements
     * of f32 as the send buffer has, initially 0. The call adds them to this rank's operand and
     * replaces them by the new rounding errors: see "Wire formats". NULL: rounding errors are
     * dropped. Only for a sum or an average of f32 in DDL_MEMORY_HOST and not in a group. The
     * elements may change until the operation is complete. */
    float *residual;
    /* ddl_wire: the format that this operation sends between hosts, equal on all members. 0: the
     * comm's in an all-reduce and a reduce-scatter, DDL_WIRE_F32 in an all-gather. Other formats
     * are only for f32 in DDL_MEMORY_HOST: for an all-gather, or a sum or an average. */
    uint32_t wire;
    uint32_t reserved; /* must be 0 */
} ddl_options;
enum { DDL_NAME_MAX = 256 }; /* maximum length of a name, including the NUL */

/* ----------------------------------------------------------------------------------- endpoint */

/* Open this process's listening ports and start its progress thread. config may be NULL.
 * *endpoint is owned by the caller. A process may have any number of endpoints. Thread-safe. Does
 * not block. */
DDL_API ddl_status ddl_endpoint_create(const ddl_endpoint_config *config, ddl_endpoint **endpoint);

/* Write the endpoint's address: opaque bytes that every member passes to ddl_comm_create. The
 * program may exchange them by any means. Writes at most `capacity` bytes and stores the length in
 * *length. Returns DDL_EINVAL if the capacity is too small, and still stores the length.
 * DDL_ADDRESS_MAX is always enough. Thread-safe. Does not block. */
DDL_API ddl_status ddl_endpoint_address(const ddl_endpoint *endpoint, void *address,
                                        size_t capacity, size_t *length);
enum { DDL_ADDRESS_MAX = 1024 }; /* maximum length of an address, in bytes */

/* Close the ports, stop the thread and free the endpoint. Destroy its comms first. NULL is allowed.
 * Cannot fail. Not concurrently with other calls on the same endpoint. */
DDL_API void ddl_endpoint_destroy(ddl_endpoint *endpoint);

/* Allocate zeroed memory for long buffers. In comms of this endpoint, members on this host read it
 * in place over DDL_LINK_SHM, without a copy. In an in-place all-reduce they also store their
 * results there. In all other respects it is ordinary memory. A member may use it even if others do
 * not. Aligned to at least 64 bytes; free it with ddl_free. The memory is not shared if it is
 * shorter than 128 KiB, beyond 256 allocations, or if the system has no shared memory left. A
 * forked child has its own copy, as it was at the fork, and may free it. Thread-safe. Does not
 * block. */
DDL_API ddl_status ddl_alloc(ddl_endpoint *endpoint, size_t bytes, void **memory);

/* Free memory of ddl_alloc. No operation may be using it. The endpoint may already be destroyed.
 * NULL is allowed. Cannot fail. Thread-safe. */
DDL_API void ddl_free(void *memory);

/* --------------------------------------------------------------------------------------- comm */

/* Join a group. addresses[i] and lengths[i] are the address of rank i; every member passes the same
 * list in the same order. addresses[rank] is this endpoint's own. All members must call it. Blocks
 * until all members are connected, at most config->timeout_ms. config may be NULL. *comm is owned
 * by the caller; the endpoint must outlive it. Thread-safe. */
DDL_API ddl_status ddl_comm_create(ddl_endpoint *endpoint, const void *const *addresses,
                                   const size_t *lengths, int rank, int size,
                                   const ddl_comm_config *config, ddl_comm **comm);

/* Exchange addresses over TCP and join a group, for programs that have no other means. Rank 0
 * listens at url ("tcp://host:port"); the other ranks connect to it and retry until the creation
 * timeout. Arguments that are not given (url NULL, rank -1, size 0) are read from the variables of
 * ddlrun, torchrun or srun; the call fails if only some of the variables are set. If none is set,
 * the comm has size 1. Under mpirun use ddl_mpi.h, or set $DDL_RENDEZVOUS. All members must call
 * it. Blocks at most config->timeout_ms. Otherwise as ddl_comm_create. */
DDL_API ddl_status ddl_rendezvous(ddl_endpoint *endpoint, const char *url, int rank, int size,
                                  const ddl_comm_config *config, ddl_comm **comm);

/* Return this process's rank in the comm, and the comm's size; -1 for NULL. Thread-safe. */
DDL_API int ddl_comm_rank(const ddl_comm *comm);
DDL_API int ddl_comm_size(const ddl_comm *comm);

/* Return this process's rank, and the number of ranks, among the members that have proven to share
 * its memory; -1 for NULL. Thread-safe. */
DDL_API int ddl_comm_local_rank(const ddl_comm *comm);
DDL_API int ddl_comm_local_size(const ddl_comm *comm);

/* Failures. The first failure ends the comm for all members: pending and later operations fail with
 * its status and message. They fail within milliseconds if a thread is waiting, else within 0.2 s.
 * Endpoints and other comms are not affected.
 *
 *   Crash: a process that exits without ddl_comm_destroy is dead (DDL_EPEER). Operations that wait
 *   for it fail at once. Other operations in progress continue, and data that it had sent is still
 *   delivered. The comm ends when these operations complete or make no progress for 0.1 s, or at
 *   once if there are none.
 *   Silence: a process that is stopped or unreachable is dead after dead_ms without a heartbeat. If
 *   the process resumes, its own comm ends, too. Its current operation may still complete, if all
 *   data for it had arrived. A library thread sends the heartbeats, so a program that computes, or
 *   holds an interpreter lock, counts as alive.
 *   Leaving: after a member has called ddl_comm_destroy, only operations that it had not started
 *   fail.
 *   Mismatch: an operation that has waited for 1 s asks all members what they called at this
 *   position. If mismatched calls have already completed on all members, heartbeats or
 *   ddl_comm_destroy detect the mismatch.
 *
 * An operation may succeed on some members and fail on others, for example if the dead member had
 * already sent its last data. Send buffers are never written, except in place. */

/* Return DDL_OK while the comm works, else the first error that ended it, with its message in
 * ddl_last_error. Sticky. Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_status(ddl_comm *comm);

/* Find the members known to be dead. Stores up to `capacity` of their ranks in `ranks`, in
 * ascending order, and the number of dead members in *count. ranks may be NULL if capacity is 0. If
 * another member has reported a death, an operation may fail with DDL_EPEER before the dead member
 * is in this list: this member's failure detector confirms the death a moment later.
 * ddl_comm_shrink does not need the list. Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_failed(ddl_comm *comm, int *ranks, int capacity, int *count);

/* Declare a member dead, as if its process had exited. For example, an agent calls this for a
 * member that hangs, and a scheduler for members on a host that it reclaims. `reason` may be NULL;
 * its first 127 bytes are copied. The comm ends for all members with DDL_EPEER. The expelled rank
 * cannot continue: if it is alive, its operations and its ddl_comm_shrink (DDL_EMINORITY) fail and
 * name the rank that expelled it, and the reason. If two ranks expel each other, at most one
 * continues. If the member is already dead, it counts as exited from then on. A member that has
 * left is not affected. Works at any time, even if the comm is dead, and from any thread. Does not
 * block. */
DDL_API ddl_status ddl_comm_expel(ddl_comm *comm, int rank, const char *reason);

/* Create a comm of the surviving members of this dead comm, in their order. All survivors must call
 * it; they agree on one list of survivors, and no member that was found dead is on it. No process
 * is restarted and endpoints stay open. Also works after ddl_comm_abort. Members that die during
 * the call are left out. But if one dies at the very end, it is a member of the new comm, which is
 * then already dead.
 * DDL_EMINORITY: this rank is not among the survivors. Either the others have declared it dead, or
 * it cannot reach more than half of the members that may be alive (of two equal halves, the one
 * with the lowest rank continues). DDL_ESTATE: the comm is alive.
 * config may be NULL; fields at 0 are taken from `comm`. Blocks at most config->timeout_ms. *next
 * is owned by the caller and independent of `comm`, which must still be destroyed. Thread-safe. */
DDL_API ddl_status ddl_comm_shrink(ddl_comm *comm, const ddl_comm_config *config, ddl_comm **next);

/* Write the comm's state as JSON: the operations that wait and for how long, the members that have
 * not called them ("missing"), and for each member whether it is alive and its last operation.
 * Works on a dead comm, too. Writes as ddl_endpoint_address does, plus a NUL that *length does not
 * count. Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_report(ddl_comm *comm, char *buffer, size_t capacity, size_t *length);

/* Write the last 1024 operations and messages of the comm with their times, in the trace event
 * format of Chrome and Perfetto. Times are the system clock in microseconds. If $DDL_TRACE_DIR
 * names a folder, a comm that dies writes its trace to a file there. Otherwise as
 * ddl_comm_report. */
DDL_API ddl_status ddl_comm_trace(ddl_comm *comm, char *buffer, size_t capacity, size_t *length);

/* The counters of a comm. */
typedef struct ddl_counters {
    uint32_t struct_size; /* set by the caller: the number of bytes to fill in */
    uint32_t reserved;
    /* operations and messages that have succeeded, including one operation of the comm's
     * creation */
    uint64_t operations;
    uint64_t bytes;        /* sum of count times element size over these operations and messages */
    uint64_t pending;      /* operations and messages that are submitted and not complete */
    uint64_t deaths;       /* members that were found dead */
    uint64_t detection_ns; /* longest silence before a member was found dead */
} ddl_counters;

/* Fill in the comm's counters. Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_counters(ddl_comm *comm, ddl_counters *counters);

/* Create a comm of the members that pass the same color, ranked by key, then by their rank in
 * `comm`. A member with a negative color takes part but joins no comm: its *part is NULL. This is
 * an operation of `comm` in the order of submission: all members must call it. config may be NULL;
 * its epoch and links are as in ddl_comm_create. Blocks at most config->timeout_ms. *part is owned
 * by the caller and independent of `comm`. Thread-safe. */
DDL_API ddl_status ddl_comm_split(ddl_comm *comm, int color, int key, const ddl_comm_config *config,
                                  ddl_comm **part);

/* Create a comm of the `size` members whose ranks in `comm` are listed in `ranks`, in that order.
 * Only these members call it, with equal lists. It is not an operation of `comm`. Otherwise as
 * ddl_comm_create. Thread-safe. */
DDL_API ddl_status ddl_comm_subset(ddl_comm *comm, const int *ranks, int size,
                                   const ddl_comm_config *config, ddl_comm **part);

/* Create a second comm of the same members in the same order. Operations of the two comms are
 * independent. All members must call it. Otherwise as ddl_comm_create. Thread-safe. */
DDL_API ddl_status ddl_comm_duplicate(ddl_comm *comm, const ddl_comm_config *config,
                                      ddl_comm **twin);

/* Return a file descriptor, always the same, that is readable while ddl_comm_completed has a work
 * to return. Owned by the comm: neither read nor close it. Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_fd(ddl_comm *comm, int *fd);

/* End the comm for all members: pending and later operations fail with DDL_EABORTED and this reason
 * (borrowed for the call). The first reason wins. From any thread. Does not block. */
DDL_API ddl_status ddl_comm_abort(ddl_comm *comm, const char *reason);

/* Leave the comm and free it. First completes all its works (pending ones with DDL_EABORTED) and
 * notifies the peers. NULL is allowed. Cannot fail. Works stay valid until ddl_work_destroy. Not
 * concurrently with other calls on the same comm.
 * Members report their last operation as they leave. If a member's last operation differs from
 * this rank's, and no call has reported this, the log and ddl_last_error name both; otherwise
 * ddl_last_error is "". Of two members, at least the one that leaves later reports the
 * difference. */
DDL_API void ddl_comm_destroy(ddl_comm *comm);

/* --------------------------------------------------------------------------------- operations */

/* Common rules. All members call the same collective operations on a comm in the same order, with
 * equal count, dtype, op and root; a difference fails with DDL_EMISMATCH. Operations of one comm
 * start in the order of submission, and collective operations complete in this order. Messages
 * (send, receive) complete as they are matched. Operations of different comms are independent.
 * Counts are in elements and may be zero. Buffers need no alignment. In place means that send ==
 * recv, that send is NULL, or that the shorter buffer is this rank's block in the longer one (as in
 * NCCL). Otherwise buffers must not overlap, and send is only read. If a rank sends or receives
 * nothing, its pointer is ignored.
 * Arrays of counts and displacements have one entry, in elements, for each rank, and are borrowed
 * for the call only. If displacements are NULL, the blocks lie one after another in rank order.
 * Blocks that are written must not overlap. If two ranks disagree on whether the block between them
 * is empty, the error may come late: at their next operation (DDL_EMISMATCH) or at the time limit
 * (DDL_EEXPIRED).
 * If work is NULL, the call blocks until the operation is complete. Else *work is owned by the
 * caller (ddl_work_destroy), and both buffers are borrowed until it is complete. options may be
 * NULL.
 * After a failure the contents of recv are undefined. Thread-safe; threads that share one comm must
 * make their calls in the same order on all members.
 *
 * Names. Collective operations with options.name are matched by name: each rank may submit them in
 * its own order, and operations without a name are not affected. A rank cannot have two pending
 * operations of one name (DDL_EINVAL). Different operations of one name fail with DDL_EMISMATCH.
 * Named operations complete in one order on all ranks, which rank 0 decides.
 *
 * Buffers on a GPU. With options.memory DDL_MEMORY_CUDA all buffers of this rank are on one GPU. An
 * operation starts after the work that is in options.stream at the time of the call; the stream
 * continues when the results are written or the operation has failed. This is supported only for
 * collective operations without names, and not in CUDA graphs. The first call with at least
 * $DDL_GPU_DIRECT_BYTES bytes waits for all ranks. Needs CUDA 11.7 or later. */

/* recv[i] = op over all ranks of send[i], for i < count. */
DDL_API ddl_status ddl_allreduce(ddl_comm *comm, const void *send, void *recv, int64_t count,
                                 ddl_dtype dtype, ddl_op op, const ddl_options *options,
                                 ddl_work **work);

/* recv[i] = op over all ranks of send[rank * count + i], for i < count: send holds size * count
 * elements, recv count. In place: recv holds size * count elements, and the result is written at
 * rank * count; the other blocks are not changed. */
DDL_API ddl_status ddl_reduce_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count,
                                      ddl_dtype dtype, ddl_op op, const ddl_options *options,
                                      ddl_work **work);

/* recv[r * count + i] = rank r's send[i], for i < count: send holds count elements, recv size *
 * count. In place: this rank's block is already at rank * count of recv. */
DDL_API ddl_status ddl_allgather(ddl_comm *comm, const void *send, void *recv, int64_t count,
                                 ddl_dtype dtype, const ddl_options *options, ddl_work **work);

/* As ddl_reduce_scatter, with counts[r] elements for rank r: send holds the sum of all counts, recv
 * counts[rank]. counts must be equal on all members. */
DDL_API ddl_status ddl_reduce_scatterv(ddl_comm *comm, const void *send, void *recv,
                                       const int64_t *counts, ddl_dtype dtype, ddl_op op,
                                       const ddl_options *options, ddl_work **work);

/* As ddl_allgather, with counts[r] elements from rank r, which are written at displs[r] of recv.
 * counts must be equal on all members; displs may differ. */
DDL_API ddl_status ddl_allgatherv(ddl_comm *comm, const void *send, void *recv,
                                  const int64_t *counts, const int64_t *displs, ddl_dtype dtype,
                                  const ddl_options *options, ddl_work **work);

/* buffer[i] on every rank = root's buffer[i], for i < count. */
DDL_API ddl_status ddl_broadcast(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype,
                                 int root, const ddl_options *options, ddl_work **work);

/* On root: recv[i] = op over all ranks of send[i], for i < count. On other ranks recv is not
 * written; it may be NULL if send is not. In place: the elements are in recv. */
DDL_API ddl_status ddl_reduce(ddl_comm *comm, const void *send, void *recv, int64_t count,
                              ddl_dtype dtype, ddl_op op, int root, const ddl_options *options,
                              ddl_work **work);

/* On root: recv[r * count + i] = rank r's send[i], for i < count. On other ranks recv is ignored.
 * In place (on root only): root's block is already at root * count of recv. */
DDL_API ddl_status ddl_gather(ddl_comm *comm, const void *send, void *recv, int64_t count,
                              ddl_dtype dtype, int root, const ddl_options *options,
                              ddl_work **work);

/* As ddl_gather, with count elements from this rank. On root, counts[r] elements come from rank r
 * and are written at displs[r] of recv; counts[root] must be count. On other ranks counts and
 * displs are ignored. */
DDL_API ddl_status ddl_gatherv(ddl_comm *comm, const void *send, int64_t count, void *recv,
                               const int64_t *counts, const int64_t *displs, ddl_dtype dtype,
                               int root, const ddl_options *options, ddl_work **work);

/* recv[i] = root's send[rank * count + i], for i < count. On other ranks send is ignored. In place
 * (on root only): recv is NULL or equal to send; root's block stays where it is. */
DDL_API ddl_status ddl_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count,
                               ddl_dtype dtype, int root, const ddl_options *options,
                               ddl_work **work);

/* As ddl_scatter, with count elements for this rank. On root, counts[r] elements at displs[r] of
 * send are for rank r; counts[root] must be count. On other ranks counts and displs are ignored. */
DDL_API ddl_status ddl_scatterv(ddl_comm *comm, const void *send, const int64_t *counts,
                                const int64_t *displs, void *recv, int64_t count, ddl_dtype dtype,
                                int root, const ddl_options *options, ddl_work **work);

/* recv[r * count + i] = rank r's send[rank * count + i], for i < count. Both buffers hold size *
 * count elements. */
DDL_API ddl_status ddl_alltoall(ddl_comm *comm, const void *send, void *recv, int64_t count,
                                ddl_dtype dtype, const ddl_options *options, ddl_work **work);

/* As ddl_alltoall, with send_counts[r] elements at send_displs[r] for rank r, and recv_counts[r]
 * elements from rank r at recv_displs[r]. Rank r's send count for q must equal q's receive count
 * for r. In place: both counts and both displacements must be equal. */
DDL_API ddl_status ddl_alltoallv(ddl_comm *comm, const void *send, const int64_t *send_counts,
                                 const int64_t *send_displs, void *recv, const int64_t *recv_counts,
                                 const int64_t *recv_displs, ddl_dtype dtype,
                                 const ddl_options *options, ddl_work **work);

/* Wait for all ranks: completes on no rank before every rank has called it. */
DDL_API ddl_status ddl_barrier(ddl_comm *comm, const ddl_options *options, ddl_work **work);

/* -------------------------------------------------------------------------------------- ordered */

/* Ordered sums. The bits of an ordered sum depend neither on the number of ranks nor on which rank
 * computes which part. Its operands belong to logical workers. A rank may own any number of them.
 * One binary tree over the workers orders the additions: the sum over n workers is the sum over the
 * first m plus the sum over the others, where m is the largest power of two below n.
 * A rank adds the operands of its own workers in the tree's order (ddl_add) and passes the
 * resulting sums, its parts. There is one part for each largest subtree of which the rank owns all
 * workers. Fewer parts mean less data to send. */

/* Invariant sums. With DDL_INVARIANT_SIZE, all-reduce, reduce-scatter and reduce of floats and
 * complex numbers combine the ranks' operands in the order of this tree, with one worker for each
 * rank. The bits of an element then depend on the number of ranks only, not on the size or the
 * slicing of the message, the topology, the links, a group or a name. fp8, f16 and bf16 are rounded
 * after each addition. At most 4096 ranks. If `invariant` is a number of workers, and each rank
 * passes its parts to the functions below, the bits do not depend on the number of ranks either.
 * Rank r of p then owns the workers from r * workers / p up to (r + 1) * workers / p - 1, with
 * quotients rounded down. A sum, an average or a product of one operand for each rank then fails
 * with DDL_EINVAL, unless there are as many ranks as
 * workers. */

/* Wire formats. With a format other than DDL_WIRE_F32, in options.wire or in the comm's config,
 * ddl_allreduce, ddl_reduce_scatter and ddl_reduce_scatterv send fewer bytes between hosts; so do
 * ddl_allgather and ddl_allgatherv, but only with options.wire. The format applies to sums,
 * averages and all-gathers of at least 4096 f32 in all blocks, and at least 2048 for each host, but
 * not to small parts of a group. DDL_WIRE_BF16 sends each element as bf16: half of the bytes.
 * DDL_WIRE_INT8 and DDL_WIRE_INT4 send blocks of 128 integers with a common scale, a power of two:
 * a quarter or an eighth of the bytes. Each rounding changes an element by at most 1/256 of itself
 * (bf16), or 1/127 (int8) or 1/7 (int4) of the greatest magnitude in its block. An all-reduce
 * rounds the sum of each host once, and the result once more; all ranks get the same bits. A
 * reduce-scatter rounds the sum of each host once, except the sum of the host that the block
 * belongs to, and does not round the result. An all-gather rounds each block once; all ranks get
 * the same bits, including the block's own rank. NaN and infinity are preserved; in the integer
 * formats, the other elements of their block become 0. With options.residual, the rounding errors
 * are added to the next call's operand, after prescale, so they do not accumulate over many calls.
 * The residual is undefined after a failure. An all-gather has none. Cannot be combined with
 * invariant sums. */

/* Create an order. owners[v] is the rank, below `ranks`, that passes the operand of worker v; a
 * rank may own no worker. workers is 1 to 4096. *order is owned by the caller and belongs to no
 * comm; several comms may use it at once. Thread-safe. Does not block. */
DDL_API ddl_status ddl_order_create(const int *owners, int workers, int ranks, ddl_order **order);

/* Return the parts of a rank: the sums of the largest subtrees of which it owns all workers, in
 * ascending order. Part k is the sum over the sizes[k] workers from worker firsts[k] on, added in
 * the order of the tree over sizes[k] workers. Stores up to `capacity` entries in firsts and sizes,
 * which may be NULL if capacity is 0, and the number of parts in *count. Thread-safe. Does not
 * block. */
DDL_API ddl_status ddl_order_parts(const ddl_order *order, int rank, int *firsts, int *sizes,
                                   int capacity, int *count);

/* recv[i] = the tree's sum of element i of the parts of all ranks, for i < count. With DDL_AVERAGE
 * it is divided by the number of workers. parts[k] is this rank's part k. The array is borrowed for
 * the call, the parts until the operation is complete. Parts are only read and must not overlap
 * recv, so they can be passed again after a failure. The order must be for as many ranks as the
 * comm has, with owners equal on all members; a difference fails with DDL_EMISMATCH. Supports
 * integers, f32, f64 and complex numbers. Also supports f16 and bf16, with parts in f32: the
 * results are rounded once, at the end. prescale and postscale are not supported. Common rules. */
DDL_API ddl_status ddl_allreduce_ordered(ddl_comm *comm, ddl_order *order, const void *const *parts,
                                         void *recv, int64_t count, ddl_dtype dtype, ddl_op op,
                                         const ddl_options *options, ddl_work **work);

/* recv[i] = the tree's sum of element rank * count + i, for i < count: each part holds size * count
 * elements, recv count. Otherwise as ddl_allreduce_ordered. */
DDL_API ddl_status ddl_reduce_scatter_ordered(ddl_comm *comm, ddl_order *order,
                                              const void *const *parts, void *recv, int64_t count,
                                              ddl_dtype dtype, ddl_op op,
                                              const ddl_options *options, ddl_work **work);

/* recv[i] = the tree's sum of element i of this rank's block, for i < counts[rank]: rank r's block
 * has counts[r] elements, and each part holds the blocks of all ranks, one after the other. counts
 * must be equal on all members. Otherwise as ddl_allreduce_ordered. */
DDL_API ddl_status ddl_reduce_scatterv_ordered(ddl_comm *comm, ddl_order *order,
                                               const void *const *parts, void *recv,
                                               const int64_t *counts, ddl_dtype dtype, ddl_op op,
                                               const ddl_options *options, ddl_work **work);

/* Free the order. NULL is allowed. Cannot fail. Pending operations and groups keep the data that
 * they need. Not concurrently with other calls on the same order. */
DDL_API void ddl_order_destroy(ddl_order *order);

/* dst[i] = left[i] + right[i], for i < count, with the same bits as in ordered sums, whatever the
 * floating-point mode of the calling thread. dst may be left or right, and must not overlap them
 * otherwise. Supports integers, f32, f64 and complex numbers; convert operands of half types to
 * f32. Needs no comm. Thread-safe. Does not block. */
DDL_API ddl_status ddl_add(void *dst, const void *left, const void *right, int64_t count,
                           ddl_dtype dtype);

/* Return the bytes of `count` elements in a wire format; 0 for an invalid count or format. Blocks
 * begin at every 128th element: a multiple of 128 elements can be packed and unpacked by itself.
 * Thread-safe. Does not block. */
DDL_API size_t ddl_packed_size(int64_t count, ddl_wire wire);

/* Pack `count` elements into ddl_packed_size bytes, and unpack them. The formats, their errors and
 * the treatment of NaN and infinity are those of operations. The bits do not depend on the
 * processor or on the floating-point mode of the calling thread, and packing what was unpacked
 * gives the same bytes. values and packed must not overlap. packed needs no alignment. Needs no
 * comm. Thread-safe. Does not block. */
DDL_API ddl_status ddl_pack(void *packed, const float *values, int64_t count, ddl_wire wire);
DDL_API ddl_status ddl_unpack(float *values, const void *packed, int64_t count, ddl_wire wire);

/* ------------------------------------------------------------------------------------ messages */

/* A message goes from one rank to another, or to itself. A receive takes the oldest message with
 * its source and tag that no other receive has taken. Of two matching receives, the older one gets
 * the message. Messages and collective operations do not wait for each other. Count and dtype must
 * be equal on both sides; a difference fails with DDL_EMISMATCH. Tags are 0 or more. */

/* The source of a ddl_recv from any member. */
enum { DDL_ANY_SOURCE = -1 };

/* Send to rank `dest`. The operation is complete when the buffer may be used again, which may be
 * before the message is received. Common rules. */
DDL_API ddl_status ddl_send(ddl_comm *comm, const void *buffer, int64_t count, ddl_dtype dtype,
                            int dest, int tag, const ddl_options *options, ddl_work **work);

/* Receive from rank `source`, or from any rank with DDL_ANY_SOURCE. *sender is set to the sending
 * rank on completion; sender may be NULL, and is borrowed until then. Common rules. */
DDL_API ddl_status ddl_recv(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype,
                            int source, int tag, int *sender, const ddl_options *options,
                            ddl_work **work);

/* Send and receive at the same time; completes when both are complete. The two buffers must not
 * overlap. Common rules. */
DDL_API ddl_status ddl_sendrecv(ddl_comm *comm, const void *send, int64_t send_count, int dest,
                                int send_tag, void *recv, int64_t recv_count, int source,
                                int recv_tag, ddl_dtype dtype, const ddl_options *options,
                                ddl_work **work);

/* -------------------------------------------------------------------------------------- groups */

/* Groups. An operation called with options.group is checked and added to the group, not submitted.
 * Its `work` must be NULL, and of its options only memory, prescale and postscale are used.
 * ddl_group_submit submits all operations as one, in the order of the calls, with one work. Its
 * options set the time limit, the name (only for groups without messages), queued completion, and
 * the stream and memory, which are the same for all operations. Small all-reduces of equal dtype
 * and op are batched, so the order of additions, and with it the last bit of a float, may differ
 * from single calls; it is the same on all ranks and from run to run. No operation may read what
 * another operation of its group writes. All members must collect the same collective operations in
 * the same order. A group may be submitted again after its work is complete, for example in every
 * training step. Further calls then add to it; to start with an empty group, create another one. */

/* Create a group of operations of this comm. *group is owned by the caller. Thread-safe. Does not
 * block. */
DDL_API ddl_status ddl_group_create(ddl_comm *comm, ddl_group **group);

/* Submit the collected operations; an empty group is complete at once. If work is NULL, the call
 * blocks until they are complete; else *work is owned by the caller. Buffers are borrowed until
 * completion, and the group must not be changed, submitted again or destroyed before it. Not
 * concurrently with other calls on the same group. */
DDL_API ddl_status ddl_group_submit(ddl_group *group, const ddl_options *options, ddl_work **work);

/* Free the group. NULL is allowed. Cannot fail. Destroy a comm's groups before the comm. Not
 * concurrently with other calls on the same group. */
DDL_API void ddl_group_destroy(ddl_group *group);

/* --------------------------------------------------------------------------------------- work */

/* Wait until the work is complete, and return its result; waiting again returns the same. NULL
 * fails with DDL_EINVAL: after a call with options.wait_ms, check whether the work is NULL. With
 * timeout_ms 0, the call does not wait; a negative timeout_ms means no limit (the operation's own
 * limit still applies). On DDL_ETIMEDOUT the work stays pending and its buffers stay borrowed.
 * Thread-safe. */
DDL_API ddl_status ddl_work_wait(ddl_work *work, int64_t timeout_ms);

/* Return DDL_INPROGRESS, or the work's result. Thread-safe. Does not block. */
DDL_API ddl_status ddl_work_test(ddl_work *work);

/* Release the work. A pending work is freed when it completes, and its buffers stay borrowed until
 * then. NULL is allowed. Cannot fail. Not concurrently with other calls on the same work. */
DDL_API void ddl_work_destroy(ddl_work *work);

/* Return up to max finished works that were submitted with options.queued, in the order of
 * completion. Stores the works in works[], their user pointers in users[] (either array may be
 * NULL) and their number in *taken. Blocks until there is at least one; returns DDL_ETIMEDOUT after
 * timeout_ms (0: does not block; negative: no limit). Returns DDL_ESTATE at once if no queued work
 * is pending or finished. The works stay owned by the submitter. Thread-safe. */
DDL_API ddl_status ddl_comm_completed(ddl_comm *comm, ddl_work **works, void **users, int max,
                                      int64_t timeout_ms, int *taken);

/* ---- ddl: end ---- */
#ifdef __cplusplus
}
#endif

#endif
