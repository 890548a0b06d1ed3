/* SPDX-License-Identifier: Apache-2.0 */
/* topology.h - the levels of a machine: up to four nested partitions of a comm's ranks.
 *
 * PURE: no I/O, no clock, no threads, no getenv.
 *
 * A host has ranks, a rack has hosts, an aisle has racks, and the comm has aisles. Groups of a
 * level may have different sizes, and the ranks of a group need not have consecutive numbers. If
 * all groups of a level have the same size, there are X ranks in each host, Y hosts in each rack, Z
 * racks in each aisle and W aisles.
 */
#ifndef DDL_TOPO_TOPOLOGY_H
#define DDL_TOPO_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"

enum {
    DDL__HOSTS,
    DDL__RACKS,
    DDL__AISLES,
    DDL__GROUPINGS, /* the fourth level, all ranks, is one group */
    DDL__DIMENSIONS
};

/* The wires between the groups of a level. 0: unknown. */
typedef struct ddl__speed {
    double latency, bandwidth; /* in seconds; in bytes per second, each way */
} ddl__speed;

typedef struct ddl__topology {
    int size;
    int groups[DDL__GROUPINGS]; /* numbers of hosts, racks, aisles */
    /* the hosts are declared by a mode string; otherwise each host is proven to share memory */
    bool declared;
    ddl__speed wires[DDL__GROUPINGS]; /* between hosts, racks, aisles */
    int machines;                     /* machines on which the ranks run; 0: unknown */
    double oversubscription;          /* ranks per core on the fullest machine; 0: unknown */
    /* By rank: its NUMA node. The nodes of all hosts are numbered by their first ranks. NULL: no
     * host has ranks on several nodes, or no node has several ranks. */
    int *node;
    int nodes;
    int group[]; /* [grouping * size + rank]; groups are numbered by their first ranks */
} ddl__topology;

/* The ranks with which a rank shares memory, including itself, as proven for each pair: a digest of
 * these ranks, and their number. */
typedef struct ddl__sharing {
    ddl__digest set;
    uint64_t n;
} ddl__sharing;

/* Return the sharing of `rank`. shared[i] is not 0 if it has opened memory of rank i. */
ddl__sharing ddl__sharing_of(const unsigned char *shared, int rank, int size);

/* Create a topology. Hosts are proven by sharing[rank]: if all members of a set have proven this
 * set, they are a host. Every other rank is a host by itself. Racks and aisles come from a
 * description, such as $DDL_TOPOLOGY; NULL or "" is one of each.
 *
 *   description = [ aisle { ";" aisle } ] [ "@" wires ]      in the order of their first ranks
 *   aisle       = racks { "," racks }
 *   racks       = hosts [ "x" number ]    hosts in a rack, and the number of such racks
 *   wires       = wire [ "," wire [ "," wire ] ]              of hosts, of racks, of aisles
 *   wire        = number ":" number       latency in us, bandwidth in Gbit/s
 *
 * "2,2" is two racks of two hosts; "4x8;4x8" is two aisles of eight racks of four hosts; "@30:10"
 * sets the wires between hosts to 30 us and 10 Gbit/s. The message of DDL_EINVAL names the
 * description if it is malformed or has another number of hosts. With `is_part`, the ranks are an
 * unknown part of the described ranks: a description of more hosts is then ignored. */
ddl_status ddl__topology_create(const ddl__sharing *sharing, int size, const char *description,
                                bool is_part, ddl__topology **topology);

/* Create a topology of X x Y x Z x W ranks in the order of their numbers. */
ddl_status ddl__topology_declare(const int dimensions[DDL__DIMENSIONS], ddl__topology **topology);

/* The location of a rank. 0: unknown. */
typedef struct ddl__location {
    uint64_t machine; /* the same number for ranks of the same machine */
    uint64_t cores;   /* cores of the machine that its ranks may use */
    uint64_t own;     /* cores on which this rank may run */
    uint64_t mask;    /* the same number for ranks that may run on the same cores */
    uint64_t node;    /* 1 + the NUMA node that has all those cores; 0: several nodes */
    uint64_t cache;   /* bytes of a second-level cache that the rank's ring should fit */
} ddl__location;

/* Add machines, oversubscription and nodes from the ranks' locations, locations[rank]. A host
 * counts as one node if the node of any of its ranks is unknown. */
ddl_status ddl__topology_locate(ddl__topology *topology, const ddl__location *locations);

void ddl__topology_destroy(ddl__topology *topology);

static inline int ddl__topology_group(const ddl__topology *topology, int grouping, int rank)
{
    return topology->group[grouping * topology->size + rank];
}

/* Return true if there are several levels: several hosts, some with several ranks; or several
 * racks, some with several hosts; or several aisles, some with several racks. */
bool ddl__topology_is_hierarchical(const ddl__topology *topology);

/* Return true if every pair shares memory. */
bool ddl__all_share(const ddl__sharing *sharing, int size);

#endif
