/* SPDX-License-Identifier: Apache-2.0 */
#include "extensions.h"

#include "standin.h"

static void run_function(work *w)
{
    w->with.function.run(w->with.function.argument, w->context->device);
}

CUresult standin_launch(CUstream handle, void (*run)(void *argument, int device), void *argument)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    work *w = standin_work_create(run_function);
    if (!w)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    w->with.function.run = run;
    w->with.function.argument = argument;
    return standin_leave(standin_push(s, w, NULL));
}

standin_part standin_part_take(CUdeviceptr address, size_t bytes, int device, bool writes,
                               const char *user)
{
    span s = standin_span_take(
        (uintptr_t)address, bytes, device,
        writes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ, user);
    return (standin_part){s.at, s.bytes, s.memory};
}

void standin_part_drop(standin_part *part)
{
    span s = {part->at, part->bytes, part->memory};
    standin_span_drop(&s);
}
