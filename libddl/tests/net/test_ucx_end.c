/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a comm while UCX has requests to complete: late completions, as with RDMA. */
#include <dlfcn.h>

#include "net/ucx/ucp_api.h"
#include "ranks.h"

enum { SIZE = 8, COUNT = 1 << 20, LONG = 64 << 10, LATE_MS = 300, LATE_MAX = 64 };

static enum { NONE, LATE_SENT, NEVER_SENT } fault; /* of the requests of rank 0 */
static ddl__ucs_result (*real_send)(ddl__ucp_ep *, unsigned, const void *, size_t, const void *,
                                    size_t, const ddl__ucp_request_param *);
static ddl__ucs_result (*real_receive)(ddl__ucp_worker *, void *, void *, size_t,
                                       const ddl__ucp_request_param *);
static unsigned (*real_progress)(ddl__ucp_worker *);

/* Requests of rank 0 that UCX has completed, and libddl does not know it yet. */
static struct {
    void *request, *user_data;
    ddl__ucs_status status;
    double due;
} late[LATE_MAX];
static unsigned n_late, reported;
static ddl__ucp_sent_fn *sent;
static _Thread_local int rank_here;
static atomic_bool held;
static atomic_int fetching;
static ddl__ucp_received_fn *received;

static void note_sent(void *request, ddl__ucs_status status, void *user_data)
{
    CHECK(n_late < LATE_MAX, "too many");
    late[n_late].request = request;
    late[n_late].status = status;
    late[n_late].user_data = user_data;
    late[n_late++].due = seconds() + LATE_MS / 1e3;
}

static ddl__ucs_result send_late(ddl__ucp_ep *ep, unsigned id, const void *header,
                                 size_t header_bytes, const void *buffer, size_t bytes,
                                 const ddl__ucp_request_param *param)
{
    ddl__ucp_request_param own = *param;
    if (bytes >= LONG && fault == LATE_SENT) {
        sent = param->callback.sent;
        own.callback.sent = note_sent;
    }
    return real_send(ep, id, header, header_bytes, buffer, bytes, &own);
}

static unsigned progress_late(ddl__ucp_worker *worker)
{
    if (atomic_load(&held))
        return 0;
    unsigned n = real_progress(worker);
    for (; reported < n_late && seconds() >= late[reported].due; reported++, n++)
        sent(late[reported].request, late[reported].status, late[reported].user_data);
    return n;
}

static void note_received(void *request, ddl__ucs_status status, size_t bytes, void *user_data)
{
    received(request, status, bytes, user_data);
    atomic_fetch_sub(&fetching, 1);
}

static ddl__ucs_result receive_counted(ddl__ucp_worker *worker, void *descriptor, void *buffer,
                                       size_t bytes, const ddl__ucp_request_param *param)
{
    ddl__ucp_request_param own = *param;
    received = param->callback.received;
    own.callback.received = note_received;
    atomic_store(&held, fault == NEVER_SENT);
    ddl__ucs_result result = real_receive(worker, descriptor, buffer, bytes, &own);
    if (result && !ddl__ucs_is_error(result))
        atomic_fetch_add(&fetching, 1);
    return result;
}

WRAP(void *, dlsym, (void *handle, const char *name))
{
    void *found = __real_dlsym(handle, name);
    void *ours = NULL;
    if (rank_here == 0 && !strcmp(name, "ucp_am_send_nbx")) {
        memcpy(&real_send, &found, sizeof found);
        ours = (void *)(uintptr_t)send_late;
    } else if (rank_here == 0 && !strcmp(name, "ucp_worker_progress")) {
        memcpy(&real_progress, &found, sizeof found);
        ours = (void *)(uintptr_t)progress_late;
    } else if (rank_here == 1 && !strcmp(name, "ucp_am_recv_data_nbx")) {
        memcpy(&real_receive, &found, sizeof found);
        ours = (void *)(uintptr_t)receive_counted;
    }
    return ours ? ours : found;
}

static ranks all;

static void *run(void *argument)
{
    rank_thread *self = argument;
    rank_here = self->rank;
    return rank_main(argument);
}

/* Rank 0's UCX reports the end of its sends after the receiver has left. */
static void leave_before_report(ddl_comm *comm, void *argument)
{
    int32_t *data = calloc(COUNT, sizeof *data);
    OK(ddl_broadcast(comm, data, COUNT, DDL_I32, 0, NULL, NULL));
    free(data);
}

/* Rank 1 aborts while its UCX receives into the user's memory. It has sent rank 0 nothing. */
static void abort_while_fetching(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm);
    int32_t *data = calloc(COUNT, sizeof *data);
    ddl_work *work;
    ddl_status status = ddl_broadcast(comm, data, COUNT, DDL_I32, 0, NULL, &work);
    if (status == DDL_EABORTED && rank != 1) { /* rank 1 has aborted before this call */
        free(data);
        return;
    }
    OK(status);
    if (rank == 1) {
        while (!atomic_load(&fetching))
            usleep(200);
        ddl_comm_abort(comm, "enough");
    }
    status = ddl_work_wait(work, -1);
    CHECK(status == DDL_EABORTED || (status == DDL_OK && rank != 1), "%d %s", status,
          ddl_last_error());
    ddl_work_destroy(work);
    CHECK(rank != 1 || !atomic_load(&fetching), "UCX still receives");
    if (rank == 1)
        atomic_store(&held, false);
    free(data);
}

static void check(const char *name, int size, rank_fn *fn, int how)
{
    memset(&all, 0, sizeof all);
    all.size = size;
    all.config = (ddl_comm_config){
        .struct_size = sizeof all.config, .links = DDL_LINK_UCX, .timeout_ms = 60000};
    all.fn = fn;
    fault = how;
    run_threads(&all, run);
    printf("%s\n", name);
}

int main(void)
{
    if (!dlopen("libucp.so.0", RTLD_NOW))
        return 77;
    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_RNDV_THRESH", "16k", 1);
    setenv("DDL_LOG", "off", 0);
    check("leaves before the report", 2, leave_before_report, LATE_SENT);
    CHECK(n_late, "no report was late");
    check("aborts while UCX receives", SIZE, abort_while_fetching, NEVER_SENT);
    return 0;
}
