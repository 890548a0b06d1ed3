/* SPDX-License-Identifier: Apache-2.0 */
/* Fusion. Many small all-reduces cost as many round trips; packed together they cost one, and two
 * copies. Small calls, by a limit that depends on the kind of links, are packed up to a size whose
 * copies stay in a cache. Every rank collects the same calls, so all make the same parts: these
 * must not depend on scales, which each rank has of its own. */
#include "engine/group.h"

#include <stdlib.h>

#include "base/dtype.h"
#include "base/forks.h"
#include "engine/ordered.h"

enum {
    SMALL_SHARED = 16 << 10, /* bytes of a call that is fused where ranks share memory ... */
    SMALL_WIRES = 128 << 10, /* ... and over wires, where a round trip costs more */
    BUNDLE_MAX = 1 << 20     /* bytes */
};

static size_t bytes_of(const ddl__call *call)
{
    return (size_t)call->count * ddl__dtype_size(call->dtype);
}

ddl_group *ddl__group_create(ddl__engine *engine, int64_t limit_ms)
{
    ddl_group *group = calloc(1, sizeof *group);
    if (!group) {
        ddl__fail(DDL_ENOMEM, "no memory for a group");
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
        if (!bundle || group->parts[i].call.hold) /* a device's, which may be gone */
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
            return ddl__fail(DDL_ENOMEM, "no memory for %u operations of a group", room);
        group->calls = calls;
        group->room = room;
    }
    drop_parts(group);
    group->calls[group->n_calls++] = *call;
    return DDL_OK;
}

/* ----------------------------------------------------------------------------------- the parts */

/* What a device copies starts on its own. */
static bool is_small(const ddl__call *call, size_t small)
{
    return call->kind == DDL__ALLREDUCE && bytes_of(call) <= small && !call->hold;
}

static bool fits_together(const ddl__call *a, const ddl__call *b)
{
    return a->dtype == b->dtype && a->op == b->op;
}

/* Bundle the call at `first` with all later calls that fit it, and mark those as taken. A call that
 * nothing fits stays alone. */
static ddl_status make_part(ddl_group *group, uint32_t first, size_t small, bool *taken)
{
    const ddl__call *call = &group->calls[first];
    ddl__part *part = &group->parts[group->n_parts];
    part->call = *call;
    uint32_t n = 0, left = group->n_calls - first;
    size_t bytes = 0;
    ddl__bundle *bundle = NULL;
    if (is_small(call, small))
        bundle = malloc(sizeof *bundle + left * sizeof *bundle->calls);
    for (uint32_t i = first; bundle && i < group->n_calls; i++) {
        const ddl__call *other = &group->calls[i];
        if (taken[i] || !is_small(other, small) || bytes + bytes_of(other) > BUNDLE_MAX ||
            !fits_together(call, other))
            continue;
        taken[i] = true;
        bundle->calls[n++] = *other;
        bytes += bytes_of(other);
    }
    if (n > 1 && bytes) {
        bundle->n = n;
        bundle->scratch = malloc(bytes);
        part->call.bundle = bundle;
        part->call.count = (int64_t)(bytes / ddl__dtype_size(call->dtype));
        part->call.send = part->call.recv = bundle->scratch;
        part->call.prescale = part->call.postscale = 0; /* those of the calls are applied */
        if (!bundle->scratch)
            return ddl__fail(DDL_ENOMEM, "no memory to fuse %u operations", n);
    } else {
        free(bundle); /* a single call, or only empty ones */
    }
    taken[first] = true;
    group->n_parts++;
    return DDL_OK;
}

ddl_status ddl__group_arrange(ddl_group *group, bool wires)
{
    if (group->parts || !group->n_calls)
        return DDL_OK;
    group->parts = calloc(group->n_calls, sizeof *group->parts);
    bool *taken = calloc(group->n_calls, sizeof *taken);
    ddl_status status = group->parts && taken
                            ? DDL_OK
                            : ddl__fail(DDL_ENOMEM, "no memory for a group of %u", group->n_calls);
    for (uint32_t i = 0; i < group->n_calls && status == DDL_OK; i++)
        if (!taken[i])
            status = make_part(group, i, wires ? SMALL_WIRES : SMALL_SHARED, taken);
    free(taken);
    if (status != DDL_OK)
        drop_parts(group);
    return status;
}
