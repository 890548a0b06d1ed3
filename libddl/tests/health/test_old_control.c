/* SPDX-License-Identifier: Apache-2.0 */
/* A control connection of a failed attempt to create a comm is not used for the next attempt,
 * although it arrives first: when it ends, the comm continues. */
#include "base/clock.h"
#include "base/test_points.h"
#include "connect/wireup/wireup.h"
#include "net/socket.h"
#include "processes.h"

enum { RANKS = 2, TAG = 7, LIMIT_MS = 20000, LATE_MS = 200 };

static const double WATCHED_S = 0.5; /* the end of a control connection ends the comm in 0.1 s */

typedef struct shared {
    unsigned char addresses[RANKS][DDL_ADDRESS_MAX];
    size_t lengths[RANKS];
    atomic_int ready, parked;
} shared;

static atomic_bool dials_late; /* this process's control connection is late */

static ddl_status dial_late(ddl__test_point point, const void *subject)
{
    if (dials_late && point == DDL__AT_CONTROL)
        usleep(LATE_MS * 1000);
    return DDL_OK;
}

/* Return the id of the comm, computed as in comm.c. */
static ddl__digest comm_id(const ddl__address *addresses)
{
    ddl__digest id = {{0, 0}};
    uint64_t fields[] = {TAG, 0}; /* and the epoch */
    uint32_t number = 0;
    for (int i = 0; i < RANKS; i++)
        ddl__digest_add(&id, &addresses[i].endpoint, sizeof addresses[i].endpoint);
    ddl__digest_add(&id, fields, sizeof fields);
    ddl__digest_add(&id, &number, sizeof number);
    return id;
}

/* Leave a control connection of a failed attempt at rank 0. */
static int park_control(ddl_endpoint *endpoint, const ddl__address *addresses)
{
    struct sockaddr_storage to;
    bool handed;
    ddl__session session;
    const ddl__job *job = ddl__endpoint_job(endpoint);
    ddl__hello hello = ddl__endpoint_begin_hello(endpoint, DDL__CONN_CONTROL, 1, 0, RANKS);
    hello.endpoint = addresses[0].endpoint;
    hello.comm = comm_id(addresses);
    socklen_t length = ddl__address_ip(&addresses[0], 0, &to);
    int64_t deadline = ddl__deadline(LIMIT_MS);
    int fd = ddl__dial((struct sockaddr *)&to, length, deadline);
    CHECK(fd >= 0, "%s", strerror(errno));
    OK(ddl__handshake_start(job, fd, &hello, -1, deadline, &session));
    OK(ddl__handshake_finish(job, fd, deadline, &session, &handed));
    ddl__session_end(&session);
    return fd;
}

static int member(shared *s, int rank)
{
    int old = -1;
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    const void *bytes[RANKS];
    ddl__address addresses[RANKS];
    ddl__interface ips[RANKS][DDL__INTERFACES_MAX];
    ddl_endpoint_config setup = {.struct_size = sizeof setup, .sockets = 2}; /* with lanes */
    ddl_comm_config config = {
        .struct_size = sizeof config, .timeout_ms = LIMIT_MS, .tag = TAG, .links = DDL_LINK_TCP};
    OK(ddl_endpoint_create(&setup, &endpoint));
    OK(ddl_endpoint_address(endpoint, s->addresses[rank], DDL_ADDRESS_MAX, &s->lengths[rank]));
    atomic_fetch_add(&s->ready, 1);
    for (double end = seconds() + 30; atomic_load(&s->ready) < RANKS; usleep(200))
        CHECK(seconds() < end, "not all come");
    for (int i = 0; i < RANKS; i++) {
        bytes[i] = s->addresses[i];
        OK(ddl__address_decode(&addresses[i], ips[i], bytes[i], s->lengths[i]));
    }
    dials_late = rank == 1;
    if (rank == 1) {
        old = park_control(endpoint, addresses);
        atomic_store(&s->parked, 1);
    }
    for (double end = seconds() + 30; !atomic_load(&s->parked); usleep(200))
        CHECK(seconds() < end, "rank 1 does not come");
    OK(ddl_comm_create(endpoint, bytes, s->lengths, rank, RANKS, &config, &comm));
    OK(ddl_barrier(comm, NULL, NULL));
    if (old >= 0)
        close(old);
    for (double end = seconds() + WATCHED_S; seconds() < end; usleep(1000))
        OK(ddl_comm_status(comm));
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return 0;
}

int main(void)
{
    pid_t pids[RANKS];
    setenv("DDL_LOG", "off", 0);
    ddl__test_hook = dial_late;
    shared *s = map_shared(sizeof *s);
    for (int rank = 0; rank < RANKS; rank++)
        if (!(pids[rank] = fork()))
            _exit(member(s, rank));
    await_exits(pids, RANKS);
    munmap(s, sizeof *s);
}
