#!/usr/bin/env bash
# Starts training on several hosts with Open MPI's mpirun, and restarts it if it is lost.
#   bash scripts/launch_mpirun.sh HOSTFILE RANKS_PER_HOST [--hosts N] OPTION…       options of train_gpt
# HOSTFILE has one line per host, such as `node17 slots=8`; N hosts take part (default: all), the others are
# spares. The repository with its build, the token files and the checkpoint folder must have the same paths
# on all hosts. Ranks fill host after host, so that a tensor group of up to RANKS_PER_HOST ranks is on one
# host; a rank uses the GPU whose index is its local rank. If the folder of --save holds checkpoints, the run
# resumes from the newest. What happens when a run ends with an error: scripts/launch.py.
set -euo pipefail
from=$PWD
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,8s/^# //p' "scripts/${0##*/}"; exit ;; esac
[ $# -ge 3 ] || { sed -n '2,8s/^# //p' "scripts/${0##*/}"; exit 1; }
hosts=$1
shift
[[ $hosts = /* ]] || hosts=$from/$hosts
exec python3 scripts/launch.py mpirun "$hosts" "$@"
