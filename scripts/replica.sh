#!/usr/bin/env bash
# A whole replica of the 530B model on this machine, by its own recipe (scripts/mtnlg-530b.conf and its blend
# of 15 sets): all 280 ranks of tensor 8 x pipeline 35, all 105 layers, real processes and real messages
# through MPI, at toy width. Two steps of a batch ramp, of 6 micro-batches (fewer than stages) and of 39
# (more), in fp64 must give the losses and gradient norms of one process, to 1e-10. The last line is
# `N passed, N failed`.
#   bash scripts/replica.sh [OPTION VALUE]…     options of train_gpt, for both runs
case "${1:-}" in -h | --help) sed -n '2,7s/^# //p' "$0"; exit ;; esac
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
make -s DEVICE=cpu PRECISION=fp64 build/cpu-fp64/train_gpt build/cpu-fp64/tokenize
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp scripts/mtnlg-530b.blend "$work"
cat Makefile layers/*.cuh > "$work/all"
split -n l/15 "$work/all" "$work/text."
texts=("$work"/text.*)
for set in $(awk '/^[0-9]/ { print $2 }' scripts/mtnlg-530b.blend); do
    build/cpu-fp64/tokenize --vocabulary bytes --output "$work/${set%.bin}" "${texts[0]}" > /dev/null
    texts=("${texts[@]:1}")
done

# the recipe, but for the width, and for a ramp and a learning rate that get somewhere in two steps: the batch
# grows by 33 after 6 samples, as it does there by 32 after 12e9 tokens / 59
model=(--config scripts/mtnlg-530b.conf --train "$work/mtnlg-530b.blend" --layers 105 --hidden 32 --heads 8
       --sequence 16 --vocabulary 257 --pad-vocabulary 264 --steps 2
       --ramp-start 6 --ramp-increment 33 --ramp-tokens $((58 * 6 * 16))
       --learning-rate 1e-3 --warmup-tokens 0 --comm-timeout 1800 "$@")
cores=$(nproc)
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
       OMPI_MCA_rmaps_base_oversubscribe=1 \
       OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none \
       OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_pml=ob1

echo "== one process"
build/cpu-fp64/train_gpt "${model[@]}" --tensor-parallel 1 --pipeline-parallel 1 \
    --save "$work/one" --metrics "$work/one.jsonl" | grep -E '^step|^model'
echo "== 280 ranks: tensor 8 x pipeline 35 on $cores cores"
least_free=$(mktemp -p "$work")
(while sleep 1; do awk '/MemAvailable/ { print $2 }' /proc/meminfo >> "$least_free"; done) &
watcher=$!
before=$(awk '/MemAvailable/ { print $2 }' /proc/meminfo)
start=$(date +%s)
# mpirun before all of its ranks (SCHED_IDLE): one that ends waits two seconds for mpirun's answer (PMIx has
# that limit), and without it mpirun counts it as lost
mpirun -n 280 chrt --idle 0 build/cpu-fp64/train_gpt "${model[@]}" \
    --save "$work/280" --metrics "$work/all.jsonl" \
    > "$work/log" 2>&1 ||
    {  # the ranks' own words come before mpirun's
        grep -vE '^(  |$)' "$work/log" | head -40
        tail -40 "$work/log"
        kill $watcher
        exit 1
    }
took=$(($(date +%s) - start))
kill $watcher
# both checkpoints, of one file and of 280, in one process: the same weights and moments give the same steps
for each in one 280; do
    build/cpu-fp64/train_gpt "${model[@]}" --tensor-parallel 1 --pipeline-parallel 1 --resume "$work/$each" \
        --save "$work/next-$each" --metrics "$work/from-$each.jsonl" --steps 4 --batch 6 --ramp-start 0 |
        grep '^resumed'
done
grep -vE '^  [a-z0-9-]+ +[^ ]+$|^settings' "$work/log"
least=$(sort -n "$least_free" | head -1)
echo "280 ranks: $took s, $(((before - least) / 1024)) MB of the machine's memory at most"
python3 - "$work" <<'PYTHON'
import json, sys
def lines_of(name):
    return [json.loads(line) for line in open(f"{sys.argv[1]}/{name}.jsonl")]
one, all280 = lines_of("one"), lines_of("all")
passed = failed = 0
def check(good):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    return "equal to 1e-10" if good else "DIFFERENT"
def near(x, y):
    return abs(x - y) <= 1e-10 * (1 + abs(x))
for a, b in zip(one, all280):
    for key in ("loss", "gradient_norm"):
        verdict = check(near(a[key], b[key]))
        print(f"step {a['step']} {key}: {a[key]:.15g} in one process, {b[key]:.15g} in 280: {verdict}")
    sets, others = a["losses"], b["losses"]
    verdict = check(sets.keys() == others.keys() and all(near(sets[name], others[name]) for name in sets))
    print(f"step {a['step']} losses of the {len(sets)} sets that it drew from: {verdict}")
for a, b in zip(lines_of("from-one"), lines_of("from-280"), strict=True):
    verdict = check(all(near(a[key], b[key]) for key in ("loss", "gradient_norm")))
    print(f"step {a['step']} of one process, from the checkpoint of one and of 280: {verdict}")
tokens = [[line["tokens"] for line in lines] for lines in (one, all280)]
check(tokens == [[6 * 16, 45 * 16]] * 2)  # the ramp
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
PYTHON
