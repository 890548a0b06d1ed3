// SPDX-License-Identifier: Apache-2.0
// A libddl comm with the other resources of a process group.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "callbacks.hpp"
#include "completion.hpp"
#include "ddl/ddl.h"
#include "executor.hpp"
#include "extensions.hpp"
#include "shared_memory.hpp"

namespace ddl_torch
{

// c10d's abort hooks, by their ids. Each may be a function of Python, which takes the GIL to be
// copied or destroyed; so they are shared.
using Hooks = std::map<int64_t, std::shared_ptr<const std::function<void()>>>;

// An endpoint. A process has one, which is created for the first group, shared by all groups and
// destroyed with the last. If several ranks of one group are threads of a process, each needs an
// endpoint; all but the first of them create their own.
class Endpoint
{
  public:
    static std::shared_ptr<Endpoint> of_this_process();
    // Return this process's endpoint if there is one; else null.
    static std::shared_ptr<Endpoint> current();
    // Return an endpoint that no other caller of this function has: the process's if it is free.
    static std::shared_ptr<Endpoint> own();

    Endpoint();
    ~Endpoint();
    Endpoint(const Endpoint &) = delete;

    // Return its address, as ddl_comm_create takes it.
    std::string address() const;

    ddl_endpoint *const handle;
    const std::shared_ptr<Pool> pool; // memory for tensors

  private:
    const pid_t owner_;
};

// Return a group's tag, which is made of another group's tag (0 if there is none) and a name. It is
// equal on all hosts, unlike std::hash, and never 0, which has a meaning of its own.
uint64_t derive_tag(uint64_t tag, const std::string &name);

// Design notes.
//
// close() destroys the comm. c10d calls it from destroy_process_group, the destructor or the exit
// of the interpreter, in any order and more than once, perhaps while other threads are in an
// operation. So every call into the library holds a Use. close() refuses new Uses, waits for the
// existing ones, aborts the comm if they take too long, and destroys it when no Use is left.
//
// A forked child has neither the threads nor the connections. There close() only refuses new Uses.
class Group
{
  public:
    // Exchange addresses with the other ranks through the store and join them. Blocks at most
    // `timeout`; all ranks must call it. Throws DistBackendError that names the missing ranks.
    // `invariant` here and below: that of ddl_comm_config.
    static std::shared_ptr<Group> join(c10d::Store &store, int rank, int size,
                                       std::chrono::milliseconds timeout, int invariant);

    // Create a group of some of this group's ranks, in the given order, without a store, because
    // their addresses are known. A counter distinguishes groups with the same ranks and name.
    // Return nullptr if this group is closed.
    std::shared_ptr<Group> derive(const std::vector<int> &ranks, const std::string &name,
                                  std::chrono::milliseconds timeout, int invariant);

    // The same for given addresses in the order of ranks. A call of one member joins those calls of
    // the others that have the same tag.
    static std::shared_ptr<Group> among(std::shared_ptr<Endpoint> endpoint,
                                        std::vector<std::vector<uint8_t>> addresses, int rank,
                                        uint64_t tag, std::chrono::milliseconds creation_timeout,
                                        std::chrono::milliseconds timeout, int invariant);

    // The open groups of this process, in the order of creation.
    static std::vector<std::shared_ptr<Group>> all();

    // The default group in which this process has the given rank: the last one created, while it is
    // open. Each thread that is a rank has its own.
    static void set_world(int rank, const std::shared_ptr<Group> &group);
    static std::shared_ptr<Group> world(int rank);

    ~Group();
    Group(const Group &) = delete;

    // The right to use the comm while it exists; false if the group is closed.
    class Use
    {
      public:
        explicit Use(Group &group);
        ~Use()
        {
            leave();
        }
        void leave();
        Use(const Use &) = delete;

        explicit operator bool() const
        {
            return group_;
        }
        ddl_comm *comm() const
        {
            return group_->comm_;
        }

      private:
        Group *group_;
    };
    Use use()
    {
        return Use(*this);
    }

    // Only for holders of a Use.
    ddl_comm *comm() const
    {
        return comm_;
    }
    Completion &completion()
    {
        return *completion_;
    }

    int rank() const
    {
        return rank_;
    }
    int size() const
    {
        return int(addresses_.size());
    }
    // Also true in a forked child.
    bool closed() const;
    // Return the reason why it was closed, for messages.
    std::string closing_reason() const;

    // Return the tag that distinguishes this group from all others, equal on all its ranks.
    uint64_t tag() const
    {
        return tag_;
    }

    // Return the object that orders the callbacks of the group's futures; null if they have no
    // order.
    const std::shared_ptr<Callbacks> &callbacks() const
    {
        return callbacks_;
    }
    // Do not order them: a future that is complete runs its callbacks in the thread that adds them,
    // as PyTorch's own futures do. Called before the first operation.
    void run_callbacks_at_once()
    {
        callbacks_.reset();
    }

    // End the comm on all ranks. Does nothing if closed.
    void abort(const std::string &reason);
    // True if abort() was called on this rank.
    bool revoked() const
    {
        return revoked_;
    }

    // Leave the group; further calls do nothing. The caller must not hold the GIL. Blocks for about
    // a second if pending operations do not end.
    void close();

    // The same for this group and those that were derived from it, without a grace period: pending
    // operations fail with `reason`.
    void end(const std::string &reason);

    // Set the hooks that run when an operation finds that the comm has failed, once in the group's
    // life.
    void on_failure(std::shared_ptr<const Hooks> hooks);
    bool watches_failures() const;
    void failed();

    // Seconds that operations may take beyond their timeout, see Backend::addEphemeralTimeout().
    Extensions &extensions()
    {
        return extensions_;
    }

    // Return the executor that shows the group's collective operations to a profiler, on one thread
    // because they run one after the other.
    Executor &profile_track();

    // Close all groups of this process, and wait for the callbacks of futures.
    static void close_all();

  private:
    using Addresses = std::vector<std::vector<uint8_t>>;

    Group(std::shared_ptr<Endpoint> endpoint, Addresses addresses, int rank, ddl_comm *comm,
          uint64_t tag);

    static std::shared_ptr<Group> create(std::shared_ptr<Endpoint> endpoint, Addresses addresses,
                                         int rank, ddl_comm_config config,
                                         std::chrono::milliseconds timeout);

    void leave(double grace, const std::string &reason);
    void leak(const char *why);

    std::shared_ptr<Endpoint> endpoint_;
    const Addresses addresses_; // addresses of the ranks' endpoints
    const int rank_;
    mutable std::mutex mutex_;
    std::map<std::string, uint64_t> derived_;    // number of groups, by ranks and name
    std::vector<std::weak_ptr<Group>> children_; // the derived groups
    std::string closing_reason_ = "the process group has been shut down";
    std::shared_ptr<const Hooks> hooks_;
    std::atomic<bool> revoked_{false};
    bool failed_ = false;
    Extensions extensions_;
    ddl_comm *comm_;
    const uint64_t tag_;
    std::unique_ptr<Completion> completion_;
    std::shared_ptr<Callbacks> callbacks_{std::make_shared<Callbacks>(tag_)};
    Executor *profile_track_ = nullptr; // never destroyed, as its thread may outlive the group
    std::atomic<bool> closed_{false};
    std::atomic<int> inside_{0};
    const pid_t owner_;
};

} // namespace ddl_torch
