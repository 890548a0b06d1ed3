/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations of UCX's interface in net/ucx/ucp_api.h are those of the installed UCX. */
#include <stdio.h>

#include "net/ucx/ucp_api.h"

#if __has_include(<ucp/api/ucp.h>)
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#define SAME(ours, theirs)                                                                         \
    _Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
#define PLACE(ours, member, theirs, its)                                                           \
    SAME(offsetof(ours, member), offsetof(theirs, its));                                           \
    SAME(sizeof(((ours *)0)->member), sizeof(((theirs *)0)->its))

SAME(sizeof(ddl__ucs_status), sizeof(ucs_status_t));
SAME(DDL__UCS_OK, UCS_OK);
SAME(DDL__UCS_INPROGRESS, UCS_INPROGRESS);
SAME(DDL__UCS_INVALID, UCS_ERR_INVALID_PARAM);
SAME(DDL__UCS_BUSY, UCS_ERR_BUSY);
SAME(DDL__UCS_LAST_ERROR, UCS_ERR_LAST);
SAME(DDL__UCP_API_MAJOR, UCP_API_MAJOR);

SAME(DDL__UCP_PARAM_FEATURES, UCP_PARAM_FIELD_FEATURES);
SAME(DDL__UCP_FEATURE_WAKEUP, UCP_FEATURE_WAKEUP);
SAME(DDL__UCP_FEATURE_AM, UCP_FEATURE_AM);
PLACE(ddl__ucp_params, fields, ucp_params_t, field_mask);
PLACE(ddl__ucp_params, features, ucp_params_t, features);

SAME(DDL__UCP_WORKER_THREAD_MODE, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
SAME(DDL__UCP_WORKER_ALIGNMENT, UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT);
SAME(DDL__UCS_THREAD_SERIALIZED, UCS_THREAD_MODE_SERIALIZED);
PLACE(ddl__ucp_worker_params, fields, ucp_worker_params_t, field_mask);
PLACE(ddl__ucp_worker_params, thread_mode, ucp_worker_params_t, thread_mode);
PLACE(ddl__ucp_worker_params, alignment, ucp_worker_params_t, am_alignment);

SAME(DDL__UCP_EP_ADDRESS, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME(DDL__UCP_EP_ERROR_MODE, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
SAME(DDL__UCP_EP_ERROR_HANDLER, UCP_EP_PARAM_FIELD_ERR_HANDLER);
SAME(DDL__UCP_ERROR_MODE_PEER, UCP_ERR_HANDLING_MODE_PEER);
PLACE(ddl__ucp_ep_params, fields, ucp_ep_params_t, field_mask);
PLACE(ddl__ucp_ep_params, address, ucp_ep_params_t, address);
PLACE(ddl__ucp_ep_params, error_mode, ucp_ep_params_t, err_mode);
PLACE(ddl__ucp_ep_params, on_error, ucp_ep_params_t, err_handler.cb);
PLACE(ddl__ucp_ep_params, error_argument, ucp_ep_params_t, err_handler.arg);

SAME(DDL__UCP_OP_CALLBACK, UCP_OP_ATTR_FIELD_CALLBACK);
SAME(DDL__UCP_OP_USER_DATA, UCP_OP_ATTR_FIELD_USER_DATA);
SAME(DDL__UCP_OP_FLAGS, UCP_OP_ATTR_FIELD_FLAGS);
SAME(DDL__UCP_CLOSE_FORCE, UCP_EP_CLOSE_FLAG_FORCE);
PLACE(ddl__ucp_request_param, fields, ucp_request_param_t, op_attr_mask);
PLACE(ddl__ucp_request_param, flags, ucp_request_param_t, flags);
PLACE(ddl__ucp_request_param, callback, ucp_request_param_t, cb);
PLACE(ddl__ucp_request_param, user_data, ucp_request_param_t, user_data);

SAME(DDL__UCP_AM_DATA, UCP_AM_RECV_ATTR_FLAG_DATA);
SAME(DDL__UCP_AM_RENDEZVOUS, UCP_AM_RECV_ATTR_FLAG_RNDV);
PLACE(ddl__ucp_am_param, attributes, ucp_am_recv_param_t, recv_attr);

SAME(DDL__UCP_HANDLER_ID, UCP_AM_HANDLER_PARAM_FIELD_ID);
SAME(DDL__UCP_HANDLER_FLAGS, UCP_AM_HANDLER_PARAM_FIELD_FLAGS);
SAME(DDL__UCP_HANDLER_ARRIVED, UCP_AM_HANDLER_PARAM_FIELD_CB);
SAME(DDL__UCP_HANDLER_ARGUMENT, UCP_AM_HANDLER_PARAM_FIELD_ARG);
SAME(DDL__UCP_AM_WHOLE, UCP_AM_FLAG_WHOLE_MSG);
SAME(DDL__UCP_AM_PERSISTENT, UCP_AM_FLAG_PERSISTENT_DATA);
PLACE(ddl__ucp_am_handler, fields, ucp_am_handler_param_t, field_mask);
PLACE(ddl__ucp_am_handler, id, ucp_am_handler_param_t, id);
PLACE(ddl__ucp_am_handler, flags, ucp_am_handler_param_t, flags);
PLACE(ddl__ucp_am_handler, arrived, ucp_am_handler_param_t, cb);
PLACE(ddl__ucp_am_handler, argument, ucp_am_handler_param_t, arg);

SAME(DDL__UCS_LOG_FATAL, UCS_LOG_LEVEL_FATAL);
SAME(DDL__UCS_LOG_WARN, UCS_LOG_LEVEL_WARN);
SAME(DDL__UCS_LOG_STOP, UCS_LOG_FUNC_RC_STOP);

int main(void)
{
    printf("the declarations are those of UCX %d.%d\n", UCP_API_MAJOR, UCP_API_MINOR);
    return 0;
}
#else
int main(void)
{
    printf("skipped: UCX's headers are not installed (Debian: libucx-dev)\n");
    return 77;
}
#endif
