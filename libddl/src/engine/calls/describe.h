/* SPDX-License-Identifier: Apache-2.0 */
/* describe.h - operations as texts, for error messages and logs. */
#ifndef DDL_ENGINE_CALLS_DESCRIBE_H
#define DDL_ENGINE_CALLS_DESCRIBE_H

#include "engine/calls/work.h"

enum {
    DDL__CALL_MAX = 128,
    DDL__COUNT_BITS = 48,
    DDL__UNEVEN = 1 << 24,
    DDL__WIRE_SHIFT = 25,
    /* a flag in copies of signatures that are only turned into text: the text names the wire
     * format, even if it is f32 */
    DDL__NAMES_WIRE = 1 << 28
};

/* Return the signature of a call, which ranks compare: sequence, kind, dtype, op, wire format, even
 * or uneven blocks, root and count. */
static inline ddl__signature ddl__signature_of(const ddl__call *call, uint32_t sequence)
{
    uint64_t root = (uint64_t)call->root + call->counts_digest;
    return (ddl__signature){{(uint64_t)sequence << 32 | (call->blocks ? (uint64_t)DDL__UNEVEN : 0) |
                                 (uint64_t)call->wire << DDL__WIRE_SHIFT |
                                 (uint64_t)call->kind << 16 | (uint64_t)call->dtype << 8 |
                                 (uint64_t)call->op,
                             root << DDL__COUNT_BITS | (uint64_t)call->count}};
}

/* Return the signature of a group: the number of calls and a digest of them. */
ddl__signature ddl__signature_of_group(const ddl_group *group);

/* Change the signature of an operation on uneven blocks to the signature of the spans of one block.
 * Its count is the block's count, because two ranks need not know the other counts. */
void ddl__sign_block(ddl__signature *signature, int64_t count);

/* ddl__kind_name returns the name of a kind, such as "all-reduce". ddl__kind_named returns the kind
 * with this name, or 0 if there is none. */
const char *ddl__kind_name(ddl__kind kind);
ddl__kind ddl__kind_named(const char *name);

/* If the wire formats of two operations differ, let the texts of both operations name them. */
void ddl__name_wires(ddl__signature *one, ddl__signature *other);

/* Describe an operation, like "all-reduce(f32, 100, sum)" or "all-reduce(f32, 100, sum, int8 on the
 * wire)". */
void ddl__describe_operation(char *text, size_t size, const ddl__signature *signature);

/* Return true if ranks with these two signatures may have called the same operation. Counts of
 * uneven blocks may differ between ranks. */
bool ddl__signatures_agree(const ddl__signature *one, const ddl__signature *other);

/* Describe an operation as one rank has called it: without a count if it is uneven. */
void ddl__describe_whole(char *text, size_t size, const ddl__signature *signature);

/* Describe an operation and its number, like "all-reduce(f32, 100, sum) as operation 57". */
void ddl__describe_signature(char *text, size_t size, const ddl__signature *signature);

/* Return the call that a signature describes: kind, dtype, count, op and root. */
ddl__call ddl__call_of(const ddl__signature *signature);

/* Describe a message, like "receive(f32, 100, from any rank, tag 7)". */
void ddl__describe_call(char *text, size_t size, const ddl__call *call);

#endif
