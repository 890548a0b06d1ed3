// The comm of all ranks, and the operations under way on it.
#pragma once

#include <atomic>
#include <condition_variable>
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

// One call of libddl, with all its arguments but these.
using Submit = std::function<ddl_status(ddl_comm *, const ddl_options *, ddl_work **)>;
using Done = std::function<void(const absl::Status &)>;

// Design notes.
//
// TensorFlow starts the operations of a graph in an order of its own on each rank. Those of graphs
// therefore have names, by which libddl matches them; those that are called one by one have none
// and are matched by their order. libddl refuses a second operation of a name that is under way
// (a loop, two functions at once), so those wait here, in the order in which they came.
//
// Nothing blocks a thread of TensorFlow: whoever starts an operation goes on, and `done` is called
// by the world's own thread, which takes finished works from the comm's queue. It may run whatever
// TensorFlow continues with, and start further operations. A work may be taken from the queue
// before the call that submitted it has returned; whoever is the second of the two settles it.
//
// `mutex_` guards names, counts and flags. It is never held while libddl or `done` is called.
class World
{
  public:
    // Owns both from here on.
    World(ddl_endpoint *endpoint, ddl_comm *comm);
    ~World();

    // The one that was joined, if any.
    static std::shared_ptr<World> current();
    static void set_current(std::shared_ptr<World> world);

    int rank() const;
    int size() const;
    ddl_comm *comm() const
    {
        return comm_;
    }

    // Start an operation. `what` names it in messages; with a name "" it is matched by order.
    // `done` is called exactly once, possibly before this returns.
    void start(std::string what, std::string name, Submit submit, Done done);

    // Leave: refuses new operations, waits a moment for those under way, then aborts them.
    void close();

  private:
    struct Call;

    void submit(Call *call);
    void settle(Call *call);
    void finish(Call *call, const absl::Status &status);
    void run();

    ddl_endpoint *const endpoint_;
    ddl_comm *const comm_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int started_ = 0;   // calls that are not done, those that wait for their name included
    int submitted_ = 0; // those of them that libddl has
    bool closing_ = false;
    bool stopping_ = false;
    std::unordered_map<std::string, std::deque<Call *>> names_; // under way, and who waits for each
    std::thread thread_;
};

} // namespace ddl_tensorflow
