/* SPDX-License-Identifier: Apache-2.0 */
/* Topologies that are found, described and declared; valid and invalid settings in the environment;
 * and settings on which all members must agree. */
#include "comm/environment.h"
#include "comm/location.h"
#include "processes.h"
#include "ranks.h"
#include "topo/topology.h"

/* ----------------------------------------------------------------------------------- topologies */

/* shared[i * size + j]: rank i has opened memory of rank j. */
static ddl_status create_proven(const unsigned char *shared, int size, const char *description,
                                bool is_part, ddl__topology **t)
{
    ddl__sharing sharing[RANKS_MAX];
    for (int r = 0; r < size; r++)
        sharing[r] = ddl__sharing_of(shared + r * size, r, size);
    return ddl__topology_create(sharing, size, description, is_part, t);
}

/* Create a topology from the pairs that share memory both ways. */
static ddl_status create(int size, const char *pairs, const char *description, bool is_part,
                         ddl__topology **t)
{
    unsigned char shared[RANKS_MAX * RANKS_MAX] = {0};
    for (const char *at = pairs; *at; at += at[2] ? 3 : 2) {
        int a = at[0] - '0', b = at[1] - '0';
        shared[a * size + b] = shared[b * size + a] = 1;
    }
    return create_proven(shared, size, description, is_part, t);
}

static void expect_groups(const ddl__topology *t, int grouping, const char *want)
{
    for (int r = 0; r < t->size; r++)
        CHECK(ddl__topology_group(t, grouping, r) == want[r] - '0', "grouping %d of rank %d is %d",
              grouping, r, ddl__topology_group(t, grouping, r));
}

static void test_topologies(void)
{
    static const struct {
        int size;
        const char *pairs, *description, *hosts, *racks, *aisles;
        bool is_part, hierarchical;
    } cases[] = {
        {4, "", NULL, "0123", "0000", "0000", false, false},
        {4, "01 23", "", "0011", "0000", "0000", false, true},
        {4, "02 13", "1,1", "0101", "0101", "0000", false, true},
        {4, "01 02 03 12 13 23", NULL, "0000", "0000", "0000", false, false},
        {4, "01 12", NULL, "0123", "0000", "0000", false, false}, /* 0 and 2 do not share */
        {5, "01 12 34", NULL, "01233", "00000", "00000", false, true},
        {4, "", "2,2", "0123", "0011", "0000", false, true},
        {4, "", "2x2", "0123", "0011", "0000", false, true},
        {4, "", "1x2;1,1", "0123", "0123", "0011", false, true},
        {6, "01 23 45", "1;2", "001122", "001111", "001111", false, true},
        {4, "01 23", "4x8;4x8", "0011", "0000", "0000", true, true}, /* which of them is unknown */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddl__topology *t;
        OK(create(cases[i].size, cases[i].pairs, cases[i].description, cases[i].is_part, &t));
        expect_groups(t, DDL__HOSTS, cases[i].hosts);
        expect_groups(t, DDL__RACKS, cases[i].racks);
        expect_groups(t, DDL__AISLES, cases[i].aisles);
        CHECK(ddl__topology_is_hierarchical(t) == cases[i].hierarchical, "case %zu", i);
        ddl__topology_destroy(t);
    }
    unsigned char one_way[4] = {0, 1, 0, 0};
    ddl__topology *t;
    OK(create_proven(one_way, 2, NULL, false, &t));
    expect_groups(t, DDL__HOSTS, "01");
    ddl__topology_destroy(t);
}

static void test_wires(void)
{
    ddl__topology *t;
    OK(create(4, "", "2,2@30:10,50.5:2.5", false, &t));
    CHECK(t->wires[0].latency > 29.9e-6 && t->wires[0].latency < 30.1e-6, "latency");
    CHECK(t->wires[0].bandwidth == 1.25e9 && t->wires[1].bandwidth == 2.5e9 / 8, "bandwidth");
    CHECK(t->wires[1].latency > 50.4e-6 && t->wires[1].latency < 50.6e-6, "latency of racks");
    CHECK(t->wires[2].bandwidth == 0 && t->groups[DDL__RACKS] == 2, "what is not described");
    ddl__topology_destroy(t);
    OK(create(4, "01 23", "@7:100", false, &t));
    CHECK(t->wires[0].bandwidth == 12.5e9 && t->groups[DDL__RACKS] == 1, "no racks");
    ddl__topology_destroy(t);
    static const char *const wrong[] = {"@",      "@7",       "@7:",
                                        "@:7",    "@0:1",     "@1:0",
                                        "@1:1,",  "@7:1;2:2", "@1:1,1:1,1:1,1:1",
                                        "2,2@",   "2,2@a:b",  "@-1:1",
                                        "@1..2:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK(create(4, "", wrong[i], false, &t) == DDL_EINVAL, "\"%s\" is taken", wrong[i]);
        CHECK(strstr(ddl_last_error(), "after @"), "%s", ddl_last_error());
    }
}

/* Ranks of one machine share its cores, even if they do not share memory. */
static void expect_oversubscription(ddl__topology *t, uint64_t cores, uint64_t own, bool apart,
                                    double want)
{
    ddl__location places[4];
    for (int r = 0; r < 4; r++)
        places[r] = (ddl__location){
            .machine = 7, .cores = cores, .own = own, .mask = 1 + (apart ? (uint64_t)r : 0)};
    OK(ddl__topology_locate(t, places));
    CHECK(t->oversubscription == want, "%g, not %g", t->oversubscription, want);
}

static void test_places(void)
{
    ddl__topology *t;
    OK(create(4, "", "", false, &t));
    ddl__location places[4] = {{.machine = 7, .cores = 2}};
    places[1] = places[2] = places[0];
    places[3] = (ddl__location){.machine = 9, .cores = 8};
    OK(ddl__topology_locate(t, places));
    CHECK(t->machines == 2 && t->oversubscription == 1.5, "%d machines, oversubscription %g",
          t->machines, t->oversubscription);
    expect_oversubscription(t, 8, 1, true, 1);  /* each bound to one core */
    expect_oversubscription(t, 8, 2, false, 2); /* all bound to the same two cores */
    expect_oversubscription(t, 1, 4, false, 4); /* a quota allows fewer cores */
    expect_oversubscription(t, 4, 0, false, 1); /* unknown */
    ddl__topology_destroy(t);
}

/* Nodes are used only if they differ from hosts and from single ranks. */
static void test_nodes(void)
{
    static const struct {
        const char *pairs; /* pairs that share memory */
        uint64_t nodes[6];
        const char *groups; /* "": no groups */
    } cases[] = {
        {"01 02 03 04 05 12 13 14 15 23 24 25 34 35 45", {1, 1, 1, 2, 2, 2}, "000111"},
        {"01 02 03 04 05 12 13 14 15 23 24 25 34 35 45", {3, 1, 3, 1, 1, 3}, "010110"},
        {"01 02 03 04 05 12 13 14 15 23 24 25 34 35 45", {1, 1, 1, 1, 1, 1}, ""},
        {"01 02 03 04 05 12 13 14 15 23 24 25 34 35 45", {1, 2, 3, 4, 5, 6}, ""},
        {"01 02 03 04 05 12 13 14 15 23 24 25 34 35 45", {1, 1, 1, 2, 2, 0}, ""},
        {"01 02 03 12 13 23 45", {1, 1, 2, 2, 1, 1}, "001122"},
        {"01 02 03 12 13 23 45", {1, 1, 2, 2, 0, 1}, "001122"},
        {"01 23 45", {1, 2, 1, 2, 1, 2}, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddl__topology *t;
        ddl__location places[6];
        char found[7] = "";
        for (int r = 0; r < 6; r++)
            places[r] = (ddl__location){.machine = 1, .cores = 8, .node = cases[i].nodes[r]};
        OK(create(6, cases[i].pairs, "", false, &t));
        OK(ddl__topology_locate(t, places));
        for (int r = 0; r < 6 && t->node; r++)
            found[r] = (char)('0' + t->node[r]);
        CHECK(strcmp(found, cases[i].groups) == 0, "case %zu: %s", i, found);
        ddl__topology_destroy(t);
    }
}

/* A folder with the system files that describe a machine. */
static char root[] = "/tmp/ddl-place-XXXXXX";

static void write_below(const char *path, const char *text)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *at = name + sizeof root; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(name, 0700);
        *at = '/';
    }
    FILE *file = fopen(name, "w");
    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0, "%s", name);
}

static void test_reading_places(void)
{
    char command[64];
    CHECK(mkdtemp(root), "no folder");
    ddl__location here = ddl__location_find(""), none = ddl__location_find(root);
    CHECK(here.machine && here.cores && here.own && here.mask, "%llu cores, %llu",
          (unsigned long long)here.cores, (unsigned long long)here.own);
    CHECK(none.machine && !none.cores && !none.own && !none.node && !none.cache, "of nothing");

    write_below("/proc/sys/kernel/random/boot_id", "5a5a\n");
    write_below("/proc/self/status", "Name:\tx\nCpus_allowed:\tff0\nCpus_allowed_list:\t4-7,20\n");
    write_below("/proc/self/cgroup", "0::/jobs/one\n");
    write_below("/sys/devices/system/cpu/online", "0-31\n");
    write_below("/sys/devices/system/cpu/cpu3/cache/index2/size", "1M\n");
    write_below("/sys/devices/system/cpu/cpu4/cache/index2/size", "2048K\n");
    write_below("/sys/devices/system/node/node0/cpulist", "0-3,8-15\n");
    write_below("/sys/devices/system/node/node1/cpulist", "4-7,16-31\n");
    ddl__location place = ddl__location_find(root);
    CHECK(place.machine != here.machine && place.machine == ddl__location_find(root).machine, "id");
    CHECK(place.cores == 32 && place.own == 5 && place.node == 2, "%llu, %llu, %llu",
          (unsigned long long)place.cores, (unsigned long long)place.own,
          (unsigned long long)place.node);

    write_below("/sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n");
    CHECK(ddl__location_find(root).cores == 32, "no limit");
    write_below("/sys/fs/cgroup/jobs/cpu.max", "250000 100000\n");
    CHECK(ddl__location_find(root).cores == 3, "of the group above");
    write_below("/sys/fs/cgroup/cpu.max", "100000 100000\n");
    CHECK(ddl__location_find(root).cores == 1, "of all");

    write_below("/proc/self/status", "Cpus_allowed_list:\t3-4\n");
    CHECK(ddl__location_find(root).node == 0 && ddl__location_find(root).own == 2, "on two nodes");
    CHECK(ddl__location_find(root).mask != place.mask, "other cores");
    CHECK(place.cache == 2 << 20 && ddl__location_find(root).cache == 1 << 20, "of the first core");
    static const char *wrong[] = {"", "-", "3-", "a", "5-4", "0-9999", ",1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char line[64];
        snprintf(line, sizeof line, "Cpus_allowed_list:\t%s\n", wrong[i]);
        write_below("/proc/self/status", line);
        CHECK(ddl__location_find(root).own == 0, "\"%s\" is a list", wrong[i]);
    }
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK(system(command) == 0, "%s", command);
}

static void test_rings(void)
{
    ddl__location large = {.cache = DDL__RING_CACHE}, small = {.cache = DDL__RING_CACHE / 2};
    CHECK(ddl__ring_bytes(&large, 2) == DDL__RING_NEAR, "two ranks");
    CHECK(ddl__ring_bytes(&large, 3) == DDL__RING, "three");
    CHECK(ddl__ring_bytes(&small, 2) == DDL__RING, "a small cache");
}

static void test_wrong_descriptions(void)
{
    static const char *wrong[] = {"2",   "2,", ",2",   "2,2,", "2;;2",     "x2",  "2x",  "0,4",
                                  "2x0", "a",  "2,2a", "-4",   "99999999", "2 2", "4x2", "1,1;1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ddl__topology *t;
        char named[64];
        snprintf(named, sizeof named, "DDL_TOPOLOGY=\"%s\" ", wrong[i]);
        CHECK(create(4, "", wrong[i], false, &t) == DDL_EINVAL, "\"%s\" is taken", wrong[i]);
        CHECK(strstr(ddl_last_error(), named), "%s", ddl_last_error());
    }
    ddl__topology *t;
    CHECK(create(4, "", "2", true, &t) == DDL_EINVAL, "a part with more hosts than the whole");
    CHECK(create(4, "", "2,2,", true, &t) == DDL_EINVAL, "a part of nonsense");
}

/* --------------------------------------------------------------------------------- environment */

static void test_options(void)
{
    static const struct {
        const char *options;
        char mode;
        int dimensions[DDL__DIMENSIONS];
    } right[] = {{"", 0, {0}},
                 {"  ", 0, {0}},
                 {"-mode r:4", 'r', {4, 1, 1, 1}},
                 {" -mode  d:2x3x4x5 ", 'd', {2, 3, 4, 5}},
                 {"-mode t:4", 't', {4, 1, 1, 1}},
                 {"-mode h:4", 'h', {4, 1, 1, 1}},
                 {"-mode p:6x2x1x1 -dump_iter 100 -dbg_level 0", 'p', {6, 2, 1, 1}},
                 {"-dump_iter 100  -mode r:4", 'r', {4, 1, 1, 1}},
                 {"-mode r:4 -mode d:2x2", 'd', {2, 2, 1, 1}}};
    static const char *wrong[] = {
        "-mode",        "-mode ",       "-mode b:4",      "-mode r",
        "-mode r4",     "-mode r:",     "-mode r:0",      "-mode d:2x",
        "-mode d:2x-1", "-mode d:2y",   "-mode d:2x2x",   "-mode d:1x1x1x1x2",
        "-mode r:4,",   "-mod r:4",     "-dump_iter",     "-mode r:99999999",
        "-mode d:2x 2", "-mode d:2x+2", "-dump_iter -1",  "-dump_iter 1a",
        "-dbg_level 3", "-dev_sync 3",  "-rebind_iter x", "-dbg_level "};
    ddl__layout layout;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        setenv("DDL_OPTIONS", right[i].options, 1);
        OK(ddl__environment_layout(&layout));
        CHECK(layout.mode == right[i].mode, "%s", right[i].options);
        CHECK(!memcmp(layout.dimensions, right[i].dimensions, sizeof layout.dimensions), "%s",
              right[i].options);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("DDL_OPTIONS", wrong[i], 1);
        CHECK(ddl__environment_layout(&layout) == DDL_EINVAL, "\"%s\" is taken", wrong[i]);
        CHECK(strstr(ddl_last_error(), wrong[i]), "%s", ddl_last_error());
    }
    setenv("DDL_OPTIONS", "-mode q:4", 1);
    CHECK(ddl__environment_layout(&layout) && strstr(ddl_last_error(), "p (explore)"), "%s",
          ddl_last_error());
    unsetenv("DDL_OPTIONS");
    char endless[300];
    memset(endless, '1', sizeof endless - 1);
    endless[sizeof endless - 1] = 0;
    setenv("DDL_TOPOLOGY", endless, 1);
    CHECK(ddl__environment_layout(&layout) == DDL_EINVAL, "a long DDL_TOPOLOGY is taken");
    unsetenv("DDL_TOPOLOGY");
}

/* ---------------------------------------------------------------------------------------- comms */

/* Return values whose sum depends on the order of the additions. */
static float odd(int rank, int i)
{
    return (float)(1 + (rank * 7919 + i * 31) % 10007) / (float)(3 + rank % 5);
}

enum { COUNT = 30000 };

/* Check that all ranks get the same bits; with an argument, the bits of two hosts of two ranks. */
static void same_bits(ddl_comm *comm, void *two_by_two)
{
    int rank = ddl_comm_rank(comm);
    float *sum = malloc(COUNT * sizeof *sum), *first = malloc(COUNT * sizeof *first);
    CHECK(sum && first, "no memory");
    for (int i = 0; i < COUNT; i++)
        sum[i] = odd(rank, i);
    OK(ddl_allreduce(comm, NULL, sum, COUNT, DDL_F32, DDL_SUM, NULL, NULL));
    memcpy(first, sum, COUNT * sizeof *sum);
    OK(ddl_broadcast(comm, first, COUNT, DDL_F32, 0, NULL, NULL));
    CHECK(!memcmp(first, sum, COUNT * sizeof *sum), "rank %d has other bits than rank 0", rank);
    for (int i = 0; two_by_two && i < COUNT; i++) {
        float a = odd(0, i) + odd(1, i), b = odd(2, i) + odd(3, i);
        CHECK(sum[i] == a + b, "element %d is added in another order", i);
    }
    free(sum);
    free(first);
}

static void test_modes(void)
{
    bool two_by_two;
    run_ranks(4, LINKS_HOSTS, same_bits, &two_by_two);
    run_ranks(4, LINKS_INTERLEAVED, same_bits, NULL);
    setenv("DDL_OPTIONS", "-mode d:2x2", 1);
    run_ranks(4, DDL_LINK_INPROC, same_bits, &two_by_two);
    run_ranks(4, DDL_LINK_TCP, same_bits, &two_by_two);
    run_ranks(4, LINKS_INTERLEAVED, same_bits, &two_by_two); /* contradicts what is proven */
    /* a part of the job: another algorithm is chosen */
    run_ranks(3, DDL_LINK_TCP, same_bits, NULL);
    static const char *const modes[] = {"-mode r:4",   "-mode t:4",   "-mode t:2x2",
                                        "-mode p:2x2", "-mode h:1x4", "-mode h:2x2"};
    for (int i = 0; i < 6; i++) {
        setenv("DDL_OPTIONS", modes[i], 1);
        run_ranks(4, DDL_LINK_SHM, same_bits, NULL);
        run_ranks(4, DDL_LINK_TCP, same_bits, i < 4 ? NULL : &two_by_two);
        run_ranks(4, LINKS_HOSTS, same_bits, i < 4 ? NULL : &two_by_two);
    }
    unsetenv("DDL_OPTIONS");
    setenv("DDL_TOPOLOGY", "2,2", 1);
    run_ranks(4, DDL_LINK_TCP, same_bits, &two_by_two); /* hosts of one rank each */
    unsetenv("DDL_TOPOLOGY");
}

/* Run one rank of a world of two with its own environment. */
static void one_of_two(int rank, const char *url, const char *variable, const char *const values[2],
                       const char *complaint)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm = NULL;
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};
    setenv(variable, values[rank], 1);
    OK(ddl_endpoint_create(NULL, &endpoint));
    ddl_status status = ddl_rendezvous(endpoint, url, rank, 2, &config, &comm);
    if (complaint) {
        REFUSED(status, DDL_EINVAL, complaint);
    } else {
        CHECK(status == DDL_OK, "rank %d: %s", rank, ddl_last_error());
    }
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
}

/* Run two processes with these values of the variable. They must fail with `complaint`, or accept
 * the values if it is NULL. */
static void run_two(const char *variable, const char *a, const char *b, const char *complaint)
{
    char url[64];
    const char *const values[] = {a, b};
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    pid_t pids[2];
    fflush(NULL);
    for (int rank = 0; rank < 2; rank++) {
        pids[rank] = fork();
        CHECK(pids[rank] >= 0, "fork");
        if (pids[rank] == 0) {
            one_of_two(rank, url, variable, values, complaint);
            _exit(0);
        }
    }
    for (int rank = 0; rank < 2; rank++) {
        int status;
        CHECK(waitpid(pids[rank], &status, 0) == pids[rank] && status == 0, "rank %d with %s=%s",
              rank, variable, values[rank]);
    }
}

static void test_agreement(void)
{
    run_two("DDL_OPTIONS", "-mode r:2", "-mode r:2", NULL);
    run_two("DDL_OPTIONS", "-mode r:2", "-mode d:2", "-mode is ");
    run_two("DDL_OPTIONS", "", "-mode r:2", "not set on rank 0");
    run_two("DDL_OPTIONS", "-mode r:3", "-mode r:3",
            "-mode r:3x1x1x1 is for 3 ranks, but the comm");
    run_two("DDL_OPTIONS", "-mode r:1", "-mode r:1", "is for 1 ranks, but the comm has 2");
    run_two("DDL_OPTIONS", "-dump_iter 3", "-dump_iter 4", "-dump_iter is ");
    run_two("DDL_OPTIONS", "-mode t:3x2", "-mode t:3x2",
            "-mode t:3x2x1x1 is for 6 ranks, but the comm has 2");
    run_two("DDL_OPTIONS", "-mode q:2", "-mode q:2", "\"q:2\" is not a mode");
    run_two("DDL_TOPOLOGY", "1", "1", NULL); /* one host of two ranks */
    run_two("DDL_TOPOLOGY", "1", "1,1", "DDL_TOPOLOGY is ");
    run_two("DDL_TOPOLOGY", "3", "3", "describes 3 hosts, but the 2 ranks are on 1");
}

int main(void)
{
    test_topologies();
    test_wires();
    test_places();
    test_nodes();
    test_reading_places();
    test_rings();
    test_wrong_descriptions();
    test_options();
    test_agreement(); /* forks: before there are threads */
    test_modes();
}
