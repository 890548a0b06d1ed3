/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/endpoint/endpoint.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/log.h"
#include "connect/addresses/discover.h"
#include "connect/addresses/neighbours.h"

enum {
    RESERVE = 64,      /* number of descriptors to leave to the program */
    LARGE = 64 * 1024, /* if the limit is this much above the need, open ones are not counted */
    SHARING = 1,       /* descriptors for a peer over shared memory: the control connection */
    PLAIN = 3,         /* for a peer over TCP: two links and the control connection */
    UNOPENED = 1,      /* for a peer over TCP with unopened links: the control connection */
    WITH_LANES = 5     /* for a peer over TCP, in addition to its lanes: PLAIN and two epoll sets */
};

static bool looks_local(const ddl__address *own, const ddl__address *other, uint32_t kinds)
{
    return kinds & (DDL_LINK_SHM | DDL_LINK_INPROC) && own->network == other->network &&
           !strcmp(own->host, other->host);
}

static uint64_t count_tcp_sockets(const ddl_endpoint *endpoint, const ddl__address *other,
                                  bool unopened)
{
    const ddl__address *own = ddl__endpoint_address(endpoint);
    unsigned lanes = ddl__discover_paths(own, other).at_once * ddl__endpoint_sockets(endpoint);
    return lanes > 1 ? 2 * lanes + WITH_LANES : unopened ? UNOPENED : PLAIN;
}

/* Return an upper bound on the descriptors that a comm of these members needs on this rank: with
 * all links open, or, with `unopened`, without the links that a large comm opens on first use. */
static uint64_t count_needed(const ddl_endpoint *endpoint, const ddl__address *addresses, int rank,
                             int size, uint32_t kinds, bool unopened)
{
    uint64_t needed = 0;
    for (int i = 0; i < size; i++) {
        bool early = ddl__are_connected_early(addresses, size, kinds, rank, i);
        if (i == rank || (unopened && !early))
            continue;
        needed += looks_local(&addresses[rank], &addresses[i], kinds)
                      ? (early ? SHARING : 0)
                      : count_tcp_sockets(endpoint, &addresses[i], unopened);
    }
    return needed;
}

/* Return the number of open descriptors, or 0 if it is unknown. Linux 6.2 and later report it as
 * the size of the folder /proc/self/fd. Listing the folder would take most of the time of a
 * creation. */
static uint64_t count_open_descriptors(void)
{
    uint64_t n = 0;
    struct stat folder;
    if (!stat("/proc/self/fd", &folder) && folder.st_size > 0)
        return (uint64_t)folder.st_size;
    DIR *list = opendir("/proc/self/fd");
    if (!list)
        return 0;
    while (readdir(list))
        n++;
    closedir(list);
    return n - 3; /* ".", "..", and the directory's own descriptor */
}

static void raise_limit(struct rlimit limit, uint64_t want, int size)
{
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = want < limit.rlim_max ? want : limit.rlim_max;
    if (limit.rlim_cur == before)
        return;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        ddl__log(DDL__WARN, "cannot raise ulimit -n from %llu to %llu for a comm of %d members: %s",
                 (unsigned long long)before, (unsigned long long)limit.rlim_cur, size,
                 strerror(errno));
    else
        ddl__log(DDL__INFO, "raised ulimit -n from %llu to %llu for a comm of %d members",
                 (unsigned long long)before, (unsigned long long)limit.rlim_cur, size);
}

void ddl__descriptors_provide_clients(int size)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= LARGE + (uint64_t)size)
        return;
    uint64_t want = count_open_descriptors() + (uint64_t)size + RESERVE;
    if (limit.rlim_cur < want)
        raise_limit(limit, want, size);
}

ddl_status ddl__descriptors_provide(const ddl_endpoint *endpoint, const ddl__address *addresses,
                                    int rank, int size, uint32_t kinds)
{
    uint64_t most = count_needed(endpoint, addresses, rank, size, kinds, false);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= LARGE + most)
        return DDL_OK;
    bool unopened = ddl__first_use_is_for(size);
    uint64_t needed = count_needed(endpoint, addresses, rank, size, kinds, unopened);
    uint64_t open = count_open_descriptors(), least = open + needed, want = open + most + RESERVE;
    if (limit.rlim_cur >= want)
        return DDL_OK;
    if (limit.rlim_max < least)
        return ddl__fail(DDL_ESYSTEM,
                         "a comm of %d members needs %llu descriptors, %llu are open, and "
                         "the limit of this process is %llu: raise the hard limit (ulimit -Hn, "
                         "LimitNOFILE=, docker run --ulimit nofile=) to %llu",
                         size, (unsigned long long)needed, (unsigned long long)open,
                         (unsigned long long)limit.rlim_max, (unsigned long long)want);
    raise_limit(limit, want, size);
    return DDL_OK;
}
