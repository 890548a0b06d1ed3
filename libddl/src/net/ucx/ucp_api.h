/* SPDX-License-Identifier: Apache-2.0 */
/* ucp_api.h - the part of UCX's interface that libddl uses, so that libddl can be built without
 * UCX. libucp.so.0 keeps it compatible: a mask in each struct says which fields are set, and fields
 * are only added at the end. test_ucp_api compares it with the headers of an installed UCX. */
#ifndef DDL_NET_UCP_API_H
#define DDL_NET_UCP_API_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ucp_context ddl__ucp_context;
typedef struct ucp_worker ddl__ucp_worker;
typedef struct ucp_config ddl__ucp_config;
typedef struct ucp_ep ddl__ucp_ep;

/* A status: 0 is success, 1 an operation in progress, and below 0 are errors. */
typedef int8_t ddl__ucs_status;
enum {
    DDL__UCS_OK = 0,
    DDL__UCS_INPROGRESS = 1,
    DDL__UCS_INVALID = -5,
    DDL__UCS_BUSY = -15,
    DDL__UCS_LAST_ERROR = -100
};

/* The result of starting an operation: NULL if it is complete, an error, or its request. */
typedef void *ddl__ucs_result;

enum { DDL__UCP_API_MAJOR = 1, DDL__UCP_API_MINOR = 13 };

typedef struct ddl__ucp_params {
    uint64_t fields;
    uint64_t features;
    size_t request_size;
    void (*request_init)(void *);
    void (*request_cleanup)(void *);
    uint64_t tag_sender_mask;
    int workers_shared;
    size_t endpoints, processes;
    const char *name;
} ddl__ucp_params;
enum { DDL__UCP_PARAM_FEATURES = 1 << 0 };
enum { DDL__UCP_FEATURE_WAKEUP = 1 << 4, DDL__UCP_FEATURE_AM = 1 << 6 };

typedef struct ddl__ucp_worker_params {
    uint64_t fields;
    int thread_mode;
    unsigned long cpus[1024 / 8 / sizeof(unsigned long)];
    unsigned events;
    void *user_data;
    int event_fd;
    uint64_t flags;
    const char *name;
    size_t alignment; /* of the payload of active messages */
    uint64_t client_id;
} ddl__ucp_worker_params;
enum { DDL__UCP_WORKER_THREAD_MODE = 1 << 0, DDL__UCP_WORKER_ALIGNMENT = 1 << 7 };
enum { DDL__UCS_THREAD_SERIALIZED = 1 };

typedef void ddl__ucp_error_fn(void *argument, ddl__ucp_ep *ep, ddl__ucs_status status);
typedef struct ddl__ucp_ep_params {
    uint64_t fields;
    const void *address;
    int error_mode;
    ddl__ucp_error_fn *on_error;
    void *error_argument;
    void *user_data;
    unsigned flags;
    struct {
        const void *address;
        uint32_t length;
    } socket_address;
    void *connection_request;
    const char *name;
} ddl__ucp_ep_params;
enum {
    DDL__UCP_EP_ADDRESS = 1 << 0,
    DDL__UCP_EP_ERROR_MODE = 1 << 1,
    DDL__UCP_EP_ERROR_HANDLER = 1 << 2
};
enum { DDL__UCP_ERROR_MODE_PEER = 1 };

typedef void ddl__ucp_sent_fn(void *request, ddl__ucs_status status, void *user_data);
typedef void ddl__ucp_received_fn(void *request, ddl__ucs_status status, size_t bytes,
                                  void *user_data);
typedef struct ddl__ucp_request_param {
    uint32_t fields;
    uint32_t flags;
    void *request;
    union {
        ddl__ucp_sent_fn *sent;
        ddl__ucp_received_fn *received;
    } callback;
    uint64_t datatype;
    void *user_data;
    void *reply_buffer;
    int memory_type;
    void *receive_info;
    void *memory_handle;
} ddl__ucp_request_param;
enum { DDL__UCP_OP_CALLBACK = 1 << 1, DDL__UCP_OP_USER_DATA = 1 << 2, DDL__UCP_OP_FLAGS = 1 << 4 };
enum { DDL__UCP_CLOSE_FORCE = 1 << 0 };

typedef struct ddl__ucp_am_param {
    uint64_t attributes;
    ddl__ucp_ep *reply_ep;
} ddl__ucp_am_param;
enum { DDL__UCP_AM_DATA = 1 << 16, DDL__UCP_AM_RENDEZVOUS = 1 << 17 };

typedef ddl__ucs_status ddl__ucp_am_fn(void *argument, const void *header, size_t header_bytes,
                                       void *data, size_t bytes, const ddl__ucp_am_param *param);
typedef struct ddl__ucp_am_handler {
    uint64_t fields;
    unsigned id;
    uint32_t flags;
    ddl__ucp_am_fn *arrived;
    void *argument;
} ddl__ucp_am_handler;
enum {
    DDL__UCP_HANDLER_ID = 1 << 0,
    DDL__UCP_HANDLER_FLAGS = 1 << 1,
    DDL__UCP_HANDLER_ARRIVED = 1 << 2,
    DDL__UCP_HANDLER_ARGUMENT = 1 << 3
};
enum { DDL__UCP_AM_WHOLE = 1 << 0, DDL__UCP_AM_PERSISTENT = 1 << 1 };

/* A handler of log messages. The message is a format of printf. */
typedef int ddl__ucs_log_fn(const char *file, unsigned line, const char *function, int level,
                            const void *component, const char *message, va_list arguments);
enum { DDL__UCS_LOG_FATAL, DDL__UCS_LOG_ERROR, DDL__UCS_LOG_WARN };
enum { DDL__UCS_LOG_STOP = 0 };

typedef struct ddl__ucp {
    void (*get_version)(unsigned *major, unsigned *minor, unsigned *release);
    ddl__ucs_status (*config_read)(const char *prefix, const char *file, ddl__ucp_config **config);
    ddl__ucs_status (*config_modify)(ddl__ucp_config *config, const char *name, const char *value);
    void (*config_release)(ddl__ucp_config *config);
    ddl__ucs_status (*init)(unsigned major, unsigned minor, const ddl__ucp_params *params,
                            const ddl__ucp_config *config, ddl__ucp_context **context);
    void (*cleanup)(ddl__ucp_context *context);
    ddl__ucs_status (*worker_create)(ddl__ucp_context *context,
                                     const ddl__ucp_worker_params *params,
                                     ddl__ucp_worker **worker);
    void (*worker_destroy)(ddl__ucp_worker *worker);
    ddl__ucs_status (*worker_get_address)(ddl__ucp_worker *worker, void **address, size_t *bytes);
    void (*worker_release_address)(ddl__ucp_worker *worker, void *address);
    unsigned (*worker_progress)(ddl__ucp_worker *worker);
    ddl__ucs_status (*worker_get_efd)(ddl__ucp_worker *worker, int *fd);
    ddl__ucs_status (*worker_arm)(ddl__ucp_worker *worker);
    ddl__ucs_status (*am_handler)(ddl__ucp_worker *worker, const ddl__ucp_am_handler *handler);
    ddl__ucs_status (*ep_create)(ddl__ucp_worker *worker, const ddl__ucp_ep_params *params,
                                 ddl__ucp_ep **ep);
    ddl__ucs_result (*ep_close)(ddl__ucp_ep *ep, const ddl__ucp_request_param *param);
    ddl__ucs_result (*am_send)(ddl__ucp_ep *ep, unsigned id, const void *header,
                               size_t header_bytes, const void *buffer, size_t bytes,
                               const ddl__ucp_request_param *param);
    ddl__ucs_result (*am_receive)(ddl__ucp_worker *worker, void *descriptor, void *buffer,
                                  size_t bytes, const ddl__ucp_request_param *param);
    void (*am_release)(ddl__ucp_worker *worker, void *data);
    ddl__ucs_status (*request_check)(void *request);
    void (*request_free)(void *request);
    const char *(*status_text)(ddl__ucs_status status);
    void (*log_push_handler)(ddl__ucs_log_fn *handler);
    void (*disable_signals)(void);
} ddl__ucp;

/* Return true if the result is an error, whose status is then ddl__ucs_status_of(result). */
static inline int ddl__ucs_is_error(ddl__ucs_result result)
{
    return (uintptr_t)result >= (uintptr_t)DDL__UCS_LAST_ERROR;
}

static inline ddl__ucs_status ddl__ucs_status_of(ddl__ucs_result result)
{
    return (ddl__ucs_status)(intptr_t)result;
}

#endif
