// SPDX-License-Identifier: Apache-2.0
#include "shared_memory.hpp"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <unistd.h>

#include <atomic>

#include "group.hpp"

namespace ddl_torch
{

namespace
{

constexpr size_t kLeast = 128 << 10;    // bytes: below, ddl_alloc returns ordinary memory
constexpr size_t kLeastOfAll = 1 << 20; // bytes: the limit if every tensor takes a block
constexpr size_t kBlocks = 256;         // blocks that an endpoint can share
constexpr size_t kIdleBlocks = 64;

std::atomic<Sharing> sharing{Sharing::none};
std::atomic<pid_t> sharer{0}; // the process that has called share()
std::atomic<bool> has_ranks_on_host{false};

// Round up by at most an eighth, so that tensors of similar sizes use the same memory.
size_t rounded(size_t bytes)
{
    size_t step = kLeast / 8;
    while (step * 16 <= bytes)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

// Allocates tensors of at least `least` bytes; the default allocator handles all others.
class Allocator final : public at::Allocator
{
  public:
    Allocator(size_t least, Sharing from) : least_(least), from_(from)
    {
    }

    at::DataPtr allocate(size_t bytes) override
    {
        if (bytes >= least_ && shared() >= from_)
            if (auto endpoint = Endpoint::current())
                if (auto memory = endpoint->pool->allocate(bytes))
                    return memory;
        return others().allocate(bytes);
    }

    void copy_data(void *to, const void *from, size_t bytes) const override
    {
        default_copy_data(to, from, bytes);
    }

    // Like other memory, ours can be shared by tensors that are copied on write.
    bool is_simple_data_ptr(const at::DataPtr &pointer) const override
    {
        return Pool::owns(pointer) || at::Allocator::is_simple_data_ptr(pointer);
    }

    // PyTorch's allocator from before it was replaced.
    static at::Allocator &others()
    {
        static at::Allocator *const found = c10::GetCPUAllocator();
        return *found;
    }

  private:
    const size_t least_;
    const Sharing from_;
};

// PyTorch keeps pointers to allocators in its storages, so they are never destroyed.
at::Allocator &allocator_of_buffers()
{
    static auto *const allocator = new Allocator(kLeast, Sharing::buffers);
    return *allocator;
}

void replace_allocator()
{
    Allocator::others(); // finds it
    static auto *const allocator = new Allocator(kLeastOfAll, Sharing::all);
    constexpr uint8_t kPriority = 100; // above PyTorch's
    c10::SetCPUAllocator(allocator, kPriority);
}

} // namespace

void share(Sharing what)
{
    sharing.store(what);
    sharer.store(getpid());
    static std::once_flag once;
    if (what == Sharing::all)
        std::call_once(once, replace_allocator);
}

void found_ranks_on_host()
{
    has_ranks_on_host.store(true, std::memory_order_relaxed);
}

Sharing shared()
{
    Sharing what = sharing.load(std::memory_order_relaxed);
    if (what == Sharing::automatic)
        what = has_ranks_on_host.load(std::memory_order_relaxed) ? Sharing::buffers : Sharing::none;
    return what != Sharing::none && sharer.load() == getpid() ? what : Sharing::none;
}

at::Tensor empty_shared(int64_t elements, const at::TensorOptions &options)
{
    const bool plain = options.device().is_cpu() && options.layout() == at::kStrided &&
                       !options.pinned_memory() && !options.requires_grad();
    if (!plain || shared() == Sharing::none)
        return at::empty({elements}, options);
    return at::Tensor(at::detail::empty_generic(
        {elements}, &allocator_of_buffers(), c10::DispatchKeySet(c10::DispatchKey::CPU),
        c10::typeMetaToScalarType(options.dtype()), options.memory_format_opt()));
}

// ---- Pool ----

Pool::Pool(ddl_endpoint *endpoint) : endpoint_(endpoint)
{
}

at::DataPtr Pool::allocate(size_t bytes)
{
    bytes = rounded(bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    void *memory = take(bytes);
    if (!memory)
        return {};
    auto *block = new Block{shared_from_this(), memory, bytes, age_, getpid()};
    return {memory, block, &Pool::release, at::kCPU};
}

void Pool::renew()
{
    std::lock_guard<std::mutex> lock(mutex_);
    age_++;
    while (!idle_.empty())
        drop_oldest();
}

void Pool::close()
{
    std::lock_guard<std::mutex> lock(mutex_);
    endpoint_ = nullptr;
    while (!idle_.empty())
        drop_oldest();
}

// Under the lock.
void *Pool::take(size_t bytes)
{
    if (!endpoint_)
        return nullptr;
    if (freed_.count(bytes))
        kept_.insert(bytes);
    for (auto each = idle_.rbegin(); each != idle_.rend(); ++each)
        if (each->bytes == bytes) {
            void *memory = each->memory;
            idle_.erase(std::next(each).base());
            return memory;
        }
    if (blocks_ == kBlocks && !idle_.empty())
        drop_oldest();
    void *memory = nullptr;
    while (blocks_ < kBlocks && ddl_alloc(endpoint_, bytes, &memory) != DDL_OK) {
        if (idle_.empty())
            return nullptr;
        drop_oldest();
    }
    blocks_ += memory != nullptr;
    return memory;
}

bool Pool::owns(const at::DataPtr &pointer)
{
    return pointer.get_deleter() == &Pool::release;
}

void Pool::release(void *context)
{
    std::unique_ptr<Block> block(static_cast<Block *>(context));
    if (block->owner != getpid() || !block->pool->keep(*block))
        ddl_free(block->memory);
}

// Return false if the block should be freed.
bool Pool::keep(const Block &block)
{
    std::lock_guard<std::mutex> lock(mutex_);
    freed_.insert(block.bytes);
    if (!endpoint_ || block.age != age_ || !kept_.count(block.bytes)) {
        blocks_--;
        return false;
    }
    if (idle_.size() == kIdleBlocks)
        drop_oldest();
    idle_.push_back({block.memory, block.bytes});
    return true;
}

// Under the lock.
void Pool::drop_oldest()
{
    ddl_free(idle_.front().memory);
    idle_.pop_front();
    blocks_--;
}

} // namespace ddl_torch
