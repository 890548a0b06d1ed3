// SPDX-License-Identifier: Apache-2.0

// Sum a vector over all ranks, and receive a number from rank 0.
//
//	go build -o allreduce .
//	ddlrun -n 2 ./allreduce
package main

import (
	"errors"
	"fmt"
	"os"

	"example/allreduce/ddl"
)

func run() error {
	endpoint, err := ddl.NewEndpoint()
	if err != nil {
		return err
	}
	defer endpoint.Close()
	comm, err := endpoint.Rendezvous()
	if err != nil {
		return err
	}
	defer comm.Close()
	rank, size := comm.Rank(), comm.Size()

	x := make([]float32, 1000)
	for i := range x {
		x[i] = float32(rank + 1)
	}
	word := []float32{0}
	if rank == 0 {
		word[0] = 42
	}
	if err := comm.Allreduce(x); err != nil {
		return err
	}
	if err := comm.Broadcast(word, 0); err != nil {
		return err
	}

	right := word[0] == 42
	for _, each := range x {
		right = right && each == float32(size*(size+1)/2)
	}
	verdict := map[bool]string{true: "right", false: "wrong"}[right]
	fmt.Printf("rank %d of %d: every sum is %g, rank 0 says %g, %s\n",
		rank, size, x[0], word[0], verdict)
	if !right {
		return errors.New("a result is wrong")
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
