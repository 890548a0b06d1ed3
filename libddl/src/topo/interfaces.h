/* interfaces.h - which network interfaces to use, and which of ours with which of a peer's.
 *
 * PURE: no I/O, no clock, no threads, no getenv.
 */
#ifndef DDL_TOPO_INTERFACES_H
#define DDL_TOPO_INTERFACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { DDL__INTERFACES_MAX = 16, DDL__INTERFACE_NAME = 16 };

/* One address of an interface. */
typedef struct ddl__interface {
    uint8_t family; /* 4 or 6 */
    uint8_t prefix; /* bits of the address that are its network's */
    bool loopback;
    char name[DDL__INTERFACE_NAME];
    uint32_t speed; /* Mbit/s; 0: not known */
    uint8_t bytes[16];
} ddl__interface;

/* Keep of *n addresses those to use, at most DDL__INTERFACES_MAX and one of each family for each
 * interface, those first that should be tried first.
 *
 *   filter = item { "," item }          item = [ "^" ] ( name | address [ "/" bits ] )
 *
 * A name means all interfaces whose names begin so, an address the network it is in. Used is what
 * an item names and no "^" item does; without items other than "^" ones, or with "" or NULL, all
 * but the bridges of containers and virtual machines, if there are others. DDL_EINVAL for an item
 * that is none, and, with a list of what there is, where nothing is left. */
ddl_status ddl__interfaces_select(ddl__interface *all, unsigned *n, const char *filter);

/* How two addresses are joined: by which of ours (-1: by whichever the route takes) to which of
 * theirs. */
typedef struct ddl__path {
    int8_t ours, theirs;
} ddl__path;

/* Those to use at once, and behind them those to try when the first one does not answer. */
typedef struct ddl__paths {
    unsigned n, at_once;
    ddl__path path[2 * DDL__INTERFACES_MAX];
} ddl__paths;

typedef enum ddl__where { DDL__WHERE_UNKNOWN, DDL__SAME_HOST, DDL__OTHER_HOST } ddl__where;

/* route[j] is the one of ours by which the system would go to theirs[j], or -1.
 *
 * Interfaces in one network are joined pair by pair; where there are none, those between which
 * there is a route, each at most once. Loopback leads to no other host, nor does an address that
 * both hosts have. An interface much slower than the fastest, where speeds are known, is not worth
 * its share. On one host one path is as good as several. */
ddl__paths ddl__paths_between(const ddl__interface *ours, unsigned n_ours,
                              const ddl__interface *theirs, unsigned n_theirs, ddl__where where,
                              const int8_t *route);

#endif
