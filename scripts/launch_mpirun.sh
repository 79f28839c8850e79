#!/usr/bin/env bash
# Starts training on several hosts with Open MPI's mpirun: as many ranks on each host as it has GPUs.
#   bash scripts/launch_mpirun.sh HOSTFILE RANKS_PER_HOST OPTION…       options of train_gpt
# HOSTFILE has a line a host, as `node17 slots=8`. The repository, with its build, the token files and the
# folder for checkpoints must be at the same path on all of them. Ranks fill host after host, so that a tensor
# group of up to RANKS_PER_HOST ranks lies on one host; a rank takes the GPU of its number on the host. If
# --save names a folder that holds checkpoints, the run goes on from the newest.
set -euo pipefail
from=$PWD
cd "$(dirname "$0")/.."
[ $# -ge 3 ] || { sed -n '2,8s/^# //p' "$0"; exit 1; }
hosts=$1 each=$2
shift 2
[[ $hosts = /* ]] || hosts=$from/$hosts
if ! [ -r "$hosts" ]; then
    echo "launch_mpirun.sh: $hosts cannot be read: give a file with a line a host" >&2
    exit 1
fi
[[ $each =~ ^[1-9][0-9]*$ ]] || { echo "launch_mpirun.sh: $each ranks per host: wants a number" >&2; exit 1; }
count=$(grep -cvE '^[[:space:]]*(#|$)' "$hosts" || true)
[ "$count" -gt 0 ] || { echo "launch_mpirun.sh: $hosts names no host" >&2; exit 1; }

. scripts/resume_from_save.sh
resume_from_save "$@"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec mpirun --hostfile "$hosts" -n $((count * each)) --map-by "ppr:$each:node" --bind-to none \
    -x OMP_NUM_THREADS $(compgen -e | sed -n 's/^\(NCCL_.*\|CUDA_.*\)$/-x \1/p') \
    "$PWD/train_gpt" "$@" "${resume[@]}"
