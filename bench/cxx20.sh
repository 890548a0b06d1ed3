#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A C++ compiler for Horovod 0.28, which asks for C++14; PyTorch's headers need more.
options=()
for option in "$@"; do
  case $option in -std=c++1?) option=-std=c++20 ;; esac
  options+=("$option")
done
exec c++ "${options[@]}" -include cstdint
