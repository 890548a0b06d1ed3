/* topology.h - the levels of a machine: up to four nested partitions of a comm's ranks.
 *
 * PURE: no I/O, no clock, no threads, no getenv.
 *
 * Ranks make up hosts, hosts racks, racks aisles, and all aisles together the comm. Groups may be
 * of unequal sizes, and ranks of a group need not be neighbours in number. In an equal machine
 * there are X ranks in each host, Y hosts in each rack, Z racks in each aisle and W aisles.
 */
#ifndef DDL_TOPO_TOPOLOGY_H
#define DDL_TOPO_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    DDL__HOSTS,
    DDL__RACKS,
    DDL__AISLES,
    DDL__GROUPINGS, /* the fourth level, all ranks, is one group */
    DDL__DIMENSIONS
};

/* What joins the groups of a level: 0 where it is not known. */
typedef struct ddl__speed {
    double latency, bandwidth; /* seconds; bytes per second, each way */
} ddl__speed;

typedef struct ddl__topology {
    int size;
    int groups[DDL__GROUPINGS];       /* how many hosts, racks, aisles */
    bool declared;                    /* by a mode string; else hosts are proven to share memory */
    ddl__speed wires[DDL__GROUPINGS]; /* of hosts, racks, aisles */
    int machines;                     /* that the ranks run on; 0: not known */
    double oversubscription;          /* ranks for each core of the fullest machine; 0: not known */
    /* By rank: its NUMA node, those of all hosts numbered by their first ranks; NULL: no host has
       ranks on several nodes, or each has one alone. */
    int *node;
    int nodes;
    int group[]; /* [grouping * size + rank], numbered by their first ranks */
} ddl__topology;

/* Hosts from proof: shared[i * size + j] is not 0 when rank i has opened memory of rank j. Where
 * sharing is not mutual between all of those that are joined by it, each of them is a host of its
 * own. Racks and aisles from a description, as of $DDL_TOPOLOGY; NULL or "": one of each.
 *
 *   description = [ aisle { ";" aisle } ] [ "@" wires ]      in the order of their first ranks
 *   aisle       = racks { "," racks }
 *   racks       = hosts [ "x" number ]    so many hosts in a rack, so many such racks
 *   wires       = wire [ "," wire [ "," wire ] ]              of hosts, of racks, of aisles
 *   wire        = number ":" number       latency in us, bandwidth in Gbit/s
 *
 * "2,2" is two racks of two hosts; "4x8;4x8" two aisles of eight racks of four hosts; "@30:10" says
 * that hosts are joined by 10 Gbit/s with 30 us. DDL_EINVAL naming the description when it is none
 * or is not of as many hosts. When the ranks are part of what is described, which part is not
 * known: then more hosts count as no description. */
ddl_status ddl__topology_create(const unsigned char *shared, int size, const char *description,
                                bool is_part, ddl__topology **topology);

/* X x Y x Z x W ranks in the order of their numbers. */
ddl_status ddl__topology_declare(const int dimensions[DDL__DIMENSIONS], ddl__topology **topology);

/* Where a rank runs: equal machines are one. 0: not known. */
typedef struct ddl__location {
    uint64_t machine;
    uint64_t cores; /* of the machine, as far as its ranks may use them */
    uint64_t own;   /* on which this rank may run; ... */
    uint64_t mask;  /* ... those with the same number may run on the same ones, others on others */
    uint64_t node;  /* of the machine, + 1, on which all those lie; 0: on several */
} ddl__location;

/* Add what the ranks' locations tell, locations[rank]. A host of which some rank's node is not
 * known counts as one node. */
ddl_status ddl__topology_locate(ddl__topology *topology, const ddl__location *locations);

void ddl__topology_destroy(ddl__topology *topology);

static inline int ddl__topology_group(const ddl__topology *topology, int grouping, int rank)
{
    return topology->group[grouping * topology->size + rank];
}

/* Whether there are several levels: several hosts, and several ranks in some host or several hosts
 * in some of several racks. */
bool ddl__topology_is_hierarchical(const ddl__topology *topology);

#endif
