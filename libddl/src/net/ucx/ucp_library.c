/* SPDX-License-Identifier: Apache-2.0 */
/* Loads libucp from the system. */
#include <dlfcn.h>
#include <stdio.h>

#include "base/log.h"
#include "net/ucx/ucx_link.h"

static const struct {
    const char *name;
    size_t place;
} functions[] = {
    {"ucp_get_version", offsetof(ddl__ucp, get_version)},
    {"ucp_config_read", offsetof(ddl__ucp, config_read)},
    {"ucp_config_modify", offsetof(ddl__ucp, config_modify)},
    {"ucp_config_release", offsetof(ddl__ucp, config_release)},
    {"ucp_init_version", offsetof(ddl__ucp, init)},
    {"ucp_cleanup", offsetof(ddl__ucp, cleanup)},
    {"ucp_worker_create", offsetof(ddl__ucp, worker_create)},
    {"ucp_worker_destroy", offsetof(ddl__ucp, worker_destroy)},
    {"ucp_worker_get_address", offsetof(ddl__ucp, worker_get_address)},
    {"ucp_worker_release_address", offsetof(ddl__ucp, worker_release_address)},
    {"ucp_worker_progress", offsetof(ddl__ucp, worker_progress)},
    {"ucp_worker_get_efd", offsetof(ddl__ucp, worker_get_efd)},
    {"ucp_worker_arm", offsetof(ddl__ucp, worker_arm)},
    {"ucp_worker_set_am_recv_handler", offsetof(ddl__ucp, am_handler)},
    {"ucp_ep_create", offsetof(ddl__ucp, ep_create)},
    {"ucp_ep_close_nbx", offsetof(ddl__ucp, ep_close)},
    {"ucp_am_send_nbx", offsetof(ddl__ucp, am_send)},
    {"ucp_am_recv_data_nbx", offsetof(ddl__ucp, am_receive)},
    {"ucp_am_data_release", offsetof(ddl__ucp, am_release)},
    {"ucp_request_check_status", offsetof(ddl__ucp, request_check)},
    {"ucp_request_free", offsetof(ddl__ucp, request_free)},
    {"ucs_status_string", offsetof(ddl__ucp, status_text)},
    {"ucs_log_push_handler", offsetof(ddl__ucp, log_push_handler)},
    {"ucs_debug_disable_signals", offsetof(ddl__ucp, disable_signals)},
};

/* Write a message of UCX to libddl's log: UCX writes to stdout by default. Its errors are often
 * ends of peers, which libddl reports itself. */
static int log_line(const char *file, unsigned line, const char *function, int level,
                    const void *component, const char *message, va_list arguments)
{
    (void)file, (void)line, (void)function, (void)component;
    ddl__log_level as = level == DDL__UCS_LOG_FATAL  ? DDL__WARN
                        : level <= DDL__UCS_LOG_WARN ? DDL__INFO
                                                     : DDL__DEBUG;
    char text[512];
    if (!ddl__logs(as))
        return DDL__UCS_LOG_STOP;
    vsnprintf(text, sizeof text, message, arguments);
    ddl__log(as, "UCX: %s", text);
    return DDL__UCS_LOG_STOP;
}

/* Once per process, keep UCX from handling signals, which belong to the program, and from printing
 * to stdout. */
static void tame(const ddl__ucp *ucp)
{
    static atomic_flag tamed = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set_explicit(&tamed, memory_order_relaxed))
        return;
    ucp->disable_signals();
    ucp->log_push_handler(log_line);
}

ddl_status ddl__ucp_load(ddl__ucp *ucp, char *version, size_t size)
{
    void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "libucp.so.0 cannot be loaded (%s): install UCX (Debian: libucx0)",
                         dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].name);
        if (!found)
            return ddl__fail(DDL_EUNSUPPORTED,
                             "libucp.so.0 has no function %s: install UCX %d.%d "
                             "or later",
                             functions[i].name, DDL__UCP_API_MAJOR, DDL__UCP_API_MINOR);
        memcpy((char *)ucp + functions[i].place, &found, sizeof found);
    }
    unsigned major, minor, release;
    ucp->get_version(&major, &minor, &release);
    snprintf(version, size, "%u.%u.%u", major, minor, release);
    if (major != DDL__UCP_API_MAJOR || minor < DDL__UCP_API_MINOR)
        return ddl__fail(DDL_EUNSUPPORTED, "libucp.so.0 is UCX %s: install UCX %d.%d or later",
                         version, DDL__UCP_API_MAJOR, DDL__UCP_API_MINOR);
    tame(ucp);
    return DDL_OK;
}
