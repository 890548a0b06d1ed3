/* SPDX-License-Identifier: Apache-2.0 */
/* The lock is held while a kernel is compiled, so no kernel is compiled twice. */
#include "device/images.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 128 };

typedef struct image {
    struct image *next;
    char name[NAME_MAX_BYTES]; /* of the GPU's architecture and the macros */
    char *bytes;
} image;

struct ddl__images {
    pthread_mutex_t lock;
    image *first;
};

void *ddl__images_create(const ddl__digest *endpoint, const void *unused)
{
    ddl__images *images = calloc(1, sizeof *images);
    (void)endpoint;
    (void)unused;
    if (images)
        pthread_mutex_init(&images->lock, NULL);
    else
        ddl__fail(DDL_ENOMEM, "no memory for the kernels of a GPU");
    return images;
}

void ddl__images_destroy(void *object)
{
    ddl__images *images = object;
    for (image *i; (i = images->first);) {
        images->first = i->next;
        free(i->bytes);
        free(i);
    }
    pthread_mutex_destroy(&images->lock);
    free(images);
}

static image *make(const ddl__nvrtc *nvrtc, const char *const *macros, int n)
{
    image *made = calloc(1, sizeof *made);
    if (!made) {
        ddl__fail(DDL_ENOMEM, "no memory for the kernels of a GPU");
        return NULL;
    }
    if (ddl__nvrtc_compile(nvrtc, macros, n, &made->bytes) == DDL_OK)
        return made;
    free(made);
    return NULL;
}

static void name_image(char *name, const ddl__nvrtc *nvrtc, const char *const *macros, int n)
{
    int at =
        snprintf(name, NAME_MAX_BYTES, "%s %d", nvrtc->is_exact ? "sm" : "compute", nvrtc->arch);
    for (int i = 0; i < n && at < NAME_MAX_BYTES; i++)
        at += snprintf(name + at, NAME_MAX_BYTES - (size_t)at, " %s", macros[i]);
}

const char *ddl__images_get(ddl__images *images, const ddl__nvrtc *nvrtc, const char *const *macros,
                            int n)
{
    char name[NAME_MAX_BYTES];
    name_image(name, nvrtc, macros, n);
    pthread_mutex_lock(&images->lock);
    image *found = images->first;
    while (found && strcmp(found->name, name))
        found = found->next;
    if (!found && (found = make(nvrtc, macros, n))) {
        memcpy(found->name, name, sizeof name);
        found->next = images->first;
        images->first = found;
    }
    pthread_mutex_unlock(&images->lock);
    return found ? found->bytes : NULL;
}
