/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a comm while UCX connects an endpoint, which UCX 1.13 must not be told to close. The
 * connection is a stand-in: UCX never sends over it. All comms here count as large. */
#include <dlfcn.h>

#include "net/ucx/ucp_api.h"
#include "ranks.h"

/* The worker that cannot be freed is a leak. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}

enum { SIZE = 6, FAR = 3 }; /* no barrier uses the link between ranks 0 and 3 */

static ddl__ucs_status (*real_create)(ddl__ucp_worker *, const ddl__ucp_ep_params *,
                                      ddl__ucp_ep **);
static ddl__ucs_result (*real_send)(ddl__ucp_ep *, unsigned, const void *, size_t, const void *,
                                    size_t, const ddl__ucp_request_param *);
static ddl__ucs_result (*real_close)(ddl__ucp_ep *, const ddl__ucp_request_param *);
static _Thread_local int rank_here;
static atomic_bool connects;
static _Atomic(ddl__ucp_ep *) connecting;
static atomic_int sent_to_it, closed;

static void say_nothing(void *argument, ddl__ucp_ep *ep, ddl__ucs_status status)
{
    (void)argument, (void)ep, (void)status;
}

static ddl__ucs_status create(ddl__ucp_worker *worker, const ddl__ucp_ep_params *params,
                              ddl__ucp_ep **ep)
{
    ddl__ucp_ep_params own = *params;
    bool connects_now = atomic_load(&connects) && !atomic_load(&connecting);
    if (connects_now)
        own.on_error = say_nothing;
    ddl__ucs_status status = real_create(worker, &own, ep);
    if (connects_now)
        atomic_store(&connecting, *ep);
    return status;
}

static ddl__ucs_result send_unless_connecting(ddl__ucp_ep *ep, unsigned id, const void *header,
                                              size_t header_bytes, const void *buffer, size_t bytes,
                                              const ddl__ucp_request_param *param)
{
    static int request;
    if (ep != atomic_load(&connecting))
        return real_send(ep, id, header, header_bytes, buffer, bytes, param);
    atomic_fetch_add(&sent_to_it, 1);
    return &request;
}

static ddl__ucs_result close_noted(ddl__ucp_ep *ep, const ddl__ucp_request_param *param)
{
    if (ep == atomic_load(&connecting))
        atomic_fetch_add(&closed, 1);
    return real_close(ep, param);
}

WRAP(void *, dlsym, (void *handle, const char *name))
{
    void *found = __real_dlsym(handle, name);
    if (rank_here)
        return found;
    if (!strcmp(name, "ucp_ep_create")) {
        memcpy(&real_create, &found, sizeof found);
        return (void *)(uintptr_t)create;
    }
    if (!strcmp(name, "ucp_am_send_nbx")) {
        memcpy(&real_send, &found, sizeof found);
        return (void *)(uintptr_t)send_unless_connecting;
    }
    if (!strcmp(name, "ucp_ep_close_nbx")) {
        memcpy(&real_close, &found, sizeof found);
        return (void *)(uintptr_t)close_noted;
    }
    return found;
}

static void *run(void *argument)
{
    rank_here = ((rank_thread *)argument)->rank;
    return rank_main(argument);
}

static void abort_while_connecting(ddl_comm *comm, void *argument)
{
    int32_t one = 1;
    ddl_work *work;
    (void)argument;
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == 0) {
        atomic_store(&connects, true);
        OK(ddl_send(comm, &one, 1, DDL_I32, FAR, 0, NULL, &work));
        while (!atomic_load(&sent_to_it))
            usleep(1000);
        ddl_comm_abort(comm, "enough");
        ddl_work_wait(work, -1);
        ddl_work_destroy(work);
    }
    ddl_status status =
        ddl_recv(comm, &one, 1, DDL_I32, (ddl_comm_rank(comm) + 1) % SIZE, 1, NULL, NULL, NULL);
    CHECK(status == DDL_EABORTED, "%d %s", status, ddl_last_error());
}

int main(void)
{
    static ranks all = {
        .size = SIZE,
        .config = {.struct_size = sizeof all.config, .links = DDL_LINK_UCX, .timeout_ms = 60000},
        .fn = abort_while_connecting};
    if (!dlopen("libucp.so.0", RTLD_NOW))
        return 77;
    setenv("UCX_TLS", "tcp", 1);
    setenv("DDL_LOG", "off", 0);
    run_threads(&all, run);
    CHECK(!atomic_load(&closed), "the endpoint was closed");
    return 0;
}
