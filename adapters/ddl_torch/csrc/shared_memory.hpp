// SPDX-License-Identifier: Apache-2.0
// Memory of ddl_alloc for tensors, which other ranks on this host read and write in place.
#pragma once

#include <ATen/ATen.h>

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>

#include "ddl/ddl.h"

namespace ddl_torch
{

// The tensors in shared memory: none; those that PyTorch allocates for communication; all large
// ones; the buffers, once a group of this process has had two ranks on this host.
enum class Sharing { none, buffers, all, automatic };

// Set what this process shares from now on. Forked children share nothing until they call this.
// Only Sharing::all replaces PyTorch's allocator, permanently; it then forwards allocations that
// are not shared.
void share(Sharing what);
// A group has other ranks on this host.
void found_ranks_on_host();
// Return what is shared: none, buffers or all.
Sharing shared();

// Return a tensor of one dimension like at::empty's, in shared memory if it is long enough and
// memory is available.
at::Tensor empty_shared(int64_t elements, const at::TensorOptions &options);

// The shared memory of one endpoint. Freed memory is kept for the next tensor of its size: peers
// have already mapped it, and it has pages. Only sizes that are allocated repeatedly are kept, so
// not the first buckets of DistributedDataParallel, which it replaces after a step.
//
// Design notes. A forked child has copies of the memory, and frees them. It never takes the lock,
// which another thread may have held at the fork.
class Pool : public std::enable_shared_from_this<Pool>
{
  public:
    explicit Pool(ddl_endpoint *endpoint);
    Pool(const Pool &) = delete;

    // Return null if there is no memory, or if too much is in use.
    at::DataPtr allocate(size_t bytes);

    // Return true if a pool has allocated this memory.
    static bool owns(const at::DataPtr &pointer);

    // Stop reusing the current memory, because an operation has failed: the library may have made
    // its memory private.
    void renew();

    // Prepare for the destruction of the endpoint. Memory in use stays valid until it is freed.
    void close();

  private:
    struct Block {
        std::shared_ptr<Pool> pool;
        void *memory;
        size_t bytes;
        uint64_t age;
        pid_t owner;
    };
    struct Idle {
        void *memory;
        size_t bytes;
    };

    static void release(void *block);
    void *take(size_t bytes);
    bool keep(const Block &block);
    void drop_oldest();

    std::mutex mutex_;
    ddl_endpoint *endpoint_; // null: closed
    std::deque<Idle> idle_;  // the oldest first
    std::set<size_t> freed_; // sizes that were freed
    std::set<size_t> kept_;  // freed sizes that were allocated again
    size_t blocks_ = 0;      // in use or idle
    uint64_t age_ = 0;       // calls of renew
};

} // namespace ddl_torch
