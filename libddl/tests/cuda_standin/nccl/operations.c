/* SPDX-License-Identifier: Apache-2.0 */
/* Operations run in pieces. For each piece, all ranks write their operands to their areas, take a
 * step, read the areas of the others, and take a second step. Ranks with different operations wait
 * for an abort, as the real NCCL may. */
#include "operations.h"

#include <stdlib.h>
#include <string.h>

#include "../extensions.h"

enum { LINE = 64 };

size_t dtype_bytes(ncclDataType_t dtype)
{
    static const unsigned char bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return bytes[dtype];
}

void operation_free(operation *o)
{
    free(o->to);
    free(o->from);
    free(o);
}

/* ---------------------------------------------------------------------------- device memory */

static void move(unsigned char *host, CUdeviceptr address, size_t bytes, int device, bool to_device)
{
    unsigned char *at;
    if (!bytes)
        return;
    range *r = standin_use((uintptr_t)address, bytes, device, to_device, "NCCL", &at);
    memcpy(to_device ? at : host, to_device ? host : at, bytes);
    standin_unuse(r);
}

/* --------------------------------------------------------------------------------- reductions */

static float of_bf16(uint16_t from)
{
    uint32_t bits = (uint32_t)from << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Convert to the nearest, ties to even; no NaN. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define COMBINE(a, b)                                                                              \
    (op == ncclProd  ? (a) * (b)                                                                   \
     : op == ncclMax ? ((a) > (b) ? (a) : (b))                                                     \
     : op == ncclMin ? ((a) < (b) ? (a) : (b))                                                     \
                     : (a) + (b))

/* Define a reduction. The operands of the ranks are `stride` bytes apart. */
#define REDUCTION(name, type, wide, load, store)                                                   \
    static void name(unsigned char *out, const unsigned char *in, size_t stride, int n,            \
                     size_t count, ncclRedOp_t op)                                                 \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            type operand;                                                                          \
            wide all = 0;                                                                          \
            for (int r = 0; r < n; r++) {                                                          \
                memcpy(&operand, in + (size_t)r * stride + i * sizeof operand, sizeof operand);    \
                if (op == ncclAvg) /* as the real NCCL does it */                                  \
                    operand = store((wide)(load(operand) / (wide)n));                              \
                wide one = load(operand);                                                          \
                all = r ? (wide)COMBINE(all, one) : one;                                           \
            }                                                                                      \
            operand = store(all);                                                                  \
            memcpy(out + i * sizeof operand, &operand, sizeof operand);                            \
        }                                                                                          \
    }
#define AS_IT_IS(x) (x)
#define WIDEN(x)    ((float)(x))
#define HALVE(x)    ((_Float16)(x))
REDUCTION(reduce_i8, uint8_t, uint8_t, AS_IT_IS, AS_IT_IS) /* sums and products */
REDUCTION(order_i8, int8_t, int8_t, AS_IT_IS, AS_IT_IS)    /* other ops */
REDUCTION(reduce_i32, uint32_t, uint32_t, AS_IT_IS, AS_IT_IS)
REDUCTION(order_i32, int32_t, int32_t, AS_IT_IS, AS_IT_IS)
REDUCTION(reduce_i64, uint64_t, uint64_t, AS_IT_IS, AS_IT_IS)
REDUCTION(order_i64, int64_t, int64_t, AS_IT_IS, AS_IT_IS)
REDUCTION(reduce_f16, _Float16, float, WIDEN, HALVE)
REDUCTION(reduce_f32, float, float, AS_IT_IS, AS_IT_IS)
REDUCTION(reduce_f64, double, double, AS_IT_IS, AS_IT_IS)
REDUCTION(reduce_bf16, uint16_t, float, of_bf16, to_bf16)

typedef void reduction(unsigned char *out, const unsigned char *in, size_t stride, int n,
                       size_t count, ncclRedOp_t op);

static reduction *reduction_of(const operation *o)
{
    bool wraps = o->op == ncclSum || o->op == ncclProd; /* signed numbers wrap as unsigned ones */
    switch (o->dtype) {
    case ncclInt8: return wraps ? reduce_i8 : order_i8;
    case ncclUint8: return reduce_i8;
    case ncclInt32: return wraps ? reduce_i32 : order_i32;
    case ncclUint32: return reduce_i32;
    case ncclInt64: return wraps ? reduce_i64 : order_i64;
    case ncclUint64: return reduce_i64;
    case ncclFloat16: return reduce_f16;
    case ncclFloat32: return reduce_f32;
    case ncclFloat64: return reduce_f64;
    case ncclBfloat16:
    case ncclNumTypes: break;
    }
    return reduce_bf16;
}

/* ------------------------------------------------------------------------- the ranks of a world */

static bool step(operation *o)
{
    struct ncclComm *c = o->comm;
    return world_step(c->world, c->rank, ++c->step, &c->aborted);
}

/* Publish these values, and wait for the values of the others, which may be read until the next
 * step. */
static bool say(operation *o, const uint64_t said[WORLD_SAID])
{
    memcpy(o->comm->world->file->ranks[o->comm->rank].said, said, WORLD_SAID * sizeof *said);
    return step(o);
}

static const uint64_t *said_by(const operation *o, int rank)
{
    return o->comm->world->file->ranks[rank].said;
}

static unsigned char *area_of(const operation *o, int rank)
{
    return o->comm->world->file->areas[rank];
}

static void sign(const operation *o, uint64_t own[WORLD_SAID])
{
    own[0] = (uint64_t)o->kind << 32 | (uint64_t)o->dtype << 8 | o->op;
    own[1] = o->count;
    own[2] = (uint64_t)o->root;
    own[3] = 0;
}

/* Return true if all ranks have called the same; if not, wait for an abort. */
static bool agree(operation *o)
{
    uint64_t own[WORLD_SAID];
    sign(o, own);
    if (!say(o, own))
        return false;
    bool same = true;
    for (int r = 0; r < o->comm->size; r++)
        same = same && !memcmp(said_by(o, r), own, sizeof own);
    if (step(o) && same)
        return true;
    world_await_abort(&o->comm->aborted);
    return false;
}

/* --------------------------------------------------------------------------------- collectives */

static int blocks_in(const operation *o)
{
    if (o->kind == BROADCAST && o->comm->rank != o->root)
        return 0;
    return o->kind == REDUCE_SCATTER ? o->comm->size : 1;
}

static void publish(operation *o, size_t at, size_t bytes, int device)
{
    for (int b = 0; b < blocks_in(o); b++) {
        CUdeviceptr block = o->send + (size_t)b * o->count * dtype_bytes(o->dtype);
        move(area_of(o, o->comm->rank) + (size_t)b * bytes, block + at, bytes, device, false);
    }
}

static void collect(operation *o, size_t at, size_t bytes, int device)
{
    unsigned char result[WORLD_AREA];
    size_t element = dtype_bytes(o->dtype);
    int rank = o->comm->rank, block = o->kind == REDUCE_SCATTER ? rank : 0;
    if (o->kind == ALL_GATHER) {
        for (int r = 0; r < o->comm->size; r++)
            move(area_of(o, r), o->recv + (size_t)r * o->count * element + at, bytes, device, true);
    } else if (o->kind == BROADCAST) {
        move(area_of(o, o->root), o->recv + at, bytes, device, true);
    } else if (o->kind != REDUCE || rank == o->root) {
        reduction_of(o)(result, area_of(o, 0) + (size_t)block * bytes, WORLD_AREA, o->comm->size,
                        bytes / element, o->op);
        move(result, o->recv + at, bytes, device, true);
    }
}

static void run_collective(operation *o, int device)
{
    size_t all = o->count * dtype_bytes(o->dtype);
    size_t piece = WORLD_AREA / (size_t)o->comm->size / LINE * LINE;
    for (size_t at = 0; at < all; at += piece) {
        size_t bytes = all - at < piece ? all - at : piece;
        publish(o, at, bytes, device);
        if (!step(o))
            return;
        collect(o, at, bytes, device);
        if (!step(o))
            return;
    }
}

/* ------------------------------------------------------------------------------------ messages */

/* Copy the part from `at` on of the message to each rank into a slot of the area. */
static void run_exchange(operation *o, int device)
{
    int size = o->comm->size, rank = o->comm->rank;
    size_t slot = WORLD_AREA / (size_t)size / LINE * LINE, longest = 0, most = 0;
    for (int r = 0; r < size; r++)
        longest = o->to[r].bytes > longest ? o->to[r].bytes : longest;
    const uint64_t own[WORLD_SAID] = {longest};
    if (!say(o, own))
        return;
    for (int r = 0; r < size; r++)
        most = said_by(o, r)[0] > most ? said_by(o, r)[0] : most;
    for (size_t at = 0; at < most; at += slot) {
        for (int r = 0; r < size; r++)
            if (at < o->to[r].bytes)
                move(area_of(o, rank) + (size_t)r * slot, o->to[r].address + at,
                     o->to[r].bytes - at < slot ? o->to[r].bytes - at : slot, device, false);
        if (!step(o))
            return;
        for (int r = 0; r < size; r++)
            if (at < o->from[r].bytes)
                move(area_of(o, r) + (size_t)rank * slot, o->from[r].address + at,
                     o->from[r].bytes - at < slot ? o->from[r].bytes - at : slot, device, true);
        if (!step(o))
            return;
    }
}

/* The root of a short broadcast does not wait for the others, as is often the case with the real
 * NCCL. */
static bool run_early(operation *o, int device)
{
    enum { STEPS = 4 }; /* as many as the other ranks take */
    struct ncclComm *c = o->comm;
    size_t bytes = o->count * dtype_bytes(o->dtype);
    if (o->kind != BROADCAST || c->rank != o->root || !bytes ||
        bytes > WORLD_AREA / (size_t)c->size / LINE * LINE)
        return false;
    sign(o, c->world->file->ranks[c->rank].said);
    publish(o, 0, bytes, device);
    move(area_of(o, c->rank), o->recv, bytes, device, true);
    c->step += STEPS;
    atomic_store_explicit(&c->world->file->ranks[c->rank].step, c->step, memory_order_release);
    return true;
}

void operation_run(void *argument, int device)
{
    operation *o = argument;
    struct ncclComm *comm = o->comm;
    if (world_await(comm->world, comm->step, &comm->aborted) && !run_early(o, device) && agree(o)) {
        if (o->kind == EXCHANGE)
            run_exchange(o, device);
        else
            run_collective(o, device);
    }
    operation_free(o);
    atomic_fetch_sub(&comm->queued, 1);
}
