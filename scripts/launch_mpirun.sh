#!/usr/bin/env bash
# Starts training on several hosts with Open MPI's mpirun, and starts it again when it is lost.
#   bash scripts/launch_mpirun.sh HOSTFILE RANKS_PER_HOST [--hosts N] OPTION…       options of train_gpt
# HOSTFILE has a line a host, as `node17 slots=8`; of them N take part (default: all), the others are spares.
# The repository, with its build, the token files and the folder for checkpoints must be at the same path on
# all of them. Ranks fill host after host, so that a tensor group of up to RANKS_PER_HOST ranks lies on one
# host; a rank takes the GPU of its number on the host. If --save names a folder that holds checkpoints, the
# run goes on from the newest. What happens when a run ends with an error: scripts/launch.py.
set -euo pipefail
from=$PWD
cd "$(dirname "$0")/.."
[ $# -ge 3 ] || { sed -n '2,8s/^# //p' "$0"; exit 1; }
hosts=$1
shift
[[ $hosts = /* ]] || hosts=$from/$hosts
exec python3 scripts/launch.py mpirun "$hosts" "$@"
