/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on two hosts with separate network interfaces: processes in network namespaces, connected
 * by wires that end with them. Needs root, ip and tc; skipped without. */
#include <ifaddrs.h>
#include <linux/if_link.h>
#include <net/if.h>

#include "processes.h"

enum { HOSTS = 2, NICS = 2, SKIPPED = 77 };

typedef struct lab {
    const char *what;
    void (*run)(ddl_comm *comm, int host);
    double limit;
    const char *url, *interfaces; /* interfaces: as DDL_INTERFACES, or NULL */
    /* Commands of each host for its interfaces, after they exist. */
    const char *setup_of_first, *setup_of_second;
} lab;

static void must(const char *command)
{
    CHECK(!system(command), "%s", command);
}

/* Return the bytes that were sent by an interface. */
static uint64_t sent_by(const char *name)
{
    struct ifaddrs *all;
    uint64_t sent = 0;
    CHECK(!getifaddrs(&all), "no interfaces");
    for (struct ifaddrs *i = all; i; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_PACKET && !strcmp(i->ifa_name, name))
            sent = ((struct rtnl_link_stats *)i->ifa_data)->tx_bytes;
    freeifaddrs(all);
    return sent;
}

/* Wait for the carriers. A wire has a carrier if both its ends are up; a wire whose other end is
 * down never gets one, and Linux reports a carrier up to a second late. */
static void wait_for_carriers(void)
{
    bool all_there = false;
    for (double end = seconds() + 10; !all_there && seconds() < end; usleep(1000)) {
        struct ifaddrs *all;
        CHECK(!getifaddrs(&all), "no interfaces");
        all_there = true;
        for (struct ifaddrs *i = all; i; i = i->ifa_next)
            if (i->ifa_flags & IFF_UP &&
                !(i->ifa_flags & IFF_RUNNING) != !strcmp(i->ifa_name, "d0"))
                all_there = false;
        freeifaddrs(all);
    }
    CHECK(all_there, "the carriers are not as they should be");
}

static void reduce(ddl_comm *comm, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i % 1000);
    OK(ddl_allreduce(comm, NULL, x, n, DDL_F32, DDL_SUM, NULL, NULL));
    for (int64_t i = 0; i < n; i++)
        CHECK(x[i] == (float)(i % 1000 * HOSTS), "%lld: %g", (long long)i, (double)x[i]);
    free(x);
}

/* ---------------------------------------------------------------------------------------- hosts */

typedef struct host {
    pid_t pid;
    int ready[2], go[2];
} host;

/* Report that the namespace exists, wait for the wires, set them up, and run a rank. */
static int be_host(const lab *l, host *self, int rank)
{
    char byte = 0;
    if (unshare(CLONE_NEWNET))
        return SKIPPED;
    CHECK(write(self->ready[1], &byte, 1) == 1 && read(self->go[0], &byte, 1) == 1, "the parent");
    must("ip link set lo up");
    must(rank ? l->setup_of_second : l->setup_of_first);
    wait_for_carriers();
    if (l->interfaces)
        setenv("DDL_INTERFACES", l->interfaces, 1);
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_rendezvous(endpoint, l->url, rank, HOSTS, &config, &comm));
    l->run(comm, rank);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return 0;
}

static void join(const host *hosts)
{
    for (int nic = 0; nic < NICS; nic++) {
        char command[200];
        snprintf(command, sizeof command,
                 "ip link add name eth%d netns %d type veth peer name eth%d netns %d", nic,
                 (int)hosts[0].pid, nic, (int)hosts[1].pid);
        must(command);
    }
}

static void run_lab(const lab *l)
{
    host hosts[HOSTS];
    char byte = 0;
    int status[HOSTS];
    fflush(NULL);
    for (int rank = 0; rank < HOSTS; rank++) {
        host *h = &hosts[rank];
        CHECK(!pipe(h->ready) && !pipe(h->go) && (h->pid = fork()) >= 0, "no process");
        if (!h->pid)
            _exit(be_host(l, h, rank));
        close(h->ready[1]);
    }
    for (int rank = 0; rank < HOSTS; rank++)
        if (read(hosts[rank].ready[0], &byte, 1) != 1) {
            printf("no network namespaces here\n");
            exit(SKIPPED);
        }
    join(hosts);
    for (int rank = 0; rank < HOSTS; rank++)
        CHECK(write(hosts[rank].go[1], &byte, 1) == 1, "a host");
    double end = seconds() + l->limit;
    for (int rank = 0; rank < HOSTS; rank++) {
        while (!waitpid(hosts[rank].pid, &status[rank], WNOHANG) && seconds() < end)
            usleep(5000);
        if (seconds() >= end)
            for (int r = rank; r < HOSTS; r++)
                kill(hosts[r].pid, SIGKILL);
        CHECK(seconds() < end, "%s: host %d hangs", l->what, rank);
        CHECK(WIFEXITED(status[rank]) && WEXITSTATUS(status[rank]) == 0, "%s: host %d ended so: %x",
              l->what, rank, (unsigned)status[rank]);
        close(hosts[rank].ready[0]);
        close(hosts[rank].go[0]);
        close(hosts[rank].go[1]);
    }
}

/* ---------------------------------------------------------------------------------------- cases */

enum { MANY = 4 << 20, MANY_BYTES = 4 * MANY };

/* Both interfaces carry a good part of the data. */
static void use_both(ddl_comm *comm, int rank)
{
    uint64_t before[NICS] = {sent_by("eth0"), sent_by("eth1")};
    reduce(comm, MANY);
    uint64_t by[NICS] = {sent_by("eth0") - before[0], sent_by("eth1") - before[1]};
    OK(ddl_barrier(comm, NULL, NULL));
    CHECK(by[0] > MANY_BYTES / 5 && by[1] > MANY_BYTES / 5, "host %d sent %ju and %ju bytes", rank,
          (uintmax_t)by[0], (uintmax_t)by[1]);
}

static void use_second(ddl_comm *comm, int rank)
{
    uint64_t before[NICS] = {sent_by("eth0"), sent_by("eth1")};
    reduce(comm, MANY);
    uint64_t by[NICS] = {sent_by("eth0") - before[0], sent_by("eth1") - before[1]};
    OK(ddl_barrier(comm, NULL, NULL));
    CHECK(by[0] < MANY_BYTES / 100 && by[1] > MANY_BYTES / 2, "host %d sent %ju and %ju bytes",
          rank, (uintmax_t)by[0], (uintmax_t)by[1]);
}

static void just_work(ddl_comm *comm, int rank)
{
    for (int64_t n = 1; n <= MANY; n *= 16)
        reduce(comm, n);
    OK(ddl_barrier(comm, NULL, NULL));
}

/* Only connect, if only the time until the hosts are connected matters. */
static void just_connect(ddl_comm *comm, int rank)
{
    reduce(comm, 1000);
    OK(ddl_barrier(comm, NULL, NULL));
}

/* Later creations do not retry paths that lead nowhere. */
static void create_more(ddl_comm *comm, int rank)
{
    reduce(comm, 1000);
    double begun = seconds();
    for (int i = 0; i < 5; i++) {
        ddl_comm *more;
        OK(ddl_comm_duplicate(comm, NULL, &more));
        reduce(more, 1000);
        ddl_comm_destroy(more);
    }
    CHECK(seconds() - begun < 1, "five more comms after %g s", seconds() - begun);
}

/* The second wire fails silently while the first one works: both hosts learn which one failed. */
static void lose_second(ddl_comm *comm, int rank)
{
    reduce(comm, MANY);
    if (rank == 1)
        must("ip link set eth1 down");
    static float x[MANY];
    ddl_status status = DDL_OK;
    double end = seconds() + 60;
    while (status == DDL_OK && seconds() < end)
        status = ddl_allreduce(comm, NULL, x, MANY, DDL_F32, DDL_SUM, NULL, NULL);
    char peer[16];
    snprintf(peer, sizeof peer, "rank %d", !rank);
    REFUSED(status, DDL_EPEER, "eth1 10.78.0.");
    CHECK(strstr(ddl_last_error(), peer), "host %d: %s", rank, ddl_last_error());
}

#define UP        "ip link set eth0 up && ip link set eth1 up && "
#define SLOW(nic) " && tc qdisc add dev " nic " root tbf rate 400mbit burst 128kb latency 50ms"
#define NO_CARRIER(own, other)                                                                     \
    " && ip link add d0 type veth peer name d1 && ip link set d0 up && ip addr add " own           \
    "/24 dev d0 && ip neigh add " other " lladdr 02:00:00:00:00:99 dev d0 nud permanent"
#define BOTH_SLOW SLOW("eth0") SLOW("eth1")
#define ALONE(name, ip)                                                                            \
    " && ip link add " name " type veth peer name _" name " && ip link set " name                  \
    " up && ip link set _" name " up && ip addr add " ip "/24 dev " name

static const lab LABS[] = {
    {"two networks", use_both, 30, "tcp://10.77.0.1:7000", NULL,
     UP "ip addr add 10.77.0.1/24 dev eth0 && ip addr add 10.78.0.1/24 dev eth1" BOTH_SLOW,
     UP "ip addr add 10.77.0.2/24 dev eth0 && ip addr add 10.78.0.2/24 dev eth1" BOTH_SLOW},
    {"one of two networks", use_second, 30, "tcp://10.77.0.1:7000", "10.78.0.0/16",
     UP "ip addr add 10.77.0.1/24 dev eth0 && ip addr add 10.78.0.1/24 dev eth1",
     UP "ip addr add 10.77.0.2/24 dev eth0 && ip addr add 10.78.0.2/24 dev eth1"},
    {"different subnets", just_work, 30, "tcp://10.1.0.1:7000", NULL,
     UP "ip addr add 10.1.0.1/24 dev eth0 && ip route add 10.2.0.0/24 dev eth0",
     UP "ip addr add 10.2.0.1/24 dev eth0 && ip route add 10.1.0.0/24 dev eth0"},
    {"IPv6 alone", just_work, 30, "tcp://[fd00:77::1]:7000", NULL,
     UP "ip addr add fd00:77::1/64 dev eth0 nodad", UP "ip addr add fd00:77::2/64 dev eth0 nodad"},
    {"one host has both families, the other IPv6 on that interface", use_both, 30,
     "tcp://10.77.0.1:7000", NULL,
     UP "ip addr add 10.77.0.1/24 dev eth0 && ip addr add fd00:78::1/64 dev eth1 nodad" BOTH_SLOW,
     UP "ip addr add 10.77.0.2/24 dev eth0 && ip addr add fd00:78::2/64 dev eth1 nodad" BOTH_SLOW},
    {"both have an interface without carrier, for which nobody waits 5 s", just_connect, 4.5,
     "tcp://10.77.0.1:7000", NULL,
     UP "ip addr add 10.77.0.1/24 dev eth0" NO_CARRIER("10.76.0.1", "10.76.0.2"),
     UP "ip addr add 10.77.0.2/24 dev eth0" NO_CARRIER("10.76.0.2", "10.76.0.1")},
    {"each host has networks of its own with the number of the other's", create_more, 4.5,
     "tcp://10.77.0.1:7000", NULL,
     UP "ip addr add 10.77.0.1/24 dev eth0" ALONE("aa0", "10.60.0.1") ALONE("tap0", "10.61.0.1")
         ALONE("usb0", "169.254.0.1"),
     UP "ip addr add 10.77.0.2/24 dev eth0" ALONE("aa0", "10.60.0.2") ALONE("tap0", "10.61.0.2")
         ALONE("usb0", "169.254.0.2")},
    {"each host has an address on lo, to which the other has a route", just_work, 30,
     "tcp://10.99.0.1:7000", "lo",
     UP "ip addr add 10.77.0.1/24 dev eth0 && ip addr add 10.99.0.1/32 dev lo"
        " && ip route add 10.99.0.2 via 10.77.0.2",
     UP "ip addr add 10.77.0.2/24 dev eth0 && ip addr add 10.99.0.2/32 dev lo"
        " && ip route add 10.99.0.1 via 10.77.0.1"},
    {"the hosts share the network of an interface's second address", just_work, 30,
     "tcp://10.77.0.1:7000", NULL,
     UP "ip addr add 192.168.5.1/24 dev eth0 && ip addr add 10.77.0.1/24 dev eth0",
     UP "ip addr add 192.168.6.1/24 dev eth0 && ip addr add 10.77.0.2/24 dev eth0"},
    {"one network leads nowhere, which is waited for once", create_more, 4.5,
     "tcp://10.78.0.1:7000", NULL,
     UP "ip addr add 10.77.0.1/24 dev eth0 && ip addr add 10.78.0.1/24 dev eth1",
     UP "ip addr add 10.77.0.2/24 dev eth0 && ip addr add 10.78.0.2/24 dev eth1"
        " && ip neigh add 10.77.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud permanent"},
    {"an interface's name is of any bytes", just_connect, 30, "tcp://10.77.0.1:7000", NULL,
     UP "ip link set eth1 down && ip link set eth1 name \xc3\xa9th && ip link set \xc3\xa9th up"
        " && ip addr add 10.77.0.1/24 dev \xc3\xa9th",
     UP "ip addr add 10.77.0.2/24 dev eth1"},
    {"a wire dies", lose_second, 90, "tcp://10.77.0.1:7000", NULL,
     UP "ip addr add 10.77.0.1/24 dev eth0 && ip addr add 10.78.0.1/24 dev eth1",
     UP "ip addr add 10.77.0.2/24 dev eth0 && ip addr add 10.78.0.2/24 dev eth1"},
};

int main(void)
{
    if (geteuid() || system("ip -V >/dev/null 2>&1 && tc -V >/dev/null 2>&1")) {
        printf("not root, or no ip and tc\n");
        return SKIPPED;
    }
    for (size_t i = 0; i < sizeof LABS / sizeof *LABS; i++)
        run_lab(&LABS[i]);
}
