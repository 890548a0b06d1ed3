// SPDX-License-Identifier: Apache-2.0
// A stand-in for an accelerator: a device of PyTorch (PrivateUse1) whose memory the host cannot
// touch. Operators that it lacks run on the CPU. It has streams in name only: `copied_in` tells in
// which one the last copy to or from the host was made.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/extension.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>

namespace
{

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::PrivateUse1;

// A memory file, mapped for nobody and for the copies. Nothing is freed: the tests need little.
class Memory
{
  public:
    Memory()
    {
        int file = memfd_create("accelerator", 0);
        TORCH_CHECK(file >= 0 && ftruncate(file, kBytes) == 0, "no memory file");
        device_ = map(file, PROT_NONE);
        host_ = map(file, PROT_READ | PROT_WRITE);
        close(file);
    }

    void *take(size_t bytes)
    {
        size_t at = used_.fetch_add((bytes + 63) / 64 * 64);
        TORCH_CHECK(at + bytes <= kBytes, "the accelerator is out of memory");
        return device_ + at;
    }

    void *for_copies(const void *address) const
    {
        return host_ + (static_cast<const char *>(address) - device_);
    }

  private:
    static constexpr size_t kBytes = size_t(1) << 30;

    static char *map(int file, int access)
    {
        void *at = mmap(nullptr, kBytes, access, MAP_SHARED, file, 0);
        TORCH_CHECK(at != MAP_FAILED, "cannot map the memory file");
        return static_cast<char *>(at);
    }

    char *device_, *host_;
    std::atomic<size_t> used_{0};
};

Memory &memory()
{
    static Memory *only = new Memory;
    return *only;
}

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        void *at = bytes ? memory().take(bytes) : nullptr;
        return {at, at, &keep, c10::Device(kType, 0)};
    }
    static void keep(void *)
    {
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return &keep;
    }
    void copy_data(void *to, const void *from, size_t bytes) const override
    {
        memcpy(memory().for_copies(to), memory().for_copies(from), bytes);
    }
};
Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

thread_local c10::StreamId current = 0;
std::atomic<c10::StreamId> last_copy{-1};

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
    c10::Stream getStream(c10::Device device) const override
    {
        return c10::Stream(c10::Stream::UNSAFE, device, current);
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        c10::Stream before = getStream(getDevice());
        current = stream.id();
        return before;
    }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return 1;
    }
    void record(void **, const c10::Stream &, const c10::DeviceIndex,
                const c10::EventFlag) const override
    {
    }
    void block(void *, const c10::Stream &) const override
    {
    }
    bool queryEvent(void *) const override
    {
        return true;
    }
    void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override
    {
    }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Backward passes ask for it.
struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override
    {
        return true;
    }
    bool isAvailable() const override
    {
        return true;
    }
    bool hasPrimaryContext(c10::DeviceIndex) const override
    {
        return true;
    }
};

// A tensor of the CPU over the memory of this one.
at::Tensor opened(const at::Tensor &tensor)
{
    if (tensor.is_cpu())
        return tensor;
    return at::from_blob(memory().for_copies(tensor.data_ptr()), tensor.sizes(), tensor.strides(),
                         tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool)
{
    last_copy = current;
    if (to.numel())
        opened(to).copy_(opened(from));
    return to;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format)
{
    return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(kKey),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>)
{
    return at::detail::empty_strided_generic(sizes, strides, &allocator, c10::DispatchKeySet(kKey),
                                             c10::dtype_or_default(dtype));
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to)
{
    if (to.sizes() != from.sizes()) {
        at::Tensor fresh = at::empty(from.sizes(), to.options());
        to.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
        to.unsafeGetTensorImpl()->set_sizes_and_strides(fresh.sizes(), fresh.strides());
    }
    return copy_from(from, to, false);
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
    return opened(self).item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("as_strided", as_strided);
    m.impl("view", view);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("_local_scalar_dense", local_scalar_dense);
}

void fall_back(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
    at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    m.def("use_stream", [](c10::StreamId stream) { current = stream; });
    m.def("copied_in", [] { return last_copy.load(); });
}
