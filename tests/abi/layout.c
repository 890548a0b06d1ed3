/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c - the recorded ABI: values, sizes and offsets that a program compiled against ddl.h has
 * built into it. Compiled only. Until 1.0 a line here may change, together with an `abi:` line in
 * CHANGELOG.md; afterwards lines are only added. The numbers hold where pointers have 64 bits. */
#include <stddef.h>

#include "ddl/ddl.h"

#define VALUE(name, value) _Static_assert(name == (value), #name)
#define SIZE(type, size)   _Static_assert(sizeof(type) == (size), #type)
#define FIELD(type, field, offset, size)                                                           \
    _Static_assert(offsetof(type, field) == (offset) && sizeof(((type *)0)->field) == (size),      \
                   #type "." #field)

VALUE(DDL_OK, 0);
VALUE(DDL_INPROGRESS, 1);
VALUE(DDL_EINVAL, -1);
VALUE(DDL_ESTATE, -2);
VALUE(DDL_EUNSUPPORTED, -3);
VALUE(DDL_ETIMEDOUT, -20);
VALUE(DDL_ENOMEM, -21);
VALUE(DDL_EUNREACHABLE, -22);
VALUE(DDL_EREFUSED, -23);
VALUE(DDL_ESYSTEM, -24);
VALUE(DDL_EPEER, -40);
VALUE(DDL_EMISMATCH, -41);
VALUE(DDL_EABORTED, -42);
VALUE(DDL_EEXPIRED, -43);
VALUE(DDL_EMINORITY, -44);
VALUE(DDL_EINTERNAL, -60);

VALUE(DDL_BOOL, 1);
VALUE(DDL_I8, 2);
VALUE(DDL_U8, 3);
VALUE(DDL_I16, 4);
VALUE(DDL_U16, 5);
VALUE(DDL_I32, 6);
VALUE(DDL_U32, 7);
VALUE(DDL_I64, 8);
VALUE(DDL_U64, 9);
VALUE(DDL_F16, 10);
VALUE(DDL_BF16, 11);
VALUE(DDL_F32, 12);
VALUE(DDL_F64, 13);
VALUE(DDL_F8_E4M3, 14);
VALUE(DDL_F8_E5M2, 15);
VALUE(DDL_C64, 16);
VALUE(DDL_C128, 17);

VALUE(DDL_SUM, 1);
VALUE(DDL_AVERAGE, 2);
VALUE(DDL_MIN, 3);
VALUE(DDL_MAX, 4);
VALUE(DDL_PRODUCT, 5);
VALUE(DDL_BIT_AND, 6);
VALUE(DDL_BIT_OR, 7);
VALUE(DDL_BIT_XOR, 8);
VALUE(DDL_LOGICAL_AND, 9);
VALUE(DDL_LOGICAL_OR, 10);

VALUE(DDL_MEMORY_HOST, 0);
VALUE(DDL_MEMORY_CUDA, 1);
VALUE(DDL_LINK_INPROC, 1);
VALUE(DDL_LINK_SHM, 2);
VALUE(DDL_LINK_TCP, 4);
VALUE(DDL_LINK_UCX, 8);
VALUE(DDL_ADDRESS_MAX, 1024);
VALUE(DDL_NAME_MAX, 256);
VALUE(DDL_ANY_SOURCE, -1);

SIZE(ddl_status, 4);
SIZE(ddl_dtype, 4);
SIZE(ddl_op, 4);
SIZE(ddl_memory, 4);
SIZE(ddl_link_kind, 4);

FIELD(ddl_endpoint_config, struct_size, 0, 4);
FIELD(ddl_endpoint_config, sockets, 4, 4);
FIELD(ddl_endpoint_config, secret, 8, 8);
FIELD(ddl_endpoint_config, host, 16, 8);
FIELD(ddl_endpoint_config, interfaces, 24, 8);
FIELD(ddl_endpoint_config, ports, 32, 8);
FIELD(ddl_endpoint_config, encrypt, 40, 4);
FIELD(ddl_endpoint_config, reserved, 44, 4);
SIZE(ddl_endpoint_config, 48);

VALUE(DDL_INVARIANT_NONE, -1);
VALUE(DDL_INVARIANT_SIZE, -2);
VALUE(DDL_WIRE_F32, 1);
VALUE(DDL_WIRE_INT8, 2);
VALUE(DDL_WIRE_INT4, 3);
VALUE(DDL_WIRE_BF16, 4);
FIELD(ddl_comm_config, struct_size, 0, 4);
FIELD(ddl_comm_config, links, 4, 4);
FIELD(ddl_comm_config, tag, 8, 8);
FIELD(ddl_comm_config, epoch, 16, 8);
FIELD(ddl_comm_config, timeout_ms, 24, 8);
FIELD(ddl_comm_config, operation_timeout_ms, 32, 8);
FIELD(ddl_comm_config, segment_bytes, 40, 8);
FIELD(ddl_comm_config, heartbeat_ms, 48, 8);
FIELD(ddl_comm_config, suspect_ms, 56, 8);
FIELD(ddl_comm_config, dead_ms, 64, 8);
FIELD(ddl_comm_config, stall_warn_ms, 72, 8);
FIELD(ddl_comm_config, invariant, 80, 4);
FIELD(ddl_comm_config, wire, 84, 4);
SIZE(ddl_comm_config, 88);

FIELD(ddl_counters, struct_size, 0, 4);
FIELD(ddl_counters, reserved, 4, 4);
FIELD(ddl_counters, operations, 8, 8);
FIELD(ddl_counters, bytes, 16, 8);
FIELD(ddl_counters, pending, 24, 8);
FIELD(ddl_counters, deaths, 32, 8);
FIELD(ddl_counters, detection_ns, 40, 8);
SIZE(ddl_counters, 48);

FIELD(ddl_options, struct_size, 0, 4);
FIELD(ddl_options, memory, 4, 4);
FIELD(ddl_options, timeout_ms, 8, 8);
FIELD(ddl_options, queued, 16, 4);
FIELD(ddl_options, wait_ms, 20, 4);
FIELD(ddl_options, user, 24, 8);
FIELD(ddl_options, name, 32, 8); /* from here on: 0.2 */
FIELD(ddl_options, prescale, 40, 8);
FIELD(ddl_options, postscale, 48, 8);
FIELD(ddl_options, group, 56, 8);
FIELD(ddl_options, stream, 64, 8);
FIELD(ddl_options, residual, 72, 8);
FIELD(ddl_options, wire, 80, 4);
FIELD(ddl_options, reserved, 84, 4);
SIZE(ddl_options, 88);
