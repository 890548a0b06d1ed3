/* SPDX-License-Identifier: Apache-2.0 */
/* images.h - the kernels that were compiled in this process, kept for all comms of an endpoint. To
 * compile one takes a part of a second. */
#ifndef DDL_DEVICE_IMAGES_H
#define DDL_DEVICE_IMAGES_H

#include "device/device.h"
#include "device/nvrtc.h"

/* The image for these macros, compiled when it is first wanted. It lives as long as the images.
 * NULL with the message set. */
const char *ddl__images_get(ddl__images *images, const ddl__nvrtc *nvrtc, const char *const *macros,
                            int n);

#endif
