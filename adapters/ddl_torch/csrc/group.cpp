// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include "errors.hpp"
#include "executor.hpp"

namespace ddl_torch
{

namespace
{

constexpr double kGracePeriod = 1.0;     // seconds for pending operations to end before an abort
constexpr double kCallbackTimeout = 5.0; // seconds for callbacks to end, at exit
constexpr double kLeaveTimeout = 10.0;   // seconds for aborted operations to return
constexpr std::chrono::milliseconds kShortest(1000); // for the ranks to connect
constexpr std::chrono::seconds kSilent(10);          // a longer wait for other ranks is logged

std::mutex endpoint_mutex;
std::weak_ptr<Endpoint> current_endpoint;
std::weak_ptr<Endpoint> owned_endpoint; // the process's, while it is one that own() returned

std::mutex registry_mutex;
std::vector<std::weak_ptr<Group>> registry;
std::map<int, std::weak_ptr<Group>> default_groups; // by the rank of this process

using Bytes = std::vector<uint8_t>;

// What all ranks know about each other after the exchange through the store.
struct Members {
    std::vector<Bytes> addresses;
    uint64_t tag; // chosen by rank 0: distinguishes this group from others with the same members
};

// Return the ranks without a key. `lowest`, unless it is null, gets the lowest rank that has one.
std::string list_missing(c10d::Store &store, const std::vector<std::string> &keys,
                         int *lowest = nullptr)
{
    constexpr int kMax = 16;
    std::string text;
    int missing = 0, present = int(keys.size());
    for (size_t rank = 0; rank < keys.size(); rank++)
        if (store.check({keys[rank]}))
            present = std::min(present, int(rank));
        else if (++missing <= kMax)
            text += (text.empty() ? "" : ", ") + std::to_string(rank);
    if (lowest)
        *lowest = present;
    return text + (missing > kMax ? ", ..." : "");
}

// Wait for the keys of all ranks. Of the ranks that wait long, the lowest one logs whom they miss.
void await_ranks(c10d::Store &store, const std::vector<std::string> &keys, int rank,
                 std::chrono::milliseconds timeout)
{
    if (timeout > kSilent) {
        try {
            store.wait(keys, kSilent);
            return;
        } catch (const std::exception &) { // if the store is lost, `check` fails, too
            int lowest;
            const std::string missing = list_missing(store, keys, &lowest);
            if (lowest == rank && !missing.empty())
                LOG(WARNING) << "ddl: rank " << rank << " of " << keys.size() << " has waited for "
                             << kSilent.count() << " s in init_process_group or new_group;"
                             << " not there yet: rank " << missing;
        }
        timeout -= kSilent;
    }
    store.wait(keys, timeout);
}

// Return the values of the keys, in one request if the store supports that: each request is a round
// trip to rank 0's process, to which all ranks send at the same time.
std::vector<Bytes> get_all(c10d::Store &store, const std::vector<std::string> &keys)
{
    if (store.hasExtendedApi())
        return store.multiGet(keys);
    std::vector<Bytes> values;
    for (const auto &key : keys)
        values.push_back(store.get(key));
    return values;
}

// Exchange addresses through the store. Several groups may use one store in succession (a group is
// destroyed and created again): each rank counts its exchanges, so all ranks agree on the number.
Members exchange_addresses(c10d::Store &store, const std::string &address, int rank, int size,
                           std::chrono::milliseconds timeout)
{
    const std::string counter = "exchanges/" + std::to_string(rank);
    const auto begun = std::chrono::steady_clock::now();
    const int64_t exchange = store.add(counter, 1);
    std::vector<std::string> keys;
    for (int i = 0; i < size; i++)
        keys.push_back("exchange" + std::to_string(exchange) + "/" + std::to_string(i));

    std::random_device random;
    uint64_t tag = (uint64_t(random()) << 32 | random()) | 1; // 0 has a special meaning
    Bytes entry(sizeof tag + address.size());
    std::memcpy(entry.data(), &tag, sizeof tag);
    std::memcpy(entry.data() + sizeof tag, address.data(), address.size());

    std::vector<Bytes> entries;
    try {
        store.set(keys[rank], entry);
        await_ranks(store, keys, rank, timeout);
        entries = get_all(store, keys);
    } catch (const std::exception &failure) {
        std::string missing, reason = failure.what();
        reason = reason.substr(0, reason.find('\n')); // without the stack trace
        try {
            missing = list_missing(store, keys);
            store.add(counter, -1);        // undo the count
        } catch (const std::exception &) { // the store is closed, or does not support `check`
            TORCH_CHECK_WITH(
                DistBackendError, std::chrono::steady_clock::now() - begun >= timeout, "ddl: rank ",
                rank, " of ", size, " lost the store through which the ranks exchange addresses (",
                reason, "): the process that serves it, usually rank 0, has exited or closed it");
        }
        TORCH_CHECK_WITH(DistBackendError, false, "ddl: rank ", rank, " of ", size,
                         " could not exchange addresses within ", timeout.count() / 1000.0, " s",
                         missing.empty() ? "" : "; missing: rank ", missing, " (", reason, ")");
    }

    Members result;
    for (const auto &each : entries) {
        TORCH_CHECK_WITH(DistBackendError, each.size() > sizeof tag, "ddl: rank ", rank,
                         " found no address of rank ", &each - entries.data(), " in the store");
        result.addresses.emplace_back(each.begin() + sizeof tag, each.end());
    }
    std::memcpy(&result.tag, entries[0].data(), sizeof result.tag);
    return result;
}

} // namespace

uint64_t derive_tag(uint64_t tag, const std::string &name)
{
    uint64_t digest = 0xcbf29ce484222325 ^ tag; // FNV-1a
    for (unsigned char each : name)
        digest = (digest ^ each) * 0x100000001b3;
    return digest | 1;
}

// ---- Endpoint ----

static ddl_endpoint *create_endpoint()
{
    ddl_endpoint *handle = nullptr;
    check(ddl_endpoint_create(nullptr, &handle), "endpoint");
    return handle;
}

Endpoint::Endpoint()
    : handle(create_endpoint()), pool(std::make_shared<Pool>(handle)), owner_(getpid())
{
}

Endpoint::~Endpoint()
{
    if (owner_ != getpid())
        return;
    pool->close();
    ddl_endpoint_destroy(handle);
}

std::shared_ptr<Endpoint> Endpoint::current()
{
    std::lock_guard<std::mutex> lock(endpoint_mutex);
    auto endpoint = current_endpoint.lock();
    return endpoint && endpoint->owner_ == getpid() ? endpoint : nullptr;
}

std::shared_ptr<Endpoint> Endpoint::of_this_process()
{
    std::lock_guard<std::mutex> lock(endpoint_mutex);
    auto endpoint = current_endpoint.lock();
    if (!endpoint || endpoint->owner_ != getpid()) {
        endpoint = std::make_shared<Endpoint>();
        current_endpoint = endpoint;
    }
    return endpoint;
}

std::shared_ptr<Endpoint> Endpoint::own()
{
    auto endpoint = of_this_process();
    std::lock_guard<std::mutex> lock(endpoint_mutex);
    if (owned_endpoint.lock() == endpoint)
        return std::make_shared<Endpoint>();
    owned_endpoint = endpoint;
    return endpoint;
}

std::string Endpoint::address() const
{
    char bytes[DDL_ADDRESS_MAX];
    size_t length = 0;
    check(ddl_endpoint_address(handle, bytes, sizeof bytes, &length), "endpoint");
    return std::string(bytes, length);
}

// ---- Group ----

std::shared_ptr<Group> Group::join(c10d::Store &store, int rank, int size,
                                   std::chrono::milliseconds timeout, int invariant)
{
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    const auto left = [deadline] { // at least 1 s: all ranks are present
        const auto time = deadline - std::chrono::steady_clock::now();
        return std::max(std::chrono::ceil<std::chrono::milliseconds>(time), kShortest);
    };
    auto endpoint = Endpoint::of_this_process();
    Members members = exchange_addresses(store, endpoint->address(), rank, size, timeout);
    // All ranks see the same addresses, so they agree on whether there is a second exchange.
    if (std::set<Bytes>(members.addresses.begin(), members.addresses.end()).size() < size_t(size)) {
        const auto &all = members.addresses;
        if (std::find(all.begin(), all.end(), all[rank]) != all.begin() + rank)
            endpoint = std::make_shared<Endpoint>();
        members = exchange_addresses(store, endpoint->address(), rank, size, left());
    }
    ddl_comm_config config{};
    config.tag = members.tag;
    config.invariant = invariant;
    config.timeout_ms = left().count();
    return create(std::move(endpoint), std::move(members.addresses), rank, config, timeout);
}

std::shared_ptr<Group> Group::derive(const std::vector<int> &ranks, const std::string &name,
                                     std::chrono::milliseconds timeout, int invariant)
{
    std::shared_ptr<Endpoint> endpoint;
    if (auto held = use(); held && owner_ == getpid())
        endpoint = endpoint_;
    if (!endpoint)
        return nullptr;
    std::string list = name;
    Addresses addresses;
    int own = -1;
    for (int rank : ranks) {
        if (rank < 0 || size_t(rank) >= addresses_.size())
            return nullptr;
        if (rank == rank_)
            own = int(addresses.size());
        addresses.push_back(addresses_[rank]);
        list += "," + std::to_string(rank);
    }
    ddl_comm_config config{};
    config.timeout_ms = std::max<int64_t>(timeout.count(), 1);
    config.invariant = invariant;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        config.epoch = ++derived_[list];
    }
    config.tag = derive_tag(tag_, list + "," + std::to_string(config.epoch));
    try {
        auto group = create(std::move(endpoint), std::move(addresses), own, config, timeout);
        std::unique_lock<std::mutex> lock(mutex_);
        if (!closed_) {
            children_.erase(std::remove_if(children_.begin(), children_.end(),
                                           [](const auto &each) { return each.expired(); }),
                            children_.end());
            children_.push_back(group);
            return group;
        }
        lock.unlock();
        group->end(closing_reason());
        return nullptr;
    } catch (...) { // no rank has created it
        std::lock_guard<std::mutex> lock(mutex_);
        derived_[list]--;
        throw;
    }
}

std::shared_ptr<Group> Group::among(std::shared_ptr<Endpoint> endpoint, Addresses addresses,
                                    int rank, uint64_t tag,
                                    std::chrono::milliseconds creation_timeout,
                                    std::chrono::milliseconds timeout, int invariant)
{
    ddl_comm_config config{};
    config.tag = tag;
    config.invariant = invariant;
    config.timeout_ms = std::max<int64_t>(creation_timeout.count(), 1);
    return create(std::move(endpoint), std::move(addresses), rank, config, timeout);
}

std::shared_ptr<Group> Group::create(std::shared_ptr<Endpoint> endpoint, Addresses addresses,
                                     int rank, ddl_comm_config config,
                                     std::chrono::milliseconds timeout)
{
    std::vector<const void *> starts;
    std::vector<size_t> lengths;
    for (const auto &address : addresses) {
        starts.push_back(address.data());
        lengths.push_back(address.size());
    }
    config.struct_size = sizeof config;
    config.operation_timeout_ms = timeout.count();
    ddl_comm *comm = nullptr;
    check(ddl_comm_create(endpoint->handle, starts.data(), lengths.data(), rank,
                          int(addresses.size()), &config, &comm),
          "group creation");

    std::shared_ptr<Group> group(
        new Group(std::move(endpoint), std::move(addresses), rank, comm, config.tag));
    std::lock_guard<std::mutex> lock(registry_mutex);
    registry.erase(std::remove_if(registry.begin(), registry.end(),
                                  [](const auto &each) { return each.expired(); }),
                   registry.end());
    registry.push_back(group);
    return group;
}

void Group::set_world(int rank, const std::shared_ptr<Group> &group)
{
    std::lock_guard<std::mutex> lock(registry_mutex);
    default_groups[rank] = group;
}

std::shared_ptr<Group> Group::world(int rank)
{
    std::lock_guard<std::mutex> lock(registry_mutex);
    return default_groups[rank].lock();
}

Group::Group(std::shared_ptr<Endpoint> endpoint, Addresses addresses, int rank, ddl_comm *comm,
             uint64_t tag)
    : endpoint_(std::move(endpoint)), addresses_(std::move(addresses)), rank_(rank), comm_(comm),
      tag_(tag), completion_(new Completion(comm)), owner_(getpid())
{
    if (ddl_comm_local_size(comm) > 1)
        found_ranks_on_host();
}

Group::~Group()
{
    close();
    if (owner_ != getpid())
        completion_.release(); // its thread exists only in the parent
}

Group::Use::Use(Group &group) : group_(&group)
{
    group.inside_.fetch_add(1);
    if (group.closed_.load()) {
        group.inside_.fetch_sub(1);
        group_ = nullptr;
    }
}

void Group::Use::leave()
{
    if (group_)
        group_->inside_.fetch_sub(1);
    group_ = nullptr;
}

void Group::abort(const std::string &reason)
{
    revoked_ = true;
    if (auto held = use())
        ddl_comm_abort(comm_, reason.c_str());
}

void Group::close()
{
    leave(kGracePeriod, "the process group was shut down with operations pending");
}

void Group::end(const std::string &reason)
{
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!closed_)
            closing_reason_ = reason;
    }
    leave(0, reason);
    std::vector<std::weak_ptr<Group>> children;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        children.swap(children_); // derive() adds none to a closed group
    }
    for (const auto &each : children)
        if (auto child = each.lock())
            child->end(reason);
}

void Group::on_failure(std::shared_ptr<const Hooks> hooks)
{
    {
        std::lock_guard<std::mutex> lock(mutex_);
        hooks_.swap(hooks);
    } // the old ones are dropped without the lock
}

bool Group::watches_failures() const
{
    std::lock_guard<std::mutex> lock(mutex_);
    return hooks_ && !hooks_->empty();
}

// The hooks run on a thread of the executor, since the caller may hold the GIL, a Use or a lock.
void Group::failed()
{
    std::shared_ptr<const Hooks> hooks;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (closed_ || failed_)
            return;
        failed_ = true;
        hooks = hooks_;
    }
    if (!hooks || hooks->empty())
        return;
    const auto call = [hooks] {
        for (const auto &[id, hook] : *hooks)
            try {
                (*hook)();
            } catch (const std::exception &failure) {
                LOG(ERROR) << "ddl: abort hook " << id << ": " << failure.what();
            }
    };
    try {
        Executor::instance().run(call);
    } catch (const std::system_error &failure) {
        LOG(ERROR) << "ddl: the abort hooks are not called: " << failure.what();
    }
}

std::string Group::closing_reason() const
{
    std::lock_guard<std::mutex> lock(mutex_);
    return closing_reason_;
}

// Destroy the comm. Operations that have not ended after `grace` seconds are aborted with `reason`.
//
// The caller may hold a Use itself, or be the completion thread: Python runs a finalizer where the
// last reference to a tensor is dropped. It cannot wait for itself, so the aborted comm is leaked.
void Group::leave(double grace, const std::string &reason)
{
    if (closed_.exchange(true) || owner_ != getpid())
        return;
    const auto wait_for_leavers = [this](double seconds) {
        for (double ms = 0; inside_.load() && ms < seconds * 1000; ms++)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return !inside_.load();
    };
    if (!wait_for_leavers(grace) || !completion_->drain(grace)) {
        ddl_comm_abort(comm_, reason.c_str());
        // An abort ends all operations.
        if (!wait_for_leavers(kLeaveTimeout) || !completion_->drain(kLeaveTimeout)) {
            leak("a call on it has not returned");
            return;
        }
    }
    if (!completion_->stop()) {
        ddl_comm_abort(comm_, reason.c_str());
        leak("its completion thread shuts it down");
        return;
    }
    if (ddl_comm_status(comm_) != DDL_OK)
        endpoint_->pool->renew();
    ddl_comm_destroy(comm_);
    endpoint_.reset();
}

void Group::leak(const char *why)
{
    LOG(WARNING) << "ddl: a process group that was shut down keeps its memory: " << why;
    completion_.release();
    new std::shared_ptr<Endpoint>(endpoint_);
}

bool Group::closed() const
{
    return closed_ || owner_ != getpid();
}

std::vector<std::shared_ptr<Group>> Group::all()
{
    std::vector<std::shared_ptr<Group>> groups;
    {
        std::lock_guard<std::mutex> lock(registry_mutex);
        for (auto &each : registry)
            if (auto group = each.lock())
                groups.push_back(std::move(group));
    }
    // Dropping the last reference may need the GIL, so not under the lock.
    groups.erase(std::remove_if(groups.begin(), groups.end(),
                                [](const auto &group) { return group->closed(); }),
                 groups.end());
    return groups;
}

Executor &Group::profile_track()
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (!profile_track_)
        profile_track_ = new Executor("ddl collectives", 1, std::chrono::minutes(1));
    return *profile_track_;
}

void Group::close_all()
{
    for (auto &group : all()) {
        group->close();
        if (group->profile_track_)
            group->profile_track_->quiesce(kCallbackTimeout);
    }
    Executor::instance().quiesce(kCallbackTimeout);
}

} // namespace ddl_torch
