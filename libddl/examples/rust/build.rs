// SPDX-License-Identifier: Apache-2.0
//! Ask pkg-config for the folder of libddl, for the linker and for the loader.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let asked = Command::new("pkg-config").args(["--libs-only-L", "libddl"]).output();
    let answer = asked.expect("pkg-config cannot be executed");
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let words = String::from_utf8_lossy(&answer.stdout);
    for folder in words.split_whitespace().filter_map(|word| word.strip_prefix("-L")) {
        println!("cargo:rustc-link-search=native={folder}");
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{folder}");
    }
}
