#!/usr/bin/env bash
# Starts training under Slurm, and restarts it if it is lost. The number of nodes and the options of
# train_gpt come from the command line; N of the nodes take part (default: all), the others are spares:
#   sbatch --nodes 284 scripts/launch_slurm.sh --hosts 280 --tensor-parallel 8 --pipeline-parallel 35
#   --save /shared/run OPTION…
# One node with four GPUs, with what a cluster may ask for (options of sbatch come before the script's name):
#   sbatch --nodes 1 --ntasks-per-node 4 --gpus-per-node 4 --partition gpu --account me --time 4:00:00
#   scripts/launch_slurm.sh --save run OPTION…
# Modules are loaded before: module load cuda nccl openmpi; sbatch passes the environment on.
# Give each rank some cores (sbatch --cpus-per-task 8): NCCL, reading and saving have threads of their own.
# Ranks fill node after node (block), so that a tensor group of 8 is on one node; a rank uses the GPU whose
# index is its local rank. Ten minutes before the time limit Slurm signals the launcher: the ranks finish
# their step and save, and the job is requeued, to resume from the newest checkpoint in --save. After a crash,
# training is restarted within the job, without the nodes that it was lost on: scripts/launch.py.
#SBATCH --job-name=train_gpt
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --distribution=block:block
#SBATCH --signal=B:TERM@600
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,14s/^# //p' "$0"; exit ;; esac
[ $# -ge 1 ] || { sed -n '2,14s/^# //p' "$0"; exit 1; }
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}"
if ! [ -r scripts/launch.py ]; then
    echo "launch_slurm.sh: $PWD is not the repository: sbatch from there" >&2
    exit 1
fi
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
# since Slurm 22.05 srun does not take sbatch's
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
exec python3 scripts/launch.py slurm "$@"
