/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the comm of all ranks of a job. The ranks first exchange addresses at a rendezvous. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/environment.h"
#include "comm/launcher.h"
#include "connect/rendezvous/rendezvous.h"

/* Return the time after which a warning is logged. Invalid settings are reported not by this
 * function but by the creation of the comm, so that all ranks fail. */
static int64_t stall_warn_ms(const ddl_comm_config *config)
{
    ddl_comm_config limits = *config;
    return ddl__environment_limits(&limits) == DDL_OK ? limits.stall_warn_ms : -1;
}

static ddl_status create_comm(const ddl__rendezvous_plan *plan, const ddl_comm_config *config,
                              ddl_comm **comm)
{
    size_t size = (size_t)plan->size;
    const void **addresses = calloc(size, sizeof *addresses);
    size_t *lengths = calloc(size, sizeof *lengths);
    ddl_status status = addresses && lengths
                            ? DDL_OK
                            : ddl__fail(DDL_ENOMEM, "out of memory for %d ranks", plan->size);
    const unsigned char *at = plan->list;
    size_t left = plan->list_bytes;
    for (size_t i = 0; status == DDL_OK && i < size; i++)
        if (!(addresses[i] = ddl__rendezvous_list_next(&at, &left, &lengths[i])))
            status = ddl__fail(DDL_EREFUSED,
                               "the rendezvous gave rank %d the addresses of %zu "
                               "ranks, not of %d",
                               plan->rank, i, plan->size);
    if (status == DDL_OK)
        status = ddl__comm_create(plan->endpoint, addresses, lengths, plan->rank, plan->size,
                                  config, true, &(ddl__until){.deadline = plan->deadline}, comm);
    free(addresses);
    free(lengths);
    return status;
}

/* Send "RANK WHAT" to the unix socket of the launcher that has started this rank on this host.
 * `name` is the socket's abstract name; NULL: no launcher. Does not block, and ignores errors.
 * ddl_launch/rank/reports.py lists the values of `what`. */
static void report_to_launcher(const char *name, int rank, const char *what)
{
    char text[64];
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = name ? strlen(name) : 0;
    if (!length || length >= sizeof to.sun_path)
        return;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    memcpy(to.sun_path + 1, name, length);
    int n = snprintf(text, sizeof text, "%d %s", rank, what);
    (void)!sendto(fd, text, (size_t)n, MSG_NOSIGNAL, (struct sockaddr *)&to,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length));
    close(fd);
}

/* Return $DDL_LAUNCHER if this rendezvous is the one that the launcher has set up for its ranks,
 * else NULL. */
static const char *find_launcher(const char *url, int rank, int size)
{
    const char *name = ddl__environment_text("DDL_LAUNCHER");
    ddl__world world;
    if (!name || !url || ddl__launcher_find(&world) != DDL_OK)
        return NULL;
    return !strcmp(url, world.url) && rank == world.rank && size == world.size ? name : NULL;
}

/* Find the world in which this process was started, and give the endpoint its secret. */
static ddl_status join_launched(ddl_endpoint *endpoint, ddl__world *world)
{
    ddl_status status = ddl__launcher_find(world);
    if (status == DDL_OK && *world->job)
        status = ddl__endpoint_take_secret(endpoint, world->job);
    if (status == DDL_OK)
        ddl__log(DDL__INFO, "rank %d of %d, launcher: %s%s%s", world->rank, world->size,
                 world->launcher, *world->url ? " at " : "", world->url);
    return status;
}

ddl_status ddl__comm_create_world(ddl_endpoint *endpoint, const char *url, int rank, int size,
                                  const ddl_comm_config *config, ddl_comm **comm)
{
    int64_t deadline = ddl__deadline(ddl__comm_creation_ms(config));
    ddl_status status = DDL_OK;
    ddl__world world;
    if (!url && rank == -1 && size == 0) {
        status = join_launched(endpoint, &world);
        url = *world.url ? world.url : NULL;
        rank = world.rank;
        size = world.size;
    }
    if (status != DDL_OK)
        return status;
    if (size < 1 || rank < 0 || rank >= size)
        return ddl__fail(
            DDL_EINVAL,
            "rank is %d and size is %d; size must be at least 1, and rank from 0 to size - 1", rank,
            size);
    if (!url && size > 1)
        return ddl__fail(DDL_EINVAL, "url is NULL; must be given because size is %d", size);

    ddl__rendezvous_plan plan = {.endpoint = endpoint,
                                 .rank = rank,
                                 .size = size,
                                 .begun = ddl__now(),
                                 .deadline = deadline,
                                 .warn_at = ddl__deadline(stall_warn_ms(config))};
    const char *launcher = find_launcher(url, rank, size);
    report_to_launcher(launcher, rank, "joining");
    status = ddl__rendezvous_run(&plan, url);
    if (status == DDL_OK)
        status = create_comm(&plan, config, comm);
    report_to_launcher(launcher, rank, status == DDL_OK ? "joined" : "gave up");
    free(plan.list);
    return status;
}
