/* SPDX-License-Identifier: Apache-2.0 */
/* All members of a comm use UCX, or none does. A member is named if it has no usable libucp, or if
 * another member does not reach it. */
#include <dlfcn.h>

#include "net/ucx/ucx_link.h"
#include "ranks.h"

enum { SIZE = 3, VICTIM = 1 };

/* Look for leaks now, and not at the exit. Only LeakSanitizer has this function. */
__attribute__((weak)) void __lsan_do_leak_check(void);

static enum { WHOLE, MISSING, OLD, BROKEN, SILENT } library; /* what VICTIM finds */
static _Thread_local bool is_victim;

WRAP(void *, dlopen, (const char *name, int flags))
{
    bool missing = is_victim && library == MISSING && !strcmp(name, "libucp.so.0");
    /* Sets the text of dlerror, too. */
    return __real_dlopen(missing ? "libucp.so.none" : name, flags);
}

static void old_version(unsigned *major, unsigned *minor, unsigned *release)
{
    *major = 1;
    *minor = 10;
    *release = 1;
}

/* What VICTIM sends is lost. */
static ddl__ucs_result send_nothing(ddl__ucp_ep *ep, unsigned id, const void *header,
                                    size_t header_bytes, const void *buffer, size_t bytes,
                                    const ddl__ucp_request_param *param)
{
    return NULL;
}

static atomic_int opened; /* times that a member has loaded libucp */

WRAP(void *, dlsym, (void *handle, const char *name))
{
    if (is_victim && library == OLD && !strcmp(name, "ucp_get_version"))
        return (void *)(uintptr_t)old_version;
    if (is_victim && library == BROKEN && !strcmp(name, "ucp_am_send_nbx"))
        return NULL;
    if (is_victim && library == SILENT && !strcmp(name, "ucp_am_send_nbx"))
        return (void *)(uintptr_t)send_nothing;
    if (!strcmp(name, "ucp_get_version"))
        atomic_fetch_add(&opened, 1);
    return __real_dlsym(handle, name);
}

typedef struct member {
    ddl_endpoint *endpoint;
    unsigned char address[DDL_ADDRESS_MAX];
    size_t length;
    pthread_t thread;
} member;

static member members[SIZE];
static uint32_t kinds[SIZE];
static const char *refusal; /* words of the message; NULL: the comm is created */

static void check_sum(ddl_comm *comm)
{
    int32_t one = 1;
    OK(ddl_allreduce(comm, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
    CHECK(one == SIZE, "%d", one);
}

static void *run(void *argument)
{
    member *m = argument;
    int rank = (int)(m - members);
    const void *addresses[SIZE];
    size_t lengths[SIZE];
    for (int i = 0; i < SIZE; i++) {
        addresses[i] = members[i].address;
        lengths[i] = members[i].length;
    }
    is_victim = rank == VICTIM;
    ddl_comm_config config = {
        .struct_size = sizeof config, .links = kinds[rank], .timeout_ms = 60000};
    ddl_comm *comm = NULL;
    ddl_status status =
        ddl_comm_create(m->endpoint, addresses, lengths, rank, SIZE, &config, &comm);
    if (refusal) {
        CHECK(status == DDL_EUNSUPPORTED, "rank %d: %d %s", rank, status, ddl_last_error());
        CHECK(strstr(ddl_last_error(), refusal) && strstr(ddl_last_error(), "rank 1 on "),
              "rank %d: %s", rank, ddl_last_error());
        return NULL;
    }
    CHECK(status == DDL_OK, "rank %d: %d %s", rank, status, ddl_last_error());
    check_sum(comm);
    if (library == SILENT) {
        ddl_comm *child;
        OK(ddl_comm_duplicate(comm, NULL, &child));
        check_sum(child);
        ddl_comm_destroy(child);
    }
    ddl_comm_destroy(comm);
    return NULL;
}

/* Create the comm of these links; VICTIM has its own. */
static void create(const char *name, uint32_t links, uint32_t victims)
{
    for (int i = 0; i < SIZE; i++) {
        kinds[i] = i == VICTIM ? victims : links;
        OK(ddl_endpoint_create(NULL, &members[i].endpoint));
        OK(ddl_endpoint_address(members[i].endpoint, members[i].address, DDL_ADDRESS_MAX,
                                &members[i].length));
    }
    for (int i = 0; i < SIZE; i++)
        CHECK(!pthread_create(&members[i].thread, NULL, run, &members[i]), "thread");
    for (int i = 0; i < SIZE; i++)
        pthread_join(members[i].thread, NULL);
    for (int i = 0; i < SIZE; i++)
        ddl_endpoint_destroy(members[i].endpoint);
    printf("%s\n", name);
}

int main(void)
{
    const uint32_t both = DDL_LINK_UCX | DDL_LINK_TCP;
    void *ucp = dlopen("libucp.so.0", RTLD_NOW);
    if (!ucp)
        return 77;
    setenv("UCX_TLS", "tcp", 1);
    setenv("DDL_LOG", "off", 0);
    create("all can", DDL_LINK_UCX, DDL_LINK_UCX);
    create("all share memory", DDL_LINK_UCX | DDL_LINK_INPROC, DDL_LINK_UCX | DDL_LINK_INPROC);
    create("one of one host uses no UCX", DDL_LINK_UCX | DDL_LINK_INPROC, DDL_LINK_INPROC);
    create("one uses TCP only", both, DDL_LINK_TCP);
    for (library = MISSING; library <= BROKEN; library++)
        create("one cannot", both, both);
    static const char *const reasons[] = {[MISSING] = "libucp.so.0 cannot be loaded",
                                          [OLD] = "UCX 1.10.1",
                                          [BROKEN] = "no function ucp_am_send_nbx"};
    for (library = MISSING; library <= BROKEN; library++) {
        refusal = reasons[library];
        create("one cannot, and all require UCX", DDL_LINK_UCX, DDL_LINK_UCX);
        create("one cannot, and the others require UCX", DDL_LINK_UCX, both);
    }
    library = WHOLE;
    refusal = "do not include ucx";
    create("one uses TCP only, and the others require UCX", DDL_LINK_UCX, DDL_LINK_TCP);
    setenv("DDL_SECRET", "test", 1);
    setenv("DDL_ENCRYPT", "1", 1);
    refusal = NULL;
    create("encrypted", both, both);
    unsetenv("DDL_ENCRYPT");
    /* A worker that has not reached a peer is not freed (ucx_link.h). UCX's thread then lives until
     * the exit, and a search for leaks that meets it as it ends may crash. */
    if (__lsan_do_leak_check)
        __lsan_do_leak_check();
    library = SILENT;
    atomic_store(&opened, 0);
    create("one is not reached", both, both);
    CHECK(opened == SIZE, "UCX was opened %d times: the child comm did, too", opened);
    refusal = "does not reach rank 1 on ";
    create("one is not reached, and all require UCX", DDL_LINK_UCX, DDL_LINK_UCX);
    return 0;
}
