#include "engine/describe.h"

#include <stdio.h>

#include "base/dtype.h"

enum { COUNT_BITS = 48 };
static const uint64_t UNEVEN = 1 << 24, COUNT = ((uint64_t)1 << COUNT_BITS) - 1;

ddl__signature ddl__signature_of(const ddl__call *call, uint32_t sequence)
{
    uint64_t root = (uint64_t)call->root + call->counts_digest;
    return (ddl__signature){{(uint64_t)sequence << 32 | (call->blocks ? UNEVEN : 0) |
                                 (uint64_t)call->kind << 16 | (uint64_t)call->dtype << 8 |
                                 (uint64_t)call->op,
                             root << COUNT_BITS | (uint64_t)call->count}};
}

void ddl__sign_block(ddl__signature *signature, int64_t count)
{
    signature->words[1] = (signature->words[1] & ~COUNT) | (uint64_t)count;
}

static const char *op_name(unsigned op)
{
    static const char *const names[] = {[DDL_SUM] = "sum",
                                        [DDL_AVERAGE] = "average",
                                        [DDL_MIN] = "min",
                                        [DDL_MAX] = "max",
                                        [DDL_PRODUCT] = "product"};
    return op < sizeof names / sizeof *names && names[op] ? names[op] : "?";
}

/* An operation on uneven blocks. */
static void describe_uneven(char *text, size_t size, const ddl__signature *signature)
{
    uint64_t a = signature->words[0], b = signature->words[1];
    const char *dtype = ddl__dtype_name((unsigned)(a >> 8 & 0xff)),
               *op = op_name((unsigned)(a & 0xff));
    unsigned sequence = (unsigned)(a >> 32), root = (unsigned)(b >> COUNT_BITS);
    unsigned long long count = b & COUNT;
    switch ((ddl__kind)(a >> 16 & 0xff)) {
    case DDL__REDUCE_SCATTER:
        snprintf(text, size,
                 "reduce-scatter-v(%s, %llu in this block, %s, counts with digest %04x) as "
                 "operation %u",
                 dtype, count, op, root, sequence);
        return;
    case DDL__ALLGATHER:
        snprintf(text, size,
                 "all-gather-v(%s, %llu in this block, counts with digest %04x) as operation %u",
                 dtype, count, root, sequence);
        return;
    case DDL__GATHER:
        snprintf(text, size, "gather-v(%s, %llu between the two, root %u) as operation %u", dtype,
                 count, root, sequence);
        return;
    case DDL__SCATTER:
        snprintf(text, size, "scatter-v(%s, %llu between the two, root %u) as operation %u", dtype,
                 count, root, sequence);
        return;
    case DDL__ALLTOALL:
        snprintf(text, size, "all-to-all-v(%s, %llu between the two) as operation %u", dtype, count,
                 sequence);
        return;
    case DDL__ALLREDUCE:
    case DDL__BROADCAST:
    case DDL__BARRIER:
    case DDL__REDUCE_TO_ROOT:
    case DDL__SEND:
    case DDL__RECV: break;
    }
    snprintf(text, size, "an unknown operation as operation %u", sequence);
}

void ddl__describe_signature(char *text, size_t size, const ddl__signature *signature)
{
    if (signature->words[0] & UNEVEN) {
        describe_uneven(text, size, signature);
        return;
    }
    uint64_t a = signature->words[0], b = signature->words[1];
    const char *dtype = ddl__dtype_name((unsigned)(a >> 8 & 0xff)),
               *op = op_name((unsigned)(a & 0xff));
    unsigned sequence = (unsigned)(a >> 32), root = (unsigned)(b >> COUNT_BITS);
    unsigned long long count = b & COUNT;
    switch ((ddl__kind)(a >> 16 & 0xff)) {
    case DDL__ALLREDUCE:
        snprintf(text, size, "all-reduce(%s, %llu, %s) as operation %u", dtype, count, op,
                 sequence);
        return;
    case DDL__REDUCE_SCATTER:
        snprintf(text, size, "reduce-scatter(%s, %llu, %s) as operation %u", dtype, count, op,
                 sequence);
        return;
    case DDL__ALLGATHER:
        snprintf(text, size, "all-gather(%s, %llu) as operation %u", dtype, count, sequence);
        return;
    case DDL__BROADCAST:
        snprintf(text, size, "broadcast(%s, %llu, root %u) as operation %u", dtype, count, root,
                 sequence);
        return;
    case DDL__BARRIER: snprintf(text, size, "barrier as operation %u", sequence); return;
    case DDL__REDUCE_TO_ROOT:
        snprintf(text, size, "reduce(%s, %llu, %s, root %u) as operation %u", dtype, count, op,
                 root, sequence);
        return;
    case DDL__GATHER:
        snprintf(text, size, "gather(%s, %llu, root %u) as operation %u", dtype, count, root,
                 sequence);
        return;
    case DDL__SCATTER:
        snprintf(text, size, "scatter(%s, %llu, root %u) as operation %u", dtype, count, root,
                 sequence);
        return;
    case DDL__ALLTOALL:
        snprintf(text, size, "all-to-all(%s, %llu) as operation %u", dtype, count, sequence);
        return;
    case DDL__SEND:
    case DDL__RECV: break;
    }
    snprintf(text, size, "an unknown operation as operation %u", sequence);
}
