#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh EXAMPLE PREFIX FOLDER - build an example in FOLDER with what is installed in PREFIX, by the
# command that its first lines show, and run it by two ranks. Exit code 77: it cannot be built here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
example=$1 prefix=$2 folder=$3
program=$folder/allreduce

need() {
    for name; do
        command -v "$name" >/dev/null || { echo "there is no $name here" && exit 77; }
    done
}

description=$(find "$prefix" -name libddl.pc)
PKG_CONFIG_PATH=$(dirname "$description")
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
export PKG_CONFIG_PATH LD_LIBRARY_PATH
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder" # for what compilers leave behind

run="$here/run2.sh $program"
words=", rank 0 says 42, right"
[ "$example" = cmake ] || need pkg-config
# shellcheck disable=SC2046 # the flags are several words
case $example in
c)
    need cc
    cc -std=c11 -Wall -Wextra -Werror "$here/c/allreduce.c" $(pkg-config --cflags --libs libddl) \
        -o "$program"
    ;;
cpp)
    need c++
    c++ -std=c++11 -Wall -Wextra -Werror "$here/cpp/allreduce.cpp" \
        $(pkg-config --cflags --libs libddl) -o "$program"
    ;;
fortran)
    need gfortran
    gfortran -std=f2008 -Wall -Wextra -Werror "$here/fortran/ddl.f90" \
        "$here/fortran/allreduce.f90" $(pkg-config --libs libddl) -o "$program"
    ;;
rust)
    need rustc
    rustc --edition 2021 -D warnings "$here/rust/allreduce.rs" \
        -C link-args="$(pkg-config --libs libddl)" -o "$program"
    ;;
cargo)
    need cargo pkg-config
    mkdir ddl user
    cp "$here"/rust/* ddl
    if (cd ddl && PKG_CONFIG_PATH=/nowhere cargo build --quiet --offline) 2>error; then exit 1; fi
    grep -q 'python -m ddl_core --pkgconfig-dir' error
    (cd ddl && cargo build --quiet --offline)
    cp ddl/target/debug/allreduce "$program"
    # A crate that depends on it, with the build script that ddl/build.rs shows.
    printf '[package]\nname = "user"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\nddl = { path = "../ddl" }\n' \
        >user/Cargo.toml
    sed -n 's|^//!     ||p' ddl/build.rs >user/build.rs
    mkdir user/src
    echo 'fn main() { assert_eq!(ddl::Endpoint::new().unwrap().rendezvous().unwrap().size(), 1) }' \
        >user/src/main.rs
    (cd user && cargo build --quiet --offline && env -u LD_LIBRARY_PATH target/debug/user)
    ;;
go)
    need go
    export GOCACHE="$folder/cache" GOPROXY=off GOTOOLCHAIN=local
    (cd "$here/go" && go vet ./... && go build -o "$program" .)
    ;;
lua)
    need luajit
    printf '#!/bin/sh\nexec luajit "%s"\n' "$here/lua/allreduce.lua" >"$program"
    chmod +x "$program"
    ;;
mpi)
    need mpicc mpirun
    mpicc -std=c11 -Wall -Wextra -Werror "$here/mpi/allreduce.c" \
        $(pkg-config --cflags --libs libddl) -o "$program"
    # For Open MPI: as root, on however few cores.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    run="mpirun -n 2 $program" words=""
    ;;
cmake)
    cmake -S "$here/cmake" -B "$folder" -DCMAKE_PREFIX_PATH="$prefix" --log-level=WARNING
    cmake --build "$folder"
    ;;
esac

$run >"$folder/output"
sort "$folder/output" >"$folder/sorted"
for rank in 0 1; do
    echo "rank $rank of 2: every sum is 3$words"
done | diff - "$folder/sorted"

# A failed call: libddl's words on stderr, and exit code 1. MPI's ranks do not read these variables.
[ "$example" = mpi ] && exit
code=0
DDL_RANK=0 DDL_SIZE=two DDL_RENDEZVOUS=tcp://127.0.0.1:1 "$program" 2>"$folder/error" || code=$?
if [ "$code" != 1 ] || ! grep -q '"two"' "$folder/error"; then
    echo "with a wrong DDL_SIZE: exit code $code, $(cat "$folder/error")"
    exit 1
fi
