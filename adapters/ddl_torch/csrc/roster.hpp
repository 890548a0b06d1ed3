// SPDX-License-Identifier: Apache-2.0
// How a process group whose members may change names its members.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "group.hpp"

namespace ddl_torch
{

// The data that a backend created with enable_reconfigure keeps over all its reconfigurations.
//
// A handle names one backend: "ddl:" with a random number of the backend and its endpoint's
// address and a checksum. Members agree on a reconfiguration by its tag, which is made of the uuid
// and all handles.
class Roster
{
  public:
    Roster();

    const std::string &handle() const
    {
        return handle_;
    }
    const std::shared_ptr<Endpoint> &endpoint() const
    {
        return endpoint_;
    }

    // Claim a uuid. Throws DistBackendError if it was claimed before.
    void claim(int64_t uuid);

    // The members of a reconfiguration.
    struct Members {
        std::vector<std::vector<uint8_t>> addresses; // by rank
        int rank;                                    // this backend's
        uint64_t tag;
    };
    // Throws ValueError if the handles cannot be a group with this backend.
    Members members(int64_t uuid, const std::vector<std::string> &handles) const;

  private:
    const std::shared_ptr<Endpoint> endpoint_;
    const std::string handle_;
    std::mutex mutex_;
    std::set<int64_t> claimed_;
};

} // namespace ddl_torch
