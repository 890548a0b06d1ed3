/* ddl.h - the whole public interface of libddl. This file is the ABI; cffi reads it too.
 *
 * libddl runs collective operations (all-reduce, reduce-scatter, all-gather, broadcast, barrier)
 * between processes on one host or many, over shared memory and TCP.
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

#define DDL_VERSION_MAJOR 0
#define DDL_VERSION_MINOR 1
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

/* Element types. Values are ABI; the gaps belong to types that follow. */
typedef enum ddl_dtype {
    DDL_I8 = 2,
    DDL_U8 = 3,
    DDL_I32 = 6,
    DDL_I64 = 8,
    DDL_F16 = 10,  /* IEEE 754 binary16 */
    DDL_BF16 = 11, /* bfloat16: the upper half of a binary32 */
    DDL_F32 = 12,
    DDL_F64 = 13
} ddl_dtype;

/* Reductions. Results are bit-identical on all ranks and from run to run.
 *   f16, bf16      accumulate in f32, rounded to nearest even once per pass over the operands.
 *   integer sum, product wrap modulo 2^bits.
 *   average        sum / size; floats divide before the last rounding; integers divide the wrapped
 *                  sum and truncate toward zero.
 *   min, max       NaN if any operand is NaN (payload unspecified). The order of -0 and +0 is
 *                  unspecified but the same on all ranks. */
typedef enum ddl_op {
    DDL_SUM = 1,
    DDL_AVERAGE = 2,
    DDL_MIN = 3,
    DDL_MAX = 4,
    DDL_PRODUCT = 5
} ddl_op;

/* Where a buffer lies. */
typedef enum ddl_memory { DDL_MEMORY_HOST = 0 } ddl_memory;

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

typedef struct ddl_endpoint_config {
    uint32_t struct_size;
    uint32_t reserved;
    const char *secret; /* all processes of a job share it; NULL: $DDL_SECRET, else "" */
    const char *host;   /* IP address to listen on and to give to peers; NULL: all */
} ddl_endpoint_config;

typedef struct ddl_comm_config {
    uint32_t struct_size;
    uint32_t links;               /* allowed kinds (ddl_link_kind bits); 0: $DDL_LINKS, else all */
    uint64_t tag;                 /* 0: counts the creations over exactly this address list */
    uint64_t epoch;               /* equal on all members */
    int64_t timeout_ms;           /* creation; 0: 5 minutes */
    int64_t operation_timeout_ms; /* each operation's own limit; 0: 30 minutes */
    uint64_t segment_bytes;       /* pipeline granularity; 0: chosen. Equal on all members */
} ddl_comm_config;

typedef struct ddl_options {
    uint32_t struct_size;
    uint32_t memory;    /* ddl_memory of both buffers */
    int64_t timeout_ms; /* this operation's own limit; 0: the comm's */
    uint32_t queued;    /* 1: report completion through ddl_comm_completed */
    uint32_t reserved;
    void *user; /* handed back by ddl_comm_completed; never dereferenced */
} ddl_options;

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
enum { DDL_ADDRESS_MAX = 1024 };

/* Close the ports, stop the thread, free. NULL is fine. Cannot fail. Destroy its comms first. Not
 * concurrently with other calls on the same endpoint. */
DDL_API void ddl_endpoint_destroy(ddl_endpoint *endpoint);

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
 * rank -1 and size 0 are taken from $DDL_RENDEZVOUS, $DDL_RANK and $DDL_SIZE as ddlrun sets them;
 * without these, a comm of size 1. All members must call it. Blocks at most config->timeout_ms.
 * Thread-safe. */
DDL_API ddl_status ddl_rendezvous(ddl_endpoint *endpoint, const char *url, int rank, int size,
                                  const ddl_comm_config *config, ddl_comm **comm);

/* This process's rank in the comm, and the comm's size; -1 for NULL. Thread-safe. */
DDL_API int ddl_comm_rank(const ddl_comm *comm);
DDL_API int ddl_comm_size(const ddl_comm *comm);

/* Rank and number among the members proven to share this rank's memory; -1 for NULL.
 * Thread-safe. */
DDL_API int ddl_comm_local_rank(const ddl_comm *comm);
DDL_API int ddl_comm_local_size(const ddl_comm *comm);

/* DDL_OK while the comm works, else the first error that killed it, its message then in
 * ddl_last_error. Sticky. Thread-safe. Does not block. */
DDL_API ddl_status ddl_comm_status(ddl_comm *comm);

/* Kill the comm everywhere: pending and later operations of all members end with DDL_EABORTED and
 * this reason (borrowed for the call). The first reason wins. May be called at any time from any
 * thread. Does not block. */
DDL_API ddl_status ddl_comm_abort(ddl_comm *comm, const char *reason);

/* Leave. Completes all works of the comm first (pending ones with DDL_EABORTED), tells the peers
 * goodbye, frees. NULL is fine. Cannot fail. Works stay valid until ddl_work_destroy. Not
 * concurrently with other calls on the same comm. */
DDL_API void ddl_comm_destroy(ddl_comm *comm);

/* --------------------------------------------------------------------------------- operations */

/* Common rules. All members call the same operations on a comm in the same order, with equal count,
 * dtype, op and root; a difference ends with DDL_EMISMATCH. Operations of one comm run one after
 * the other in the order of submission; those of different comms are independent. Counts are in
 * elements and may be zero; buffers need no alignment.
 * send == recv, or send NULL, means in place. Otherwise the two must not overlap, and send is only
 * read.
 * work NULL: blocks until complete. Else *work is owned by the caller (ddl_work_destroy), and both
 * buffers are borrowed until it is complete. options may be NULL.
 * After a failure the contents of recv are undefined. Thread-safe; threads that share one comm must
 * order their calls equally on all members. */

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

/* buffer[i] on every rank = root's buffer[i], for i < count. */
DDL_API ddl_status ddl_broadcast(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype,
                                 int root, const ddl_options *options, ddl_work **work);

/* Complete on no rank before every rank has called it. */
DDL_API ddl_status ddl_barrier(ddl_comm *comm, const ddl_options *options, ddl_work **work);

/* --------------------------------------------------------------------------------------- work */

/* Wait until the work is complete and return its result; waiting again returns the same. timeout_ms
 * 0 only looks, negative waits without limit of its own (the operation's limit still holds). On
 * DDL_ETIMEDOUT the work stays pending and its buffers borrowed. Thread-safe. */
DDL_API ddl_status ddl_work_wait(ddl_work *work, int64_t timeout_ms);

/* DDL_INPROGRESS, or the work's result. Thread-safe. Does not block. */
DDL_API ddl_status ddl_work_test(ddl_work *work);

/* Give the work up. A pending one is released when it completes, and its buffers stay borrowed
 * until then. NULL is fine. Cannot fail. */
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
