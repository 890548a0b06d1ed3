// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <chrono>
#include <map>
#include <utility>

#include "status.hpp"

namespace ddl_tensorflow
{

namespace
{

constexpr auto kGracePeriod =
    std::chrono::seconds(1); // for pending operations to end before an abort

std::mutex worlds_mutex;
std::map<int64_t, std::shared_ptr<World>> worlds; // by number

} // namespace

struct World::Call {
    std::string what;
    std::string name;
    Submit submit;
    Done done;
    ddl_work *work = nullptr;
    std::atomic<int> pending{2}; // the submission, and the taking from the queue
};

std::shared_ptr<World> World::find(int64_t number)
{
    std::lock_guard<std::mutex> lock(worlds_mutex);
    const auto found = worlds.find(number);
    return found == worlds.end() ? nullptr : found->second;
}

void World::open(int64_t number, ddl_comm *comm)
{
    auto world = std::make_shared<World>(comm);
    std::lock_guard<std::mutex> lock(worlds_mutex);
    worlds[number] = std::move(world);
}

void World::close_all()
{
    std::map<int64_t, std::shared_ptr<World>> closing;
    {
        std::lock_guard<std::mutex> lock(worlds_mutex);
        closing.swap(worlds);
    }
    for (auto &[number, world] : closing)
        world->close();
}

World::World(ddl_comm *comm) : comm_(comm), thread_([this] { run(); })
{
}

World::~World()
{
    close();
}

int World::rank() const
{
    return ddl_comm_rank(comm_);
}

int World::size() const
{
    return ddl_comm_size(comm_);
}

void World::start(std::string what, std::string name, Submit submission, Done done)
{
    auto *call = new Call{std::move(what), std::move(name), std::move(submission), std::move(done)};
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (closing_) {
            lock.unlock();
            call->done(absl::FailedPreconditionError("ddl " + call->what + ": shut down"));
            delete call;
            return;
        }
        started_++;
        if (!call->name.empty()) {
            auto [waiting, is_first] = names_.try_emplace(call->name);
            if (!is_first) {
                waiting->second.push_back(call);
                return;
            }
        }
    }
    submit(call);
}

void World::submit(Call *call)
{
    ddl_options options{};
    options.struct_size = sizeof options;
    options.queued = 1;
    options.user = call;
    options.name = call->name.empty() ? nullptr : call->name.c_str();
    {
        std::lock_guard<std::mutex> lock(mutex_);
        submitted_++;
    }
    ddl_work *work = nullptr;
    const ddl_status status = call->submit(comm_, &options, &work);
    if (status != DDL_OK) {
        absl::Status failure = to_status(status, call->what);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            submitted_--;
        }
        finish(call, failure);
        return;
    }
    changed_.notify_all();
    if (call->pending.fetch_sub(1, std::memory_order_acq_rel) == 1)
        settle(call);
}

// Finish a call whose work has ended and is used by no other thread.
void World::settle(Call *call)
{
    const absl::Status status = to_status(ddl_work_wait(call->work, 0), call->what);
    ddl_work_destroy(call->work);
    finish(call, status);
}

void World::finish(Call *call, const absl::Status &status)
{
    Call *next = nullptr;
    if (!call->name.empty()) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto waiting = names_.find(call->name);
        if (waiting->second.empty()) {
            names_.erase(waiting);
        } else {
            next = waiting->second.front();
            waiting->second.pop_front();
        }
    }
    // Release what the call borrows and owns before its end is reported.
    Done done = std::move(call->done);
    delete call;
    if (next)
        submit(next);
    done(status);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        started_--;
    }
    changed_.notify_all();
}

void World::run()
{
    constexpr int kMax = 32;
    ddl_work *works[kMax];
    void *users[kMax];
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return submitted_ > 0 || stopping_; });
        if (submitted_ == 0)
            return;
        lock.unlock();
        int taken = 0;
        const ddl_status status = ddl_comm_completed(comm_, works, users, kMax, -1, &taken);
        if (status != DDL_OK) {
            std::this_thread::yield(); // a counted operation is about to be submitted
            taken = 0;
        }
        lock.lock();
        submitted_ -= taken;
        lock.unlock();
        for (int i = 0; i < taken; i++) {
            auto *call = static_cast<Call *>(users[i]);
            call->work = works[i];
            if (call->pending.fetch_sub(1, std::memory_order_acq_rel) == 1)
                settle(call);
        }
        lock.lock();
    }
}

void World::close()
{
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (closing_)
            return;
        closing_ = true;
        const auto idle = [this] { return started_ == 0; };
        if (!changed_.wait_for(lock, kGracePeriod, idle)) {
            lock.unlock();
            ddl_comm_abort(comm_, "shut down with operations pending");
            lock.lock();
            changed_.wait(lock, idle); // an abort ends all operations
        }
        stopping_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

} // namespace ddl_tensorflow
