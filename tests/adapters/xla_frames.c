/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for what calls a handler in a compiled program of XLA on a GPU: it makes the frame of
 * the call, and answers for the stream and for errors. */
#include <stdio.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

enum { MOST = 8 };

struct XLA_FFI_ExecutionContext {
    void *stream;
};

struct XLA_FFI_Error {
    int code;
    char text[512];
};

static struct XLA_FFI_Error failed;

static XLA_FFI_Error *error_create(XLA_FFI_Error_Create_Args *args)
{
    failed.code = (int)args->errc;
    snprintf(failed.text, sizeof failed.text, "%s", args->message);
    return &failed;
}

static XLA_FFI_Error *stream_get(XLA_FFI_Stream_Get_Args *args)
{
    args->stream = args->ctx->stream;
    return NULL;
}

/* An array of one dimension, or a token. */
typedef struct array {
    void *data;
    int64_t count;
    int64_t type;
} array;

typedef struct number {
    const char *name;
    int64_t value;
} number;

static void describe(XLA_FFI_Buffer *buffer, array *from)
{
    *buffer = (XLA_FFI_Buffer){.struct_size = XLA_FFI_Buffer_STRUCT_SIZE,
                               .dtype = (XLA_FFI_DataType)from->type,
                               .data = from->data,
                               .rank = from->type != XLA_FFI_DataType_TOKEN,
                               .dims = &from->count};
}

/* Returns the error's code, and its text; 0: there is none. */
int frames_call(XLA_FFI_Handler *handler, void *stream, const char *kind, number *numbers,
                int n_numbers, array *given, int n_given, array *results, int n_results,
                const char **text)
{
    XLA_FFI_Api api = {.struct_size = XLA_FFI_Api_STRUCT_SIZE,
                       .XLA_FFI_Error_Create = error_create,
                       .XLA_FFI_Stream_Get = stream_get};
    XLA_FFI_ExecutionContext context = {stream};
    XLA_FFI_Buffer buffers[2 * MOST];
    void *args[MOST], *rets[MOST], *values[MOST + 1];
    XLA_FFI_ArgType arg_types[MOST];
    XLA_FFI_RetType ret_types[MOST];
    XLA_FFI_AttrType value_types[MOST + 1];
    XLA_FFI_ByteSpan names[MOST + 1], *name_list[MOST + 1];
    XLA_FFI_Scalar scalars[MOST];
    XLA_FFI_ByteSpan word = {kind, strlen(kind)};
    for (int i = 0; i < n_given; i++) {
        describe(&buffers[i], &given[i]);
        args[i] = &buffers[i];
        arg_types[i] = XLA_FFI_ArgType_BUFFER;
    }
    for (int i = 0; i < n_results; i++) {
        describe(&buffers[MOST + i], &results[i]);
        rets[i] = &buffers[MOST + i];
        ret_types[i] = XLA_FFI_RetType_BUFFER;
    }
    for (int i = 0; i <= n_numbers; i++) {
        const char *name = i ? numbers[i - 1].name : "kind";
        names[i] = (XLA_FFI_ByteSpan){name, strlen(name)};
        name_list[i] = &names[i];
        value_types[i] = i ? XLA_FFI_AttrType_SCALAR : XLA_FFI_AttrType_STRING;
        if (i)
            scalars[i - 1] = (XLA_FFI_Scalar){XLA_FFI_DataType_S64, &numbers[i - 1].value};
        values[i] = i ? (void *)&scalars[i - 1] : &word;
    }
    XLA_FFI_CallFrame frame = {
        .struct_size = XLA_FFI_CallFrame_STRUCT_SIZE,
        .api = &api,
        .ctx = &context,
        .stage = XLA_FFI_ExecutionStage_EXECUTE,
        .args = {.struct_size = XLA_FFI_Args_STRUCT_SIZE,
                 .size = n_given,
                 .types = arg_types,
                 .args = args},
        .rets = {.struct_size = XLA_FFI_Rets_STRUCT_SIZE,
                 .size = n_results,
                 .types = ret_types,
                 .rets = rets},
        .attrs = {.struct_size = XLA_FFI_Attrs_STRUCT_SIZE,
                  .size = n_numbers + 1,
                  .types = value_types,
                  .names = name_list,
                  .attrs = values},
    };
    XLA_FFI_Error *error = handler(&frame);
    *text = error ? error->text : "";
    return error ? error->code : 0;
}
