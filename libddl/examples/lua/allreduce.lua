-- SPDX-License-Identifier: Apache-2.0
-- Sum a vector over all ranks, and receive a number from rank 0.
--
--     export LD_LIBRARY_PATH=$(pkg-config --variable=libdir libddl)
--     ddlrun -n 2 luajit allreduce.lua

package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local ffi = require "ffi"
local Comm = require "ddl"

local COUNT = 1000

local function run()
    local comm = Comm.new()
    local x, word = ffi.new("float[?]", COUNT), ffi.new("float[1]", comm.rank == 0 and 42 or 0)
    for i = 0, COUNT - 1 do
        x[i] = comm.rank + 1
    end

    comm:allreduce(x, COUNT)
    comm:broadcast(word, 1, 0)

    local right = word[0] == 42
    for i = 0, COUNT - 1 do
        right = right and x[i] == comm.size * (comm.size + 1) / 2
    end
    print(("rank %d of %d: every sum is %g, rank 0 says %g, %s"):format(
        comm.rank, comm.size, x[0], word[0], right and "right" or "wrong"))
    comm:close()
    return right
end

local called, result = pcall(run)
if not called then
    io.stderr:write(result, "\n")
end
os.exit(called and result and 0 or 1)
