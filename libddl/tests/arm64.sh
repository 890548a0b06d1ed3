#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# arm64.sh - the reduce layer and its tests, built for arm64 and run under qemu. Exit 77: skipped.
set -eu
libddl=$(cd "$(dirname "$0")/.." && pwd)
cc=${CC_ARM64:-aarch64-linux-gnu-gcc}
qemu=${QEMU_ARM64:-qemu-aarch64}

for tool in "$cc" "$qemu"; do
    command -v "$tool" >/dev/null || { echo "arm64.sh: skipped, no $tool" >&2; exit 77; }
done
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
echo '#include <math.h>' | "$cc" -x c -fsyntax-only - 2>/dev/null ||
    { echo "arm64.sh: skipped, $cc finds no C library (libc6-dev-arm64-cross)" >&2; exit 77; }

compile() { # file flags...
    file=$1
    shift
    "$cc" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wshadow -Wswitch-enum -Werror \
        -ffp-contract=off -I"$libddl/include" -I"$libddl/src" -I"$libddl/tests/support" "$@" \
        -c "$libddl/$file" -o "$build/$(basename "$file" .c).o"
}
compile src/base/dtype.c
compile src/plan/order.c
compile src/reduce/dispatch.c
compile src/reduce/fold.c
compile src/reduce/portable.c
compile src/reduce/neon.c -O3
set -- "$build"/*.o
for program in reduce/test_reduce reduce/test_reduce_small_floats plan/test_fold \
    reduce/test_reduce_scale base/test_fp_mode; do
    compile "tests/$program.c"
    test=$(basename "$program")
    "$cc" -static "$build/$test.o" "$@" -lm -o "$build/$test"
    "$qemu" "$build/$test"
done
