/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the stand-in's functions by name, for programs that do not use dlsym. */
#include <string.h>

#include "standin.h"

typedef void function(void);

typedef struct entry {
    const char *name;
    function *function;
    int since;
} entry;

#define ENTRY(base, symbol, since) {#base, (function *)symbol, since},
static const entry entries[] = {CUDA_FUNCTIONS(ENTRY)};

CUresult cuGetProcAddress_v2(const char *name, void **pointer, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result = standin_enter_early(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    if (!name || !pointer || version > STANDIN_VERSION || flags > 2)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    *pointer = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (strcmp(entries[i].name, name))
            continue;
        if (entries[i].since <= version) { /* later entries of a name are newer */
            memcpy(pointer, &entries[i].function, sizeof *pointer);
            found = CU_GET_PROC_ADDRESS_SUCCESS;
        } else if (!*pointer) {
            found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        }
    }
    if (status)
        *status = found;
    return standin_leave(CUDA_SUCCESS);
}
