#!/usr/bin/env bash
# Starts or resumes the MT-NLG 530B run: 8-way tensor x 35-way pipeline parallelism, 35 nodes per replica.
#   bash scripts/launch_530b.sh slurm NODES[+SPARES] --train mtnlg-530b.blend --save /shared/mtnlg OPTION…
#   bash scripts/launch_530b.sh mpirun HOSTFILE[+SPARES] --train mtnlg-530b.blend --save /shared/mtnlg OPTION…
# NODES, or the hosts in HOSTFILE without the SPARES: 280 (8 replicas), 350 (10) or 420 (12), or another
# multiple of 35 whose replicas divide the batch of 1920. The batch ramp has increments of 32 sequences: only
# 1, 2, 4, 8, 16 or 32 replicas can start the run; 10 and 12 can resume from a checkpoint after the ramp.
# Anything else is rejected at the start, with the reason.
set -euo pipefail
from=$PWD
cd "$(dirname "$0")/.."
usage() { sed -n '2,8s/^# //p' "scripts/${0##*/}"; exit "$1"; }
case "${1:-}" in -h | --help) usage 0 ;; esac
[ $# -ge 2 ] || usage 1
how=$1 where=$2
shift 2
spares=0
if [[ $where =~ ^(.+)\+([0-9]+)$ ]]; then where=${BASH_REMATCH[1]} spares=$((10#${BASH_REMATCH[2]})); fi
case "$how" in
    slurm) nodes=$where ;;
    mpirun)
        [[ $where = /* ]] || where=$from/$where
        if ! [ -r "$where" ]; then
            echo "launch_530b.sh: $where cannot be read: give a file with one line per host" >&2
            exit 1
        fi
        nodes=$(($(grep -cvE '^[[:space:]]*(#|$)' "$where" || true) - spares)) ;;
    *) usage 1 ;;
esac
[[ $nodes =~ ^[1-9][0-9]*$ ]] && [ $((nodes % 35)) = 0 ] || {
    echo "launch_530b.sh: $nodes nodes: a replica takes 35: give a multiple, such as 280, 350 or 420" >&2
    exit 1
}
options=(--config scripts/mtnlg-530b.conf --world-size $((nodes * 8)))
if [ "$how" = slurm ]; then
    exec sbatch --nodes "$((nodes + spares))" scripts/launch_slurm.sh --hosts "$nodes" "${options[@]}" "$@"
fi
exec bash scripts/launch_mpirun.sh "$where" 8 --hosts "$nodes" "${options[@]}" "$@"
