// SPDX-License-Identifier: Apache-2.0
// A stand-in for PyTorch's device "cuda", in a build of PyTorch for CPUs, on the stand-in for the
// CUDA driver (libddl/tests/cuda_standin): memory that the host cannot touch, streams and events.
// Operators that it lacks run on the CPU, after what the current stream holds.
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <vector>

extern "C" {
#include "cuda_functions.h"
}

namespace
{

constexpr auto kType = c10::DeviceType::CUDA;

#define CU(call) TORCH_CHECK((call) == CUDA_SUCCESS, #call " fails")

void start()
{
    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
}

// Threads of PyTorch's have no context.
void enter()
{
    thread_local bool entered = (start(), true);
    (void)entered;
}

CUdeviceptr address(const void *at)
{
    return CUdeviceptr(at);
}

// ---- streams ----

thread_local c10::StreamId current = 0;
std::atomic<c10::StreamId> last_copy{-1};
std::atomic<bool> has_handles{true};

// Number 0 is the default stream. They are never destroyed.
class Streams
{
  public:
    c10::StreamId add()
    {
        enter();
        std::lock_guard<std::mutex> lock(mutex_);
        CUstream stream;
        CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        streams_.push_back(stream);
        return c10::StreamId(streams_.size() - 1);
    }
    CUstream operator[](c10::StreamId id)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return streams_.at(size_t(id));
    }

  private:
    std::mutex mutex_;
    std::vector<CUstream> streams_{nullptr};
};
Streams &streams()
{
    static Streams *only = new Streams;
    return *only;
}

// ---- memory ----

// Like PyTorch's own allocator, it reuses freed memory at once, in the stream of the allocation. It
// keeps memory that was also used in other streams.
class Blocks
{
  public:
    void *take(size_t bytes)
    {
        enter();
        std::lock_guard<std::mutex> lock(mutex_);
        auto &unused = unused_[bytes];
        if (!unused.empty()) {
            void *at = unused.back();
            unused.pop_back();
            return at;
        }
        CUdeviceptr made;
        CU(cuMemAlloc_v2(&made, bytes));
        void *at = reinterpret_cast<void *>(made);
        bytes_[at] = bytes;
        return at;
    }
    void give_back(void *at)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (at && !elsewhere_.count(at))
            unused_[bytes_[at]].push_back(at);
    }
    void use_elsewhere(void *at)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        elsewhere_.insert(at);
    }

  private:
    std::mutex mutex_;
    std::map<void *, size_t> bytes_;
    std::map<size_t, std::vector<void *>> unused_;
    std::set<void *> elsewhere_;
};
Blocks &blocks()
{
    static Blocks *only = new Blocks;
    return *only;
}

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        void *at = bytes ? blocks().take(bytes) : nullptr;
        return {at, at, &give_back, c10::Device(kType, 0)};
    }
    static void give_back(void *at)
    {
        blocks().give_back(at);
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return &give_back;
    }
    void copy_data(void *to, const void *from, size_t bytes) const override
    {
        CU(cuMemcpyDtoDAsync_v2(address(to), address(from), bytes, streams()[current]));
    }
};
Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

// ---- what PyTorch asks a device ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override
    {
        return kType;
    }
    c10::Device exchangeDevice(c10::Device) const override
    {
        return getDevice();
    }
    c10::Device getDevice() const override
    {
        return {kType, 0};
    }
    void setDevice(c10::Device) const override
    {
    }
    void uncheckedSetDevice(c10::Device) const noexcept override
    {
    }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return 1;
    }
    c10::Stream getStream(c10::Device device) const override
    {
        return c10::Stream(c10::Stream::UNSAFE, device, current);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override
    {
        return c10::Stream(c10::Stream::UNSAFE, device, streams().add());
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        c10::Stream before = getStream(getDevice());
        current = stream.id();
        return before;
    }
    void *getStreamNativeHandle(const c10::Stream stream) const override
    {
        return has_handles ? streams()[stream.id()] : nullptr;
    }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override
    {
        if (event)
            cuEventDestroy_v2(static_cast<CUevent>(event));
    }
    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex,
                const c10::EventFlag) const override
    {
        enter();
        if (!*event) {
            CUevent made;
            CU(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
            *event = made;
        }
        CU(cuEventRecord(static_cast<CUevent>(*event), streams()[stream.id()]));
    }
    void block(void *event, const c10::Stream &stream) const override
    {
        enter();
        CU(cuStreamWaitEvent(streams()[stream.id()], static_cast<CUevent>(event), 0));
    }
    bool queryEvent(void *event) const override
    {
        enter();
        return cuEventQuery(static_cast<CUevent>(event)) == CUDA_SUCCESS;
    }
    void synchronizeEvent(void *event) const override
    {
        enter();
        CU(cuEventSynchronize(static_cast<CUevent>(event)));
    }
    void recordDataPtrOnStream(const c10::DataPtr &data, const c10::Stream &) const override
    {
        blocks().use_elsewhere(data.get());
    }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// Backward passes ask for it.
struct CUDAHooks final : at::CUDAHooksInterface {
    explicit CUDAHooks(at::CUDAHooksArgs)
    {
    }
    void init() const override
    {
    }
    bool hasCUDA() const override
    {
        return true;
    }
    bool isBuilt() const override
    {
        return true;
    }
    bool isAvailable() const override
    {
        return true;
    }
    std::string showConfig() const override
    {
        return "  - CUDA's stand-in\n";
    }
    bool hasPrimaryContext(c10::DeviceIndex) const override
    {
        return true;
    }
    c10::DeviceIndex deviceCount() const override
    {
        return 1;
    }
    c10::DeviceIndex getCurrentDevice() const override
    {
        return 0;
    }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override
    {
        return 0;
    }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override
    {
        return 0;
    }
};
using at::CUDAHooksRegistry, at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

// And DistributedDataParallel for this.
struct Timer final : c10d::Timer {
    explicit Timer(c10::Device)
    {
    }
    std::optional<int64_t> measureDifference(Event, Event) override
    {
        return std::nullopt;
    }
};
using c10d::RegistererTimerRegistry, c10d::TimerRegistry;
C10_REGISTER_TYPED_CLASS(TimerRegistry, kType, Timer);

// ---- operators ----

// A copy on the host of what the tensor's elements lie in, after what the stream holds.
at::Tensor read(const at::Tensor &tensor)
{
    if (tensor.is_cpu())
        return tensor;
    enter();
    int64_t span = tensor.numel() ? 1 : 0;
    for (int64_t d = 0; span && d < tensor.dim(); d++)
        span += (tensor.size(d) - 1) * tensor.stride(d);
    at::Tensor host = at::empty({span}, tensor.options().device(at::kCPU));
    if (span)
        CU(cuMemcpyDtoHAsync_v2(host.data_ptr(), address(tensor.data_ptr()), host.nbytes(),
                                streams()[current]));
    CU(cuStreamSynchronize(streams()[current]));
    return host.as_strided(tensor.sizes(), tensor.strides());
}

// The reverse, of what `read` has returned.
void write(const at::Tensor &tensor, const at::Tensor &host)
{
    if (tensor.numel()) {
        CU(cuMemcpyHtoDAsync_v2(address(tensor.data_ptr()), host.data_ptr(),
                                host.storage().nbytes(), streams()[current]));
        CU(cuStreamSynchronize(streams()[current]));
    }
}

at::Tensor &copy(at::Tensor &to, const at::Tensor &from, bool)
{
    last_copy = current;
    if (!to.is_cpu() && !from.is_cpu() && to.is_contiguous() && from.is_contiguous() &&
        to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes()) {
        enter();
        if (to.numel())
            CU(cuMemcpyDtoDAsync_v2(address(to.data_ptr()), address(from.data_ptr()), to.nbytes(),
                                    streams()[current]));
        return to;
    }
    at::Tensor target = read(to);
    target.copy_(read(from));
    if (!to.is_cpu())
        write(to, target);
    return to;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format)
{
    return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>)
{
    return at::detail::empty_strided_generic(sizes, strides, &allocator,
                                             c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                             c10::dtype_or_default(dtype));
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to)
{
    if (to.sizes() != from.sizes()) {
        at::Tensor fresh = at::empty(from.sizes(), to.options());
        to.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
        to.unsafeGetTensorImpl()->set_sizes_and_strides(fresh.sizes(), fresh.strides());
    }
    at::Tensor target = to;
    return copy(target, from, false);
}

at::Tensor as_strided(const at::Tensor &self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset)
{
    return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor view(const at::Tensor &self, at::IntArrayRef sizes)
{
    return at::native::view(self, sizes);
}

at::Scalar local_scalar_dense(const at::Tensor &self)
{
    return read(self).item();
}

TORCH_LIBRARY_IMPL(aten, CUDA, m)
{
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("as_strided", as_strided);
    m.impl("view", view);
    m.impl("copy_", copy);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("_local_scalar_dense", local_scalar_dense);
}

void fall_back(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
    at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, m)
{
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

void sleep_so_long(void *microseconds)
{
    usleep(unsigned(uintptr_t(microseconds)));
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.def("new_stream", [] { return streams().add(); });
    m.def("use_stream", [](c10::StreamId stream) { current = stream; });
    m.def("copied_in", [] { return last_copy.load(); });
    m.def("hide_handles", [] { has_handles = false; }); // as accelerators of other makers
    m.def("sleep", [](unsigned microseconds) {          // delays later work in the current stream
        enter();
        CU(cuLaunchHostFunc(streams()[current], sleep_so_long,
                            reinterpret_cast<void *>(uintptr_t(microseconds))));
    });
}
