// SPDX-License-Identifier: Apache-2.0
// allreduce.cpp - sum a vector over all ranks, and receive a number from rank 0.
//
//     c++ -std=c++11 allreduce.cpp $(pkg-config --cflags --libs libddl) -o allreduce
//     ddlrun -n 2 ./allreduce
#include <algorithm>
#include <ddl/ddl.hpp>
#include <iostream>
#include <vector>

static bool run()
{
    ddl::Endpoint endpoint;
    // The ranks that a launcher such as ddlrun has started; without one, this one alone.
    ddl::Comm comm = endpoint.rendezvous();
    const int rank = comm.rank(), size = comm.size();

    std::vector<float> x(1000, static_cast<float>(rank + 1));
    ddl::Work work = comm.allreduce_async(x.data(), x.data(), x.size()); // in place
    float word = rank == 0 ? 42 : 0;
    comm.broadcast(&word, 1, 0); // blocks, and the operations of a comm end in order
    work.wait();

    const float sum = static_cast<float>(size * (size + 1) / 2);
    const bool right =
        word == 42 && std::all_of(x.begin(), x.end(), [sum](float each) { return each == sum; });
    std::cout << "rank " << rank << " of " << size << ": every sum is " << x[0] << ", rank 0 says "
              << word << (right ? ", right\n" : ", wrong\n");
    return right;
}

int main()
{
    try {
        return run() ? 0 : 1;
    } catch (const ddl::Error &error) {
        std::cerr << ddl_strerror(error.status()) << ": " << error.what() << "\n";
        return 1;
    }
}
