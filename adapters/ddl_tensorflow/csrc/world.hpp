// SPDX-License-Identifier: Apache-2.0
// The comm of all ranks, or of some of them, and its pending operations.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/status/status.h"
#include "ddl/ddl.h"

namespace ddl_tensorflow
{

// A call of libddl with all other arguments bound.
using Submit = std::function<ddl_status(ddl_comm *, const ddl_options *, ddl_work **)>;
using Done = std::function<void(const absl::Status &)>;

// Design notes.
//
// TensorFlow starts the operations of a graph in a different order on each rank. So these have
// names, by which libddl matches them. Operations that are called eagerly have no names and are
// matched by their order. libddl rejects a second pending operation of the same name (a loop, two
// functions at once), so those wait here, in the order of their calls.
//
// No thread of TensorFlow is blocked: the thread that starts an operation continues. The world's
// own thread takes finished works from the comm's queue and calls `done`, which may run
// TensorFlow's next steps and start further operations. A work may be taken from the queue before
// the call that submitted it has returned; the later of the two settles it.
//
// `mutex_` guards names, counts and flags. It is never held while libddl or `done` is called.
class World
{
  public:
    // The caller keeps the comm and destroys it after close().
    explicit World(ddl_comm *comm);
    ~World();

    // Return the world with this number: 0 has all ranks, others have some. Null before it is
    // opened, and after all worlds were closed.
    static std::shared_ptr<World> find(int64_t number);
    static void open(int64_t number, ddl_comm *comm);
    static void close_all();

    int rank() const;
    int size() const;

    // Start an operation. `what` names it in messages. If the name is "", it is matched by order.
    // `done` is called exactly once, possibly before this returns.
    void start(std::string what, std::string name, Submit submit, Done done);

    // Refuse new operations, wait a second for the pending ones, then abort them.
    void close();

  private:
    struct Call;

    void submit(Call *call);
    void settle(Call *call);
    void finish(Call *call, const absl::Status &status);
    void run();

    ddl_comm *const comm_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int started_ = 0;   // calls that are not done, including calls that wait for their name
    int submitted_ = 0; // calls that are submitted to libddl
    bool closing_ = false;
    bool stopping_ = false;
    std::unordered_map<std::string, std::deque<Call *>>
        names_; // pending names, and the calls that wait for each
    std::thread thread_;
};

} // namespace ddl_tensorflow
