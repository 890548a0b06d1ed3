#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two nodes with four ranks each: sbatch train.sh. Change the numbers, the times and the program.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=1:00:00
#SBATCH --output=train.%j.out
set -eu

# Each job has a new secret, which reaches the ranks only by the environment.
DDL_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export DDL_SECRET
# libddl is installed in this environment, on a file system that all nodes have.
exec srun --kill-on-bad-exit=1 "${VENV:-$HOME/venv}/bin/python" "${1:-train.py}"
