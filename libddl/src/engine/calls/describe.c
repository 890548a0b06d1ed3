/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/calls/describe.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "base/dtype.h"
#include "engine/calls/group.h"

static const uint64_t GROUP = 0xff; /* in place of a kind */
static const uint64_t COUNT = ((uint64_t)1 << DDL__COUNT_BITS) - 1;

ddl__signature ddl__signature_of_group(const ddl_group *group)
{
    ddl__digest digest = {{0, 0}};
    for (uint32_t i = 0; i < group->n_calls; i++) {
        ddl__signature call = ddl__signature_of(&group->calls[i], 0);
        ddl__digest_add(&digest, &call, sizeof call);
    }
    return (ddl__signature){{digest.words[0] << 32 | GROUP << 16, group->n_calls}};
}

void ddl__sign_block(ddl__signature *signature, int64_t count)
{
    signature->words[1] = (signature->words[1] & ~COUNT) | (uint64_t)count;
}

/* For each kind of operation: its name, and whether its text contains the count, the reduction and
 * the root. */
static const struct {
    const char *name;
    bool counts, reduces, roots;
    const char *block; /* the text behind the count of uneven blocks */
} kinds[] = {
    [DDL__ALLREDUCE] = {"all-reduce", true, true, false, ""},
    [DDL__REDUCE_SCATTER] = {"reduce-scatter", true, true, false, " in this block"},
    [DDL__ALLGATHER] = {"all-gather", true, false, false, " in this block"},
    [DDL__BROADCAST] = {"broadcast", true, false, true, ""},
    [DDL__BARRIER] = {"barrier", false, false, false, ""},
    [DDL__REDUCE_TO_ROOT] = {"reduce", true, true, true, ""},
    [DDL__GATHER] = {"gather", true, false, true, " between the two"},
    [DDL__SCATTER] = {"scatter", true, false, true, " between the two"},
    [DDL__ALLTOALL] = {"all-to-all", true, false, false, " between the two"},
    [DDL__ORDERED_ALLREDUCE] = {"ordered all-reduce", true, true, false, ""},
    [DDL__ORDERED_REDUCE_SCATTER] = {"ordered reduce-scatter", true, true, false, ""},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

/* Return true if the operation may have a wire format. */
static bool packs(unsigned kind)
{
    return kind == DDL__ALLREDUCE || kind == DDL__REDUCE_SCATTER || kind == DDL__ALLGATHER;
}

const char *ddl__kind_name(ddl__kind kind)
{
    return (int)kind < KINDS && kinds[kind].name ? kinds[kind].name : "";
}

ddl__kind ddl__kind_named(const char *name)
{
    int kind = 1;
    while (kind < KINDS && strcmp(ddl__kind_name((ddl__kind)kind), name) != 0)
        kind++;
    return (ddl__kind)(kind < KINDS ? kind : 0);
}

/* Append to the text of *n bytes, as far as there is room in `size` bytes, and update *n. */
static void add(char *text, size_t size, size_t *n, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void add(char *text, size_t size, size_t *n, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int more = *n < size ? vsnprintf(text + *n, size - *n, format, args) : 0;
    va_end(args);
    *n += more > 0 ? (size_t)more : 0;
}

bool ddl__signatures_agree(const ddl__signature *one, const ddl__signature *other)
{
    uint64_t mask = one->words[0] & DDL__UNEVEN ? ~COUNT : ~(uint64_t)0;
    return one->words[0] == other->words[0] && (one->words[1] & mask) == (other->words[1] & mask);
}

static uint64_t wire_of(const ddl__signature *signature)
{
    return signature->words[0] >> DDL__WIRE_SHIFT & 7;
}

void ddl__name_wires(ddl__signature *one, ddl__signature *other)
{
    if (wire_of(one) == wire_of(other))
        return;
    one->words[0] |= DDL__NAMES_WIRE;
    other->words[0] |= DDL__NAMES_WIRE;
}

static void describe(char *text, size_t size, const ddl__signature *signature, bool whole)
{
    uint64_t a = signature->words[0], b = signature->words[1];
    unsigned kind = a >> 16 & 0xff, root = (unsigned)(b >> DDL__COUNT_BITS);
    bool uneven = a & DDL__UNEVEN;
    size_t n = 0;
    if (kind == GROUP) {
        snprintf(text, size, "a group of %llu operations with digest %08x",
                 (unsigned long long)(b & COUNT), (unsigned)(a >> 32));
        return;
    }
    if (kind >= KINDS || !kinds[kind].name) {
        snprintf(text, size, "an unknown operation");
        return;
    }
    add(text, size, &n, "%s%s", kinds[kind].name, uneven ? "-v" : "");
    if (!kinds[kind].counts)
        return;
    add(text, size, &n, "(%s", ddl__dtype_name((unsigned)(a >> 8 & 0xff)));
    if (!uneven || !whole)
        add(text, size, &n, ", %llu%s", (unsigned long long)(b & COUNT),
            uneven ? kinds[kind].block : "");
    if (kinds[kind].reduces)
        add(text, size, &n, ", %s", ddl__op_name((unsigned)(a & 0xff)));
    if (wire_of(signature) || (a & DDL__NAMES_WIRE && packs(kind)))
        add(text, size, &n, ", %s on the wire", ddl__wire_name((uint32_t)wire_of(signature)));
    if (kinds[kind].roots)
        add(text, size, &n, ", root %u", root);
    else if (root)
        add(text, size, &n, ", %s with digest %04x",
            kind == DDL__ORDERED_ALLREDUCE        ? "owners"
            : kind == DDL__ORDERED_REDUCE_SCATTER ? "owners and counts"
                                                  : "counts",
            root);
    add(text, size, &n, ")");
}

void ddl__describe_operation(char *text, size_t size, const ddl__signature *signature)
{
    describe(text, size, signature, false);
}

void ddl__describe_whole(char *text, size_t size, const ddl__signature *signature)
{
    describe(text, size, signature, true);
}

void ddl__describe_signature(char *text, size_t size, const ddl__signature *signature)
{
    char operation[DDL__CALL_MAX];
    ddl__describe_operation(operation, sizeof operation, signature);
    snprintf(text, size, "%s as operation %u", operation, (unsigned)(signature->words[0] >> 32));
}

ddl__call ddl__call_of(const ddl__signature *signature)
{
    uint64_t a = signature->words[0], b = signature->words[1];
    return (ddl__call){.kind = (ddl__kind)(a >> 16 & 0xff),
                       .dtype = (ddl_dtype)(a >> 8 & 0xff),
                       .op = (ddl_op)(a & 0xff),
                       .root = (int16_t)(b >> DDL__COUNT_BITS),
                       .count = (int64_t)(b & COUNT)};
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
