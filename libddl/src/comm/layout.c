/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/layout.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/fp_mode.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/environment.h"

enum { TEXT_MAX = 128 };

static int count_declared(const ddl__layout *layout)
{
    int n = 1;
    for (int d = 0; d < DDL__DIMENSIONS; d++)
        n *= layout->dimensions[d];
    return n;
}

static const char *describe_mode(const ddl__layout *layout, char text[TEXT_MAX])
{
    const int *d = layout->dimensions;
    if (layout->mode)
        snprintf(text, TEXT_MAX, "%c:%dx%dx%dx%d", layout->mode, d[0], d[1], d[2], d[3]);
    else
        snprintf(text, TEXT_MAX, "not set");
    return text;
}

ddl_status ddl__layout_compare(const ddl_comm *comm, const ddl__layout *theirs, const char *name)
{
    char ours_text[TEXT_MAX], theirs_text[TEXT_MAX];
    const ddl__layout *ours = &comm->layout;
    const char *self = comm->names[comm->rank];
    if (strncmp(ours->topology, theirs->topology, sizeof ours->topology) != 0)
        return ddl__fail(
            DDL_EINVAL,
            "DDL_TOPOLOGY is \"%s\" on %s and \"%.*s\" on %s; must be equal on all ranks",
            ours->topology, self, (int)sizeof theirs->topology - 1, theirs->topology, name);
    if (ours->mode != theirs->mode ||
        memcmp(ours->dimensions, theirs->dimensions, sizeof ours->dimensions) != 0)
        return ddl__fail(
            DDL_EINVAL, "DDL_OPTIONS: -mode is %s on %s and %s on %s; must be equal on all ranks",
            describe_mode(ours, ours_text), self, describe_mode(theirs, theirs_text), name);
    if (ours->dump_iter != theirs->dump_iter)
        return ddl__fail(
            DDL_EINVAL,
            "DDL_OPTIONS: -dump_iter is %d on %s and %d on %s; must be equal on all ranks",
            ours->dump_iter, self, theirs->dump_iter, name);
    return DDL_OK;
}

/* Check that -mode fits the comm. In a comm of only some of the job's ranks, a mode for more ranks
 * is ignored. */
static ddl_status check_mode(const ddl_comm *comm, bool *applies)
{
    char text[TEXT_MAX];
    const ddl__layout *layout = &comm->layout;
    *applies = layout->mode && count_declared(layout) == comm->size;
    if (!layout->mode || *applies || (!comm->is_world && count_declared(layout) > comm->size))
        return DDL_OK;
    return ddl__fail(DDL_EINVAL, "DDL_OPTIONS: -mode %s is for %d ranks, but the comm has %d",
                     describe_mode(layout, text), count_declared(layout), comm->size);
}

static void find_host_sizes(const ddl__topology *t, int *least, int *most)
{
    *least = t->size;
    *most = 0;
    for (int h = 0; h < t->groups[DDL__HOSTS]; h++) {
        int ranks = 0;
        for (int r = 0; r < t->size; r++)
            ranks += ddl__topology_group(t, DDL__HOSTS, r) == h;
        *least = ranks < *least ? ranks : *least;
        *most = ranks > *most ? ranks : *most;
    }
}

/* Log the layout and the resulting algorithm in one line. */
static void log_layout(const ddl_comm *comm, bool mode_applies, bool all_shared)
{
    char mode[TEXT_MAX], racks[TEXT_MAX] = "", nodes[TEXT_MAX] = "", why[TEXT_MAX + 16] = "";
    const ddl__topology *t = comm->topology;
    int least, most;
    find_host_sizes(t, &least, &most);
    if (t->groups[DDL__RACKS] > 1)
        snprintf(racks, sizeof racks, " in %d racks and %d aisles", t->groups[DDL__RACKS],
                 t->groups[DDL__AISLES]);
    if (t->node)
        snprintf(nodes, sizeof nodes, " on %d NUMA nodes", t->nodes);
    if (mode_applies)
        snprintf(why, sizeof why, " (-mode %s)", describe_mode(&comm->layout, mode));
    char mode_now = mode_applies ? comm->layout.mode : 0;
    bool has_wire = comm->config.wire > DDL_WIRE_F32 && t->groups[DDL__HOSTS] > 1;
    bool hierarchical = ddl__topology_is_hierarchical(t) || t->declared || t->node;
    const char *method = mode_now == 'r'   ? "one ring of all"
                         : mode_now == 't' ? "by trees"
                         : mode_now == 'h' ? "by halves"
                         : mode_now == 'p' ? "explored"
                         : hierarchical    ? "hierarchical"
                         : all_shared      ? "direct"
                                           : "by cost";
    ddl__log(DDL__INFO,
             "%s: comm of %d ranks, %d of them share memory; links: %s; hosts: %d of %d to %d "
             "ranks%s%s; large all-reduces: %s%s%s%s",
             comm->names[comm->rank], comm->size, comm->local_size,
             all_shared             ? "shared memory"
             : comm->local_size > 1 ? "shared memory and the network"
                                    : "the network",
             t->groups[DDL__HOSTS], least, most, nodes, racks, method, why,
             has_wire ? "; sums of f32 between hosts: " : "",
             has_wire ? ddl__wire_name(ddl__comm_wire(comm)) : "");
}

static bool same_hosts(const ddl__topology *a, const ddl__topology *b)
{
    for (int r = 0; r < a->size; r++)
        if (ddl__topology_group(a, DDL__HOSTS, r) != ddl__topology_group(b, DDL__HOSTS, r))
            return false;
    return true;
}

/* Apply the declared levels. Mode d uses them in any case, regardless of how the ranks are
 * connected. The other modes apply to the network between hosts: they use the declared levels above
 * the hosts if the proven topology has the same hosts; otherwise they use only the proven
 * topology. */
static ddl_status apply_declared(ddl_comm *comm, const ddl__sharing *sharing)
{
    ddl__topology *proven = NULL, *declared = NULL;
    ddl_status status = ddl__topology_declare(comm->layout.dimensions, &declared);
    if (status != DDL_OK || comm->layout.mode == 'd') {
        comm->topology = declared;
        return status;
    }
    status =
        ddl__topology_create(sharing, comm->size, comm->layout.topology, !comm->is_world, &proven);
    bool same = status == DDL_OK && same_hosts(proven, declared);
    if (same) {
        declared->declared = false;
        memcpy(declared->wires, proven->wires, sizeof proven->wires);
    }
    comm->topology = same ? declared : status == DDL_OK ? proven : NULL;
    ddl__topology_destroy(same ? proven : declared);
    return status;
}

/* Find the topology. Runs in the library's floating-point mode, because costs must be equal on all
 * members. */
static ddl_status find_topology(ddl_comm *comm, char mode, const ddl__sharing *sharing,
                                const ddl__location *locations)
{
    ddl__fp_mode caller = ddl__fp_enter();
    ddl_status status = mode && mode != 'r'
                            ? apply_declared(comm, sharing)
                            : ddl__topology_create(sharing, comm->size, comm->layout.topology,
                                                   !comm->is_world, &comm->topology);
    if (status == DDL_OK)
        status = ddl__topology_locate(comm->topology, locations);
    ddl__fp_leave(caller);
    return status;
}

/* Apply the mode, and the choices of $DDL_PLAN_FILE, which take precedence. */
static void apply_choices(const ddl_comm *comm, char mode)
{
    ddl__algorithm by = mode == 'r'   ? DDL__ALGORITHM_RING
                        : mode == 't' ? DDL__ALGORITHM_TREE
                        : mode == 'h' ? DDL__ALGORITHM_HALVING
                                      : DDL__ALGORITHM_NONE;
    const ddl__choices *choices = &comm->layout.choices;
    ddl__engine_set_choices(comm->engine, ddl__choices_are_none(choices) ? NULL : choices, by);
}

/* Return the size of a rank's ring. With two ranks, the ring of a core with a large second-level
 * cache stays in that cache, next to the data that the core reduces, and the peer reads the ring
 * from there. Otherwise the ring is longer, and the peer reads it from the cache that both cores
 * share, which is faster on processors with smaller second-level caches. */
uint64_t ddl__ring_bytes(const ddl__location *location, int size)
{
    return size == 2 && location->cache >= DDL__RING_CACHE ? DDL__RING_NEAR : DDL__RING;
}

/* Set the window so that plans fit the shortest ring. */
static void fit_rings(ddl_comm *comm, const ddl__location *locations)
{
    uint64_t least = DDL__RING;
    for (int i = 0; i < comm->size; i++) {
        uint64_t bytes = ddl__ring_bytes(&locations[i], comm->size);
        least = bytes < least ? bytes : least;
    }
    ddl__engine_set_window(comm->engine, (int64_t)least, least < DDL__RING);
}

ddl_status ddl__layout_apply(ddl_comm *comm, const ddl__sharing *sharing,
                             const ddl__location *locations)
{
    bool all_shared = ddl__all_share(sharing, comm->size);
    bool mode_applies;
    ddl_status status = check_mode(comm, &mode_applies);
    char mode = mode_applies ? comm->layout.mode : 0;
    if (status == DDL_OK)
        status = find_topology(comm, mode, sharing, locations);
    if (status != DDL_OK)
        return status;
    fit_rings(comm, locations);
    apply_choices(comm, mode);
    comm->explores = mode == 'p' && ddl__choices_are_none(&comm->layout.choices);
    if (mode != 'r') { /* mode r uses plans that ignore the topology */
        if (all_shared)
            ddl__engine_all_shared(comm->engine);
        ddl__engine_set_topology(comm->engine, comm->topology);
    }
    comm->never_packs =
        comm->topology->groups[DDL__HOSTS] > 1 && !ddl__engine_allow_packing(comm->engine);
    log_layout(comm, mode_applies, all_shared);
    ddl__comm_warn_unpacked(comm, comm->config.wire);
    return DDL_OK;
}
