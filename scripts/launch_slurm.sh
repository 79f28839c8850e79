#!/usr/bin/env bash
# Starts training under Slurm. The number of nodes and the options of train_gpt come from the command line:
#   sbatch --nodes 280 scripts/launch_slurm.sh --tensor-parallel 8 --pipeline-parallel 35 --save /shared/run
#   OPTION…
# Ranks fill node after node (block), so that a tensor group of 8 lies on one node; a rank takes the GPU of
# its number on the node. Ten minutes before the time is up every rank gets SIGTERM: the step is finished, the
# checkpoint saved, and the job queued again, which goes on from the newest checkpoint in --save.
#SBATCH --job-name=train_gpt
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --distribution=block:block
#SBATCH --signal=TERM@600
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}"
if ! [ -x ./train_gpt ]; then
    echo "launch_slurm.sh: no ./train_gpt in $PWD: run make there, and sbatch from there" >&2
    exit 1
fi
[ $# -ge 1 ] || { sed -n '2,6s/^# //p' "$0"; exit 1; }

. scripts/resume_from_save.sh
resume_from_save "$@"
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
log=$(mktemp)
srun --mpi="${SLURM_MPI_TYPE:-pmix}" --kill-on-bad-exit=1 ./train_gpt "$@" "${resume[@]}" | tee "$log"
if grep -q '^stopped by a signal' "$log" && [ -n "$save" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
