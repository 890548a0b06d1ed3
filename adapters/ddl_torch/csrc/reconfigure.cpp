// SPDX-License-Identifier: Apache-2.0
// Changing the members of a process group.
#include "backend.hpp"

#include <algorithm>

#include "errors.hpp"

namespace ddl_torch
{

#ifdef C10D_BACKEND_HAS_RECONFIGURE

// Design notes.
//
// Wrong arguments and a used uuid raise an error before anything changes. Then the old comm ends,
// and so do the groups derived from it: pending operations on this rank fail at once with an error
// that names the reconfiguration, and other ranks that wait there for this one learn that it has
// left, so that they can reconfigure, too. Then the new comm is created. Nothing of the old one is
// needed: members find each other by the addresses in the handles, whatever has died, been aborted
// or timed out before. If the creation fails, the group has no members until another
// reconfiguration, with a fresh uuid, succeeds.

bool Backend::supportsReconfigure() const
{
    return true;
}

c10d::ReconfigureHandle Backend::get_reconfigure_handle() const
{
    TORCH_CHECK_WITH(DistBackendError, roster_,
                     "ddl get_reconfigure_handle: the process group's members are fixed; create it "
                     "with init_process_group(enable_reconfigure=True)");
    return roster_->handle();
}

// The handles by rank. The members of a set are ranked in the order of their handles.
static std::vector<std::string> ordered(const c10d::ReconfigureOptions &options)
{
    if (const auto *list = std::get_if<std::vector<std::string>>(&options.handles))
        return *list;
    const auto &set = std::get<std::unordered_set<std::string>>(options.handles);
    std::vector<std::string> handles(set.begin(), set.end());
    std::sort(handles.begin(), handles.end());
    return handles;
}

Backend::WorkPtr Backend::reconfigure(const c10d::ReconfigureOptions &options)
{
    static constexpr const char *name = "reconfigure";
    const std::string handle = get_reconfigure_handle();
    TORCH_CHECK_WITH(DistBackendError, !closed_, "ddl ", name,
                     ": the process group has been shut down");
    auto members = roster_->members(options.uuid, ordered(options));
    const auto limit = options.timeout.value_or(options_->timeout);
    TORCH_CHECK_VALUE(limit.count() > 0, "ddl ", name, ": timeout is ", limit.count(),
                      " ms; must be positive");
    roster_->claim(options.uuid);
    attempted_ = true;
    const std::string uuid = std::to_string(options.uuid);
    std::shared_ptr<Group> last;
    {
        std::lock_guard<std::mutex> lock(group_mutex_);
        last.swap(group_);
        generation_++;
        no_group_ = "the reconfiguration with uuid " + uuid +
                    " has not succeeded; call torch.distributed._reconfigure() with a fresh uuid";
    }
    if (last)
        last->end("the process group was reconfigured with uuid " + uuid);
    drop_window();
    const int size = int(members.addresses.size());
    auto next = Group::among(roster_->endpoint(), std::move(members.addresses), members.rank,
                             members.tag, limit, options_->timeout, invariant_);
    watch_failures(*next);
    last = next;
    {
        std::lock_guard<std::mutex> lock(group_mutex_);
        last.swap(group_);
        rank_ = members.rank;
        size_ = size;
        sequence_ = 0; // new members also start with this number
        generation_++;
    }
    if (last) // the group of a reconfiguration by another thread, which ended meanwhile
        last->end("the process group was reconfigured with uuid " + uuid);
    if (closed_) { // shutdown() may not have seen the new group
        next->close();
        TORCH_CHECK_WITH(DistBackendError, false, "ddl ", name,
                         ": the process group was shut down meanwhile");
    }
    watch_failures(*next); // with the hooks that were registered meanwhile
    if (options_->global_ranks_in_group.empty())
        Group::set_world(members.rank, next);
    auto work = c10::make_intrusive<Work>(next, rank_, c10d::OpType::UNKNOWN, name, nullptr,
                                          Tensors{}, Buffers{}, sequence_);
    work->done();
    return work;
}

#endif

} // namespace ddl_torch
