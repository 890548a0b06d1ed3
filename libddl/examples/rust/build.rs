// SPDX-License-Identifier: Apache-2.0
//! Ask pkg-config for the folder of libddl, for the linker and for the loader.
//!
//! Cargo passes a run path only to the programs of this crate. A crate that depends on this one needs
//! a build script, which gets the folder as DEP_DDL_FOLDER:
//!
//!     fn main() {
//!         let folder = std::env::var("DEP_DDL_FOLDER").unwrap();
//!         println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{folder}");
//!     }

use std::process::{exit, Command};

fn main() {
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let asked = Command::new("pkg-config").args(["--variable=libdir", "libddl"]).output();
    let answer = asked.expect("pkg-config cannot be executed; install it");
    if !answer.status.success() {
        eprint!("{}", String::from_utf8_lossy(&answer.stderr));
        eprintln!("Set PKG_CONFIG_PATH to the folder of libddl.pc, which this command prints:");
        eprintln!("    python -m ddl_core --pkgconfig-dir");
        exit(1);
    }
    let folder = String::from_utf8_lossy(&answer.stdout);
    let folder = folder.trim();
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{folder}");
    println!("cargo:folder={folder}");
}
