/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/location.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/digest.h"

enum { CORES = 4096, WORDS = CORES / 64, NODES = 256, LINE = 4096, PATH = 2 * LINE };

typedef struct cores {
    uint64_t bits[WORDS];
} cores;

/* Find the first line of the file with this prefix, and copy the rest of the line. Return false if
 * there is none. */
static bool read_line(const char *root, const char *path, const char *begins, char text[LINE])
{
    char name[PATH], line[LINE];
    bool found = false;
    snprintf(name, sizeof name, "%s%s", root, path);
    FILE *file = fopen(name, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        found = strncmp(line, begins, strlen(begins)) == 0;
        if (found)
            strcpy(text, line + strlen(begins));
    }
    if (file)
        fclose(file);
    text[found ? strcspn(text, "\n") : 0] = 0;
    return found;
}

/* Parse a list such as "0-3,8-11". Returns false if it is invalid or has a core number of CORES or
 * more. */
static bool parse_core_list(const char *text, cores *some)
{
    memset(some, 0, sizeof *some);
    for (char *end;; text = end + 1) {
        long first = strtol(text, &end, 10), last = first;
        if (end == text)
            return false;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
        }
        if (end == text || first < 0 || last < first || last >= CORES)
            return false;
        for (long core = first; core <= last; core++)
            some->bits[core / 64] |= (uint64_t)1 << core % 64;
        if (*end != ',')
            return true;
    }
}

static uint64_t cores_count(const cores *some)
{
    uint64_t n = 0;
    for (int w = 0; w < WORDS; w++)
        n += (uint64_t)__builtin_popcountll(some->bits[w]);
    return n;
}

static bool cores_are_subset(const cores *some, const cores *all)
{
    for (int w = 0; w < WORDS; w++)
        if (some->bits[w] & ~all->bits[w])
            return false;
    return true;
}

/* Return the id of the machine: its kernel's boot id, which all network namespaces and containers
 * share. If it is unknown, every process counts as a separate machine. */
static uint64_t find_machine(const char *root)
{
    char id[LINE];
    if (!read_line(root, "/proc/sys/kernel/random/boot_id", "", id))
        snprintf(id, sizeof id, "%lld", (long long)getpid());
    ddl__digest digest = {{0, 0}};
    ddl__digest_add(&digest, id, strlen(id));
    return digest.words[0];
}

/* Return 1 + the number of the NUMA node that has all cores on which this process may run; 0 if
 * there is no such node. */
static uint64_t find_node(const char *root, const cores *own)
{
    for (int node = 0; node < NODES; node++) {
        char path[64], text[LINE];
        cores its;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        if (read_line(root, path, "", text) && parse_core_list(text, &its) &&
            cores_are_subset(own, &its))
            return (uint64_t)node + 1;
    }
    return 0;
}

/* Return the size in bytes of the second-level cache of the first of these cores. */
static uint64_t find_cache(const char *root, const cores *own)
{
    for (int core = 0; core < CORES; core++) {
        if (!(own->bits[core / 64] >> core % 64 & 1))
            continue;
        char path[80], text[LINE], unit = 0; /* as in "2048K" */
        unsigned long long size = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index2/size", core);
        bool found = read_line(root, path, "", text) && sscanf(text, "%llu%c", &size, &unit) >= 1;
        return !found ? 0 : unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
    }
    return 0;
}

/* Return the CPU quota of this process's control group and its parents, in cores, rounded up;
 * UINT64_MAX if there is no limit. */
static uint64_t find_quota(const char *root)
{
    char group[LINE], path[2 * LINE], text[LINE];
    uint64_t least = UINT64_MAX;
    if (!read_line(root, "/proc/self/cgroup", "0::", group))
        return least;
    for (;;) {
        long long quota, period;
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", strcmp(group, "/") ? group : "");
        if (read_line(root, path, "", text) && sscanf(text, "%lld %lld", &quota, &period) == 2 &&
            quota > 0 && period > 0) {
            uint64_t whole = (uint64_t)((quota + period - 1) / period);
            least = whole < least ? whole : least;
        }
        char *last = strrchr(group, '/');
        if (!last)
            return least;
        *last = 0;
    }
}

ddl__location ddl__location_find(const char *root)
{
    char text[LINE];
    cores online, own;
    ddl__location location = {.machine = find_machine(root)};
    uint64_t quota = find_quota(root);
    if (read_line(root, "/sys/devices/system/cpu/online", "", text) &&
        parse_core_list(text, &online))
        location.cores = cores_count(&online) < quota ? cores_count(&online) : quota;
    if (!read_line(root, "/proc/self/status", "Cpus_allowed_list:\t", text) ||
        !parse_core_list(text, &own))
        return location;
    location.own = cores_count(&own);
    ddl__digest digest = {{0, 0}};
    ddl__digest_add(&digest, &own, sizeof own);
    location.mask = digest.words[0];
    location.node = find_node(root, &own);
    location.cache = find_cache(root, &own);
    return location;
}

ddl__location ddl__location_own(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static ddl__location location;
    static cores found_with;
    static pid_t found_by;
    cores now = {{0}};
    bool is_known = sched_getaffinity(getpid(), sizeof now, (cpu_set_t *)&now) == 0;
    pthread_mutex_lock(&lock);
    if (!is_known || found_by != getpid() || memcmp(&now, &found_with, sizeof now) != 0) {
        location = ddl__location_find("");
        found_with = now;
        found_by = getpid();
    }
    ddl__location own = location;
    pthread_mutex_unlock(&lock);
    return own;
}
