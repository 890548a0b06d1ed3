// SPDX-License-Identifier: Apache-2.0
//! Sum a vector over all ranks, and receive a number from rank 0.
//!
//!     rustc --edition 2021 allreduce.rs -C link-args="$(pkg-config --libs libddl)"
//!     ddlrun -n 2 ./allreduce

mod ddl;

use std::process::ExitCode;

fn run() -> ddl::Result<bool> {
    let endpoint = ddl::Endpoint::new()?;
    let comm = endpoint.rendezvous()?;
    let (rank, size) = (comm.rank(), comm.size());

    let mut x = vec![(rank + 1) as f32; 1000];
    let mut word = [if rank == 0 { 42.0 } else { 0.0 }];
    comm.allreduce(&mut x)?;
    comm.broadcast(&mut word, 0)?;

    let sum = (size * (size + 1) / 2) as f32;
    let right = word == [42.0] && x.iter().all(|&each| each == sum);
    println!(
        "rank {rank} of {size}: every sum is {}, rank 0 says {}, {}",
        x[0],
        word[0],
        if right { "right" } else { "wrong" }
    );
    Ok(right)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
