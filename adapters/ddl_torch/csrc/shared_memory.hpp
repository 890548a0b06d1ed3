// SPDX-License-Identifier: Apache-2.0
// Memory of tensors that other ranks on this host read and write where it is: that of ddl_alloc.
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

// Which tensors lie there: none; those that PyTorch allocates for communication; all large ones.
enum class Sharing { none, buffers, all };

// From now on, in this process. Its forked children share none until they say otherwise. Only
// Sharing::all replaces PyTorch's allocator, for good; it then passes on what is not shared.
void share(Sharing what);
Sharing shared();

// A tensor of one dimension like at::empty's, there if it is long enough and that can be had.
at::Tensor empty_shared(int64_t elements, const at::TensorOptions &options);

// The shared memory of one endpoint. What is freed is kept for the next tensor of its size: peers
// have mapped it already, and it has pages. Only sizes that come again are kept: the first buckets
// of DistributedDataParallel, which it replaces after a step, are not.
//
// Design notes. A forked child has copies of the memory, and frees them. It never takes the lock,
// which another thread may have held at the fork.
class Pool : public std::enable_shared_from_this<Pool>
{
  public:
    explicit Pool(ddl_endpoint *endpoint);
    Pool(const Pool &) = delete;

    // Null if there is none, or too much is in use.
    at::DataPtr allocate(size_t bytes);

    // Whether a pool has allocated this.
    static bool owns(const at::DataPtr &pointer);

    // An operation has failed: the library may have made its memory private. None that there is
    // now is used again.
    void renew();

    // The endpoint is about to be destroyed. Memory that is in use lives on until it is freed.
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
    std::set<size_t> kept_;  // of these, those that were allocated again
    size_t blocks_ = 0;      // in use or idle
    uint64_t age_ = 0;       // calls of renew
};

} // namespace ddl_torch
