// SPDX-License-Identifier: Apache-2.0
#include "roster.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <random>

namespace ddl_torch
{

namespace
{

constexpr const char *kScheme = "ddl:";
constexpr size_t kNumberDigits = 16;

std::string hex(const std::string &bytes)
{
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (unsigned char each : bytes) {
        text += kDigits[each >> 4];
        text += kDigits[each & 15];
    }
    return text;
}

std::string checksum(const std::string &body)
{
    const uint64_t tag = derive_tag(0, body);
    std::string bytes;
    for (int shift = 56; shift >= 0; shift -= 8)
        bytes += char(tag >> shift & 0xff);
    return ":" + hex(bytes);
}

std::string make_handle(const Endpoint &endpoint)
{
    std::random_device random;
    std::string number;
    for (size_t i = 0; i < kNumberDigits / 2; i++)
        number += char(random() & 0xff);
    const std::string body = kScheme + hex(number) + ":" + hex(endpoint.address());
    return body + checksum(body);
}

// Return the address in a handle; empty if it is not a handle of ddl, or a damaged one.
std::vector<uint8_t> address_in(const std::string &handle)
{
    const std::string scheme = kScheme;
    const size_t start = scheme.size() + kNumberDigits + 1;
    std::vector<uint8_t> address;
    const size_t end = handle.rfind(':');
    if (handle.compare(0, scheme.size(), scheme) != 0 || end == std::string::npos || end <= start ||
        handle.substr(end) != checksum(handle.substr(0, end)))
        return address;
    for (size_t i = start; i < end; i += 2)
        address.push_back(uint8_t(std::stoi(handle.substr(i, 2), nullptr, 16)));
    return address;
}

} // namespace

Roster::Roster() : endpoint_(Endpoint::own()), handle_(make_handle(*endpoint_))
{
}

void Roster::claim(int64_t uuid)
{
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK_WITH(DistBackendError, claimed_.insert(uuid).second, "ddl reconfigure: uuid ", uuid,
                     " was already used by this process group; pass a fresh one");
}

Roster::Members Roster::members(int64_t uuid, const std::vector<std::string> &handles) const
{
    Members result{{}, -1, 0};
    std::string list = std::to_string(uuid);
    for (size_t rank = 0; rank < handles.size(); rank++) {
        const std::string &handle = handles[rank];
        auto address = address_in(handle);
        TORCH_CHECK_VALUE(!address.empty(), "ddl reconfigure: handles[", rank, "] is '",
                          handle.substr(0, 64),
                          "', not a handle of the backend ddl; get it from "
                          "torch.distributed._get_reconfigure_handle()");
        TORCH_CHECK_VALUE(std::count(handles.begin(), handles.end(), handle) == 1,
                          "ddl reconfigure: handles[", rank, "] is in the list more than once");
        if (handle == handle_)
            result.rank = int(rank);
        result.addresses.push_back(std::move(address));
        list += "," + handle;
    }
    TORCH_CHECK_VALUE(result.rank >= 0,
                      "ddl reconfigure: this process's own handle is not one of "
                      "the ",
                      handles.size(), " handles");
    result.tag = derive_tag(0, list);
    return result;
}

} // namespace ddl_torch
