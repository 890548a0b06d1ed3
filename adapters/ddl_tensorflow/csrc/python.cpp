// SPDX-License-Identifier: Apache-2.0
// An operation that Python performs. It does not hold a thread of TensorFlow while it waits: Python
// gets a request, keeps it as long as it needs, and finishes it on any thread.
#include <atomic>
#include <string>
#include <utility>

#include "kernel.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace ddl_tensorflow
{

namespace
{

// One run of the operation. Its inputs and outputs are valid until it is finished.
struct Request {
    OpKernelContext *context;
    AsyncOpKernel::DoneCallback done;
};

// The type of Python's function. It returns soon, and does not raise.
using Begin = void (*)(Request *request, int64_t call, const char *name, int inputs);
std::atomic<Begin> python{nullptr};

class Python final : public AsyncOpKernel
{
  public:
    explicit Python(OpKernelConstruction *c) : AsyncOpKernel(c)
    {
        OP_REQUIRES_OK(c, c->GetAttr("tensor_name", &name_));
        OP_REQUIRES_OK(c, c->GetAttr("call", &call_));
        for (tensorflow::DataType type : c->input_types())
            OP_REQUIRES(c, dtype_of(type) != ddl_dtype{},
                        absl::UnimplementedError("tensors of " + tensorflow::DataTypeString(type) +
                                                 " cannot be moved"));
    }

    void ComputeAsync(OpKernelContext *c, DoneCallback done) override
    {
        // Iterations of a loop may run one node several times at once.
        const int64_t iteration = c->frame_iter().iter_id;
        const std::string name = iteration > 0 ? name_ + "#" + std::to_string(iteration) : name_;
        python.load()(new Request{c, std::move(done)}, call_, name.c_str(), c->num_inputs());
    }

  private:
    std::string name_;
    int64_t call_ = 0;
};

} // namespace

REGISTER_KERNEL_BUILDER(Name("DdlPython").Device(tensorflow::DEVICE_CPU), Python);
REGISTER_KERNEL_BUILDER(
    Name("DdlPython").Device(tensorflow::DEVICE_DEFAULT).HostMemory("inputs").HostMemory("results"),
    Python);

// Set Python's function, before the first operation runs.
EXPORT void ddl_tensorflow_set_python(Begin function)
{
    python.store(function);
}

// Return the memory of an input, and set its type and its dimensions, of which there are at most
// 254.
EXPORT const void *ddl_tensorflow_input(Request *request, int index, int *type, int *dims,
                                        int64_t *sizes)
{
    const Tensor &tensor = request->context->input(index);
    *type = tensor.dtype();
    *dims = tensor.dims();
    for (int i = 0; i < tensor.dims(); i++)
        sizes[i] = tensor.dim_size(i);
    return tensor.tensor_data().data();
}

// Return the memory of a new output of the type that the graph expects. Returns NULL if there is
// none; the request then fails with the reason.
EXPORT void *ddl_tensorflow_output(Request *request, int index, int dims, const int64_t *sizes)
{
    Tensor *tensor = nullptr;
    const absl::Status status =
        request->context->allocate_output(index, TensorShape({sizes, size_t(dims)}), &tensor);
    if (!status.ok()) {
        request->context->SetStatus(status);
        return nullptr;
    }
    return const_cast<char *>(tensor->tensor_data().data());
}

// End the request, with an error if code is not 0. It must not be used afterwards.
EXPORT void ddl_tensorflow_finish(Request *request, int code, const char *message)
{
    if (code)
        request->context->SetStatus(absl::Status(static_cast<absl::StatusCode>(code), message));
    const auto done = std::move(request->done);
    delete request;
    done();
}

} // namespace ddl_tensorflow
