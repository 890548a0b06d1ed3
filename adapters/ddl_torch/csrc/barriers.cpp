// Barriers: the usual one, and one that names the missing ranks.
#include "backend.hpp"

#include "errors.hpp"

namespace ddl_torch
{

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions &options)
{
    Operation operation("barrier", "ddl:barrier", c10d::OpType::BARRIER, options);
    operation.parts.push_back(
        [](auto comm, auto how, auto work) { return ddl_barrier(comm, how, work); });
    return submit(std::move(operation));
}

// Design notes.
//
// A monitored barrier is for programs in which a rank may hang or be elsewhere. An operation that
// times out kills a comm, and this must not, so it goes through the store. Each rank sets a mark;
// rank 0 waits for all marks and sets its verdict, which the others wait for. A late rank finds the
// verdict that it has missed, so all ranks stay in step. The texts of the errors are Gloo's, which
// programs look for.

namespace
{

const std::string kPassed = "passed";

// The tag tells apart the groups that use one store in succession.
std::string key(const Group &group, uint64_t number)
{
    return "monitored_barrier/" + std::to_string(group.tag()) + "/" + std::to_string(number);
}

std::string mark(const std::string &barrier, int rank)
{
    return barrier + "/" + std::to_string(rank);
}

std::string verdict(const std::string &barrier)
{
    return barrier + "/verdict";
}

std::string list(const std::vector<int> &ranks)
{
    std::string text = ranks.size() == 1 ? "Rank " : "Ranks ";
    for (const int &rank : ranks)
        text += (&rank == &ranks[0] ? "" : ", ") + std::to_string(rank);
    return text;
}

std::vector<uint8_t> bytes(const std::string &text)
{
    return {text.begin(), text.end()};
}

} // namespace

void Backend::monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks)
{
    const auto timeout = options.timeout >= kNoTimeout ? options.timeout : options_->timeout;
    const uint64_t number = ++monitored_barriers_;
    const std::string barrier = key(*group_, number);
    store_->set(mark(barrier, rank_), bytes("here"));
    if (rank_ == 0) {
        await_arrivals(barrier, timeout, wait_all_ranks);
        if (number > 1) { // all ranks have read the previous one
            const std::string last = key(*group_, number - 1);
            for (int rank = 0; rank < size_; rank++)
                store_->deleteKey(mark(last, rank));
            store_->deleteKey(verdict(last));
        }
    } else {
        await_verdict(barrier, timeout);
    }
}

void Backend::await_arrivals(const std::string &barrier, Milliseconds timeout, bool wait_all_ranks)
{
    std::vector<std::string> marks;
    for (int rank = 0; rank < size_; rank++)
        marks.push_back(mark(barrier, rank));
    try {
        store_->wait(marks, std::max(timeout, Milliseconds(1)));
        store_->set(verdict(barrier), bytes(kPassed));
        return;
    } catch (const std::exception &) { // timed out, or the store is gone; check() tells
    }
    std::vector<int> missing;
    for (int rank = 0; rank < size_; rank++)
        if ((missing.empty() || wait_all_ranks) && !store_->check({marks[rank]}))
            missing.push_back(rank);
    const std::string limit = std::to_string(timeout.count()) + " ms";
    std::string reason = list(missing) + " failed to pass monitoredBarrier in " + limit;
    if (missing.empty()) // they came just now
        reason = "the ranks came too late, after " + limit;
    store_->set(verdict(barrier), bytes(reason));
    TORCH_CHECK_WITH(DistBackendError, false,
                     "ddl: [Rank 0]: Rank 0 timed out in monitoredBarrier"
                     " after ",
                     limit, ": ", reason);
}

void Backend::await_verdict(const std::string &barrier, Milliseconds timeout)
{
    // Wait a little longer than rank 0, for its verdict.
    constexpr Milliseconds kGrace(1000);
    std::string reason;
    try {
        store_->wait({verdict(barrier)}, timeout + kGrace);
        const auto found = store_->get(verdict(barrier));
        reason.assign(found.begin(), found.end());
    } catch (const std::exception &) {
        reason = "no answer within " + std::to_string(timeout.count()) + " ms";
    }
    TORCH_CHECK_WITH(DistBackendError, reason == kPassed, "ddl: [Rank ", rank_, "]: Rank ", rank_,
                     " successfully reached monitoredBarrier, but received errors while waiting for"
                     " send/recv from rank 0: ",
                     reason);
}

} // namespace ddl_torch
