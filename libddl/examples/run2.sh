#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run2.sh PROGRAM - two ranks of a program on this machine, without ddlrun. Fails if either fails.
set -eu
export DDL_RENDEZVOUS="tcp://127.0.0.1:$((20000 + $$ % 10000))" DDL_SIZE=2
DDL_RANK=1 "$1" &
DDL_RANK=0 "$1"
wait $!
