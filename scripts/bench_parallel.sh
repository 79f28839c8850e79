#!/usr/bin/env bash
# What parallelism costs on this machine: two ranks with one thread each against one rank with two threads,
# the same global batch, layers of the 124M model, in fp32. Runs alternate; a layout's figure is its fastest
# step. Prints one table with the ratios. Run: make bench-parallel
case "${1:-}" in -h | --help) sed -n '2,4s/^# //p' "$0"; exit ;; esac
set -euo pipefail
cd "$(dirname "$0")/.."
make -s DEVICE=cpu PRECISION=fp32 build/cpu-fp32/train_gpt build/cpu-fp32/tokenize
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat Makefile layers/*.cuh layers/*/*.h > "$work/text"
build/cpu-fp32/tokenize --vocabulary bytes --output "$work/data" "$work/text" > /dev/null
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

run() {  # run NAME RANKS THREADS [OPTION VALUE]…
    local name=$1 ranks=$2 threads=$3
    shift 3
    OMP_NUM_THREADS=$threads mpirun -n "$ranks" --bind-to none build/cpu-fp32/train_gpt \
        --train "$work/data.bin" --layers 12 --hidden 768 --heads 12 --sequence 128 --batch 32 \
        --micro-batch 1 --steps 3 --metrics "$work/step" "$@" > "$work/log" 2>&1 ||
        { tail -20 "$work/log"; exit 1; }
    cat "$work/step" >> "$work/$name.jsonl"
    rm "$work/step"
}
for _ in 1 2 3; do
    run "one rank" 1 2
    run "tensor 2" 2 1 --tensor-parallel 2
    run "pipeline 2" 2 1 --pipeline-parallel 2
    run "data 2" 2 1
done
python3 - "$work" <<'PYTHON'
import json, sys
best = {}
for name in ("one rank", "tensor 2", "pipeline 2", "data 2"):
    steps = [json.loads(line) for line in open(f"{sys.argv[1]}/{name}.jsonl")]
    best[name] = 32 * 128 / min(step["seconds"] for step in steps)
print("12 layers of the 124M model, T 128, 32 micro-batches of 1, fp32; fastest of 9 steps")
for name, speed in best.items():
    print(f"  {name:11} {speed:7.1f} tokens/s  {speed / best['one rank']:5.2f} x one rank with two threads")
PYTHON
