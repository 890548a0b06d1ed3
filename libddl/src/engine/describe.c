#include "engine/describe.h"

#include <stdio.h>

#include "base/dtype.h"

enum { COUNT_BITS = 48 };

ddl__signature ddl__signature_of(const ddl__call *call, uint32_t sequence)
{
    return (ddl__signature){{(uint64_t)sequence << 32 | (uint64_t)call->kind << 16 |
                                 (uint64_t)call->dtype << 8 | (uint64_t)call->op,
                             (uint64_t)call->root << COUNT_BITS | (uint64_t)call->count}};
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

void ddl__describe_signature(char *text, size_t size, const ddl__signature *signature)
{
    uint64_t a = signature->words[0], b = signature->words[1];
    const char *dtype = ddl__dtype_name((unsigned)(a >> 8 & 0xff)),
               *op = op_name((unsigned)(a & 0xff));
    unsigned sequence = (unsigned)(a >> 32), root = (unsigned)(b >> COUNT_BITS);
    unsigned long long count = b & (((uint64_t)1 << COUNT_BITS) - 1);
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
    case DDL__GATHER:
    case DDL__SCATTER:
    case DDL__ALLTOALL:
    case DDL__SEND:
    case DDL__RECV: break;
    }
    snprintf(text, size, "an unknown operation as operation %u", sequence);
}

void ddl__describe_call(char *text, size_t size, const ddl__call *call)
{
    char peer[24] = "any rank";
    bool sends = call->kind == DDL__SEND;
    if (call->root != DDL_ANY_SOURCE)
        snprintf(peer, sizeof peer, "rank %d", call->root);
    snprintf(text, size, "%s(%s, %lld, %s %s, tag %d)", sends ? "send" : "receive",
             ddl__dtype_name(call->dtype), (long long)call->count, sends ? "to" : "from", peer,
             call->tag);
}
