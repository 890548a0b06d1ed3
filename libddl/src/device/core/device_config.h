/* SPDX-License-Identifier: Apache-2.0 */
/* device_config.h - what a device is made with. */
#ifndef DDL_DEVICE_CORE_DEVICE_CONFIG_H
#define DDL_DEVICE_CORE_DEVICE_CONFIG_H

#include "engine/engine.h"

typedef struct ddl__device ddl__device;

typedef struct ddl__device_config {
    ddl__engine *engine;
    int rank, size;
    char *const *names;            /* by rank: "rank 2 on host"; they outlive the device */
    ddl__regions *regions;         /* of the endpoint */
    const ddl__topology *topology; /* of the comm */
    uint64_t direct_bytes;         /* operations of this size and more may go by NCCL; 0: none do */
    bool uses_nccl;                /* this rank may use NCCL */
} ddl__device_config;

#endif
