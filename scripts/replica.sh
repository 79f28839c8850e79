#!/usr/bin/env bash
# A whole replica of the 530B model's layout on this machine: all 280 ranks of tensor 8 x pipeline 35, all 105
# layers, real processes and real messages through MPI, at toy width. Two steps of 36 micro-batches in fp64
# must give the losses and gradient norms of one process, to 1e-10. The last line is `N passed, N failed`.
#   bash scripts/replica.sh [OPTION VALUE]…     options of train_gpt, for both runs
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
make -s DEVICE=cpu PRECISION=fp64 build/cpu-fp64/train_gpt build/cpu-fp64/tokenize
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat Makefile layers/*.cuh > "$work/text"
build/cpu-fp64/tokenize --vocabulary bytes --output "$work/data" "$work/text" > /dev/null

model=(--train "$work/data.bin" --layers 105 --hidden 32 --heads 8 --sequence 16
       --vocabulary 257 --pad-vocabulary 264 --batch 36 --micro-batch 1 --steps 2
       --learning-rate 1e-3 --clip 0.5 --comm-timeout 300 "$@")
layout=(--tensor-parallel 8 --pipeline-parallel 35 --recompute full --check-every 2)
cores=$(nproc)
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
       OMPI_MCA_rmaps_base_oversubscribe=1 \
       OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none \
       OMPI_MCA_hwloc_base_binding_policy=none

echo "== one process"
build/cpu-fp64/train_gpt "${model[@]}" --metrics "$work/one.jsonl" | grep -E '^step|^model'
echo "== 280 ranks: tensor 8 x pipeline 35 on $cores cores"
least_free=$(mktemp -p "$work")
(while sleep 1; do awk '/MemAvailable/ { print $2 }' /proc/meminfo >> "$least_free"; done) &
watcher=$!
before=$(awk '/MemAvailable/ { print $2 }' /proc/meminfo)
start=$(date +%s)
mpirun -n 280 build/cpu-fp64/train_gpt "${model[@]}" "${layout[@]}" --metrics "$work/all.jsonl" \
    > "$work/log" 2>&1 ||
    { tail -20 "$work/log"; kill $watcher; exit 1; }
took=$(($(date +%s) - start))
kill $watcher
grep -vE '^  [a-z0-9-]+ +[^ ]+$|^settings' "$work/log"
least=$(sort -n "$least_free" | head -1)
echo "280 ranks: $took s, $(((before - least) / 1024)) MB of the machine's memory at most"
python3 - "$work" <<'PYTHON'
import json, sys
one, all280 = ([json.loads(line) for line in open(f"{sys.argv[1]}/{name}.jsonl")] for name in ("one", "all"))
passed = failed = 0
for a, b in zip(one, all280):
    for key in ("loss", "gradient_norm"):
        good = abs(a[key] - b[key]) <= 1e-10 * (1 + abs(a[key]))
        passed, failed = passed + good, failed + (not good)
        verdict = "equal to 1e-10" if good else "DIFFERENT"
        print(f"step {a['step']} {key}: {a[key]:.15g} in one process, {b[key]:.15g} in 280: {verdict}")
if len(one) != 2 or len(all280) != 2:
    failed += 1
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
PYTHON
