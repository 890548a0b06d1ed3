/* SPDX-License-Identifier: Apache-2.0 */
#include "device/core/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define ENTRY(function, symbol, parameters) {#function, #symbol, offsetof(ddl__cuda, function)},
static const struct {
    const char *name, *symbol;
    size_t place;
} functions[] = {DDL__CUDA_FUNCTIONS(ENTRY)};
#undef ENTRY

ddl_status ddl__cuda_open(ddl__cuda *cuda)
{
    /* The driver is never closed, because its threads and its other users in this process
     * continue. */
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "options.memory is DDL_MEMORY_CUDA, but the CUDA driver libcuda.so.1 "
                         "cannot be opened: %s",
                         dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].symbol);
        if (!found)
            return ddl__fail(DDL_EUNSUPPORTED,
                             "the CUDA driver has no %s: install the driver of CUDA 11.7 or later",
                             functions[i].symbol);
        memcpy((char *)cuda + functions[i].place, &found, sizeof found);
    }
    cuda->library = library;
    ddl__cuda_result error = cuda->init(0);
    char text[128];
    if (error == DDL__CUDA_SUCCESS)
        return DDL_OK;
    ddl__cuda_describe(cuda, error, text, sizeof text);
    return ddl__fail(DDL_EUNSUPPORTED, "cannot start the CUDA driver: cuInit: %s", text);
}

const char *ddl__cuda_symbol(const char *function)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, function))
            return functions[i].symbol;
    return function;
}

void ddl__cuda_describe(const ddl__cuda *cuda, ddl__cuda_result error, char *text, size_t size)
{
    const char *name = NULL, *words = NULL;
    if (cuda->error_name(error, &name) != DDL__CUDA_SUCCESS)
        name = NULL;
    if (cuda->error_text(error, &words) != DDL__CUDA_SUCCESS)
        words = NULL;
    if (name)
        snprintf(text, size, "%s: %s", name, words ? words : "no description");
    else
        snprintf(text, size, "error %d", error);
}
