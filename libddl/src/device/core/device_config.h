/* SPDX-License-Identifier: Apache-2.0 */
/* device_config.h - the configuration of a device. */
#ifndef DDL_DEVICE_CORE_DEVICE_CONFIG_H
#define DDL_DEVICE_CORE_DEVICE_CONFIG_H

#include "engine/engine.h"

typedef struct ddl__device ddl__device;

typedef struct ddl__device_config {
    ddl__engine *engine;
    int rank, size;
    char *const *names;            /* "rank 2 on host", by rank; they outlive the device */
    ddl__regions *regions;         /* the endpoint's regions */
    const ddl__topology *topology; /* the comm's topology */
    bool in_order;         /* reductions of floats have an order, which NCCL does not follow */
    uint64_t direct_bytes; /* minimum size of an operation that may use NCCL; 0: no operation may */
    bool uses_nccl;        /* this rank may use NCCL */
} ddl__device_config;

#endif
