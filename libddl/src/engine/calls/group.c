/* SPDX-License-Identifier: Apache-2.0 */
/* Fusion of small all-reduces. Each separate all-reduce takes a round trip. If they are packed into
 * one, they together take one round trip and two copies. Calls below a limit, which depends on the
 * kind of links, are packed up to a total size whose copies stay in a cache. Every rank collects
 * the same calls, so all ranks make the same parts. Parts must not depend on scales, because each
 * rank has its own. */
#include "engine/calls/group.h"

#include <stdlib.h>

#include "base/dtype.h"
#include "base/forks.h"
#include "engine/calls/ordered.h"

enum {
    SMALL_SHARED = 16 << 10, /* bytes of the longest call that is fused if all ranks share memory */
    SMALL_WIRES =
        128 << 10, /* bytes of the longest fused call with TCP links, whose round trips cost more */
    BUNDLE_MAX = 1 << 20 /* bytes of the longest bundle */
};

static size_t bytes_of(const ddl__call *call)
{
    return (size_t)call->count * ddl__dtype_size(call->dtype);
}

ddl_group *ddl__group_create(ddl__engine *engine, int64_t limit_ms)
{
    ddl_group *group = calloc(1, sizeof *group);
    if (!group) {
        ddl__fail(DDL_ENOMEM, "out of memory for a group");
        return NULL;
    }
    group->engine = engine;
    group->limit_ms = limit_ms;
    group->generation = ddl__generation();
    return group;
}

static void drop_parts(ddl_group *group)
{
    for (uint32_t i = 0; i < group->n_parts; i++) {
        ddl__bundle *bundle = group->parts[i].call.bundle;
        /* a device owns the bundle and may have freed it already */
        if (!bundle || group->parts[i].call.hold)
            continue;
        free(bundle->scratch);
        free(bundle);
    }
    free(group->parts);
    group->parts = NULL;
    group->n_parts = 0;
}

void ddl__group_free(ddl_group *group)
{
    drop_parts(group);
    for (uint32_t i = 0; i < group->n_calls; i++)
        ddl__call_drop(&group->calls[i]);
    free(group->calls);
    free(group);
}

ddl_status ddl__group_add(ddl_group *group, const ddl__call *call)
{
    if (group->n_calls == group->room) {
        uint32_t room = group->room ? 2 * group->room : 8;
        ddl__call *calls = realloc(group->calls, room * sizeof *calls);
        if (!calls)
            return ddl__fail(DDL_ENOMEM, "out of memory for %u operations of a group", room);
        group->calls = calls;
        group->room = room;
    }
    drop_parts(group);
    group->calls[group->n_calls++] = *call;
    return DDL_OK;
}

/* ----------------------------------------------------------------------------------- the parts */

/* Return true if the call can be fused with others. Calls whose buffers a device copies are not
 * fused, because each starts when its own copies are complete. */
static bool is_small(const ddl__call *call, size_t small)
{
    return call->kind == DDL__ALLREDUCE && bytes_of(call) <= small && !call->hold;
}

static bool fits_together(const ddl__call *a, const ddl__call *b)
{
    return a->dtype == b->dtype && a->op == b->op && a->by == b->by && a->wire == b->wire;
}

uint32_t ddl__calls_pack(const ddl__call *calls, uint32_t n, uint32_t first, size_t small,
                         size_t most, bool *taken, const ddl__call **packed)
{
    uint32_t n_packed = 0;
    size_t bytes = 0;
    for (uint32_t i = first; i < n && is_small(&calls[first], small); i++) {
        if (taken[i] || !is_small(&calls[i], small) || bytes + bytes_of(&calls[i]) > most ||
            !fits_together(&calls[first], &calls[i]))
            continue;
        taken[i] = true;
        packed[n_packed++] = &calls[i];
        bytes += bytes_of(&calls[i]);
    }
    taken[first] = true;
    return n_packed;
}

static ddl_status make_bundle(ddl__call *whole, const ddl__call *const *packed, uint32_t n)
{
    size_t bytes = 0;
    ddl__bundle *bundle = malloc(sizeof *bundle + n * sizeof *bundle->calls);
    for (uint32_t i = 0; bundle && i < n; i++) {
        bundle->calls[i] = *packed[i];
        bytes += bytes_of(packed[i]);
    }
    if (!bundle || !(bundle->scratch = malloc(bytes + 1))) {
        free(bundle);
        return ddl__fail(DDL_ENOMEM, "out of memory: cannot fuse %u operations", n);
    }
    bundle->n = n;
    whole->bundle = bundle;
    whole->count = (int64_t)(bytes / ddl__dtype_size(whole->dtype));
    whole->send = whole->recv = bundle->scratch;
    whole->prescale = whole->postscale = 0; /* each call's own scales are applied */
    return DDL_OK;
}

/* Make a part of the call at `first` and of all later calls that are packed with it. */
static ddl_status make_part(ddl_group *group, uint32_t first, size_t small, bool *taken,
                            const ddl__call **packed)
{
    ddl__call *call = &group->parts[group->n_parts++].call;
    uint32_t n =
        ddl__calls_pack(group->calls, group->n_calls, first, small, BUNDLE_MAX, taken, packed);
    *call = group->calls[first];
    return n > 1 ? make_bundle(call, packed, n) : DDL_OK;
}

ddl_status ddl__group_arrange(ddl_group *group, bool wires)
{
    if (group->parts || !group->n_calls)
        return DDL_OK;
    group->parts = calloc(group->n_calls, sizeof *group->parts);
    bool *taken = calloc(group->n_calls, sizeof *taken);
    const ddl__call **packed = calloc(group->n_calls, sizeof *packed);
    ddl_status status =
        group->parts && taken && packed
            ? DDL_OK
            : ddl__fail(DDL_ENOMEM, "out of memory for a group of %u", group->n_calls);
    for (uint32_t i = 0; i < group->n_calls && status == DDL_OK; i++)
        if (!taken[i])
            status = make_part(group, i, wires ? SMALL_WIRES : SMALL_SHARED, taken, packed);
    free(taken);
    free(packed);
    if (status != DDL_OK)
        drop_parts(group);
    return status;
}
