#!/usr/bin/env bash
# All checks, on this machine: bash scripts/test.sh. The last line is `N passed, N failed`.
#   cpu fp64       ref against finite differences and PyTorch, to 1e-7 and 1e-10
#   cpu fp32       what a user without a GPU runs, whole: data, training, kill -9 and resume, bad input
#   emulated       every CUDA kernel against ref, in fp32 and bf16, in several orders of threads
#   parallel       tensor- and data-parallel layouts under mpirun, each equal to one process to 1e-10
#   cuda           the same on a GPU, where there is one
# More is checked where ../shared/data has GPT-2's vocabulary and real text.
set -uo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh || exit 1
passed=0
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED  $*"; }
expect() {  # expect WHAT COMMAND…: the command succeeds
    local what=$1
    shift
    if "$@" > "$work/log" 2>&1; then good; else bad "$what"; tail -5 "$work/log"; fi
}

variant() {  # variant DEVICE PRECISION [CHAPTER…]: build it, run its chapters, add up what they print
    local build="build/$1-$2" device=$1 precision=$2
    shift 2
    echo "== $device, $precision"
    if ! make -s -j2 DEVICE="$device" PRECISION="$precision" > "$work/build" 2>&1 || grep -q warning "$work/build"; then
        bad "the build of $device $precision is not clean"
        cat "$work/build"
        return
    fi
    "$build/test_gpt" "$@" 2> "$work/stderr" | tee "$work/out"
    local last
    last=$(tail -1 "$work/out")
    if [[ $last =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
    else
        bad "$build/test_gpt ended early"
        tail -5 "$work/stderr"
    fi
}

variant cpu fp64
variant emulated fp32
variant emulated bf16 kernels pytorch training
if nvidia-smi -L > /dev/null 2>&1 && command -v nvcc > /dev/null; then
    variant cuda fp32
    variant cuda bf16
fi
variant cpu fp32  # last, so that ./train_gpt is the one of this machine without a GPU

echo "== tensor, pipeline and data parallel"
if command -v mpirun > /dev/null; then
    python3 scripts/test_parallel.py build/cpu-fp64 build/cpu-fp32 build/emulated-fp32 | tee "$work/out"
    if [[ $(tail -1 "$work/out") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
    else
        bad "scripts/test_parallel.py ended early"
    fi
else
    bad "mpirun is not here: run scripts/install.sh"
fi

echo "== whole programs"
cat Makefile layers/*.cuh > "$work/text.txt"
expect "tokenize" ./tokenize --vocabulary bytes --validation 0.1 --output "$work/text" "$work/text.txt"

# the trainer in emulation and in ref: the same losses; sums in another order differ by 1e-7 and grow slowly
run="--train $work/text.train.bin --layers 2 --hidden 32 --heads 2 --sequence 24 --batch 4 --micro-batch 2 --steps 5"
expect "a run in ref" build/cpu-fp32/train_gpt $run --metrics "$work/ref.jsonl"
expect "a run in emulation" build/emulated-fp32/train_gpt $run --metrics "$work/emulated.jsonl"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
expect "the kernels over two tensor-parallel ranks" env OMP_NUM_THREADS=1 mpirun -n 2 build/emulated-fp32/train_gpt $run \
    --tensor-parallel 2 --pad-vocabulary 128 --metrics "$work/emulated2.jsonl"
expect "emulation and ref train alike" python3 - "$work" <<'PYTHON'
import json, sys
a, b, c = ([json.loads(line)["loss"] for line in open(f"{sys.argv[1]}/{n}.jsonl")] for n in ("ref", "emulated", "emulated2"))
assert len(a) == 5 and all(abs(x - y) < 1e-4 and abs(x - z) < 1e-4 for x, y, z in zip(a, b, c)), (a, b, c)
PYTHON

# flash attention and the one with scores in memory: the same losses for 200 steps. In fp32 they differ by sums in
# another order (1e-7, growing); in bf16 by what each rounds: losses, means over 160 tokens, by less than 4e-3
long="--train $work/text.train.bin --layers 1 --hidden 64 --heads 1 --sequence 40 --batch 4 --micro-batch 2 --steps 200"
for build in cpu-fp32 emulated-bf16; do
    for attention in flash materialised; do
        expect "$attention in $build" build/$build/train_gpt $long --learning-rate 1e-3 --attention $attention \
            --metrics "$work/$build-$attention.jsonl"
    done
done
expect "flash attention trains as the other one" python3 - "$work" <<'PYTHON'
import json, sys
for build, most in (("cpu-fp32", 1e-4), ("emulated-bf16", 4e-3)):
    a, b = ([json.loads(line)["loss"] for line in open(f"{sys.argv[1]}/{build}-{n}.jsonl")] for n in ("flash", "materialised"))
    off = max(abs(x - y) for x, y in zip(a, b))
    assert len(a) == len(b) == 200 and a[0] > 5 and a[-1] < 3.6 and 0 < off < most, (build, a[0], a[-1], off)
PYTHON

# a plan for GPUs, made by a build for CPUs in fp32, is that of a build with kernels in bf16, but for cuBLASLt's workspace
shape="--plan --layers 8 --hidden 64 --heads 4 --sequence 32 --batch 16 --micro-batch 1 --plan-json"
for layout in "" "--tensor-parallel 2 --pipeline-parallel 4 --world-size 16 --pipeline-chunks 2" \
              "--tensor-parallel 4 --world-size 8 --sequence-parallel no --recompute full --zero 0"; do
    expect "a plan in fp32 for bf16" build/cpu-fp32/train_gpt $shape "$work/a.json" $layout --hardware dgx-a100
    expect "a plan in bf16" build/emulated-bf16/train_gpt $shape "$work/b.json" $layout --hardware here
    expect "the same plan" python3 - "$work" <<'PYTHON'
import json, sys
a, b = (json.load(open(f"{sys.argv[1]}/{n}.json"))["stages"] for n in "ab")
for stage in a:
    assert stage["memory"].pop("products") == 32 << 20
for stage in b:
    assert stage["memory"].pop("products") == 0
assert a == b and len(a) in (1, 4) and all(stage["memory"]["parameters"] > 0 for stage in a), (a, b)
PYTHON
done

# a checkpoint to Hugging Face's form and back: the same weights
expect "a checkpoint" ./train_gpt $run --save "$work/saved"
expect "to Hugging Face" ./convert --from-checkpoint "$work/saved" --to-huggingface "$work/hf"
expect "from Hugging Face" ./convert --from-huggingface "$work/hf" --to "$work/back"
expect "and to it again" ./convert --from-checkpoint "$work/back" --to-huggingface "$work/hf2"
expect "the same bytes" cmp "$work/hf/model.safetensors" "$work/hf2/model.safetensors"
expect "it trains on" ./train_gpt --resume "$work/back" --train "$work/text.train.bin" --batch 4 --steps 2 --save "$work/on"
head -c 5000 "$work/hf/model.safetensors" > "$work/hf2/model.safetensors"
cp "$work/hf/model.safetensors" "$work/hf/whole"
refused() {  # refused TEXT COMMAND…: the command fails with 1 and says TEXT
    local text=$1
    shift
    "$@" > "$work/log" 2>&1
    if [ $? = 1 ] && grep -q -- "$text" "$work/log"; then good; else bad "$* does not say $text"; cat "$work/log"; fi
}
refused "truncated" ./convert --from-huggingface "$work/hf2" --to "$work/none"
printf '\377\377\377\377\377\377\377\177' | dd of="$work/hf/model.safetensors" conv=notrunc status=none
refused "truncated or foreign" ./convert --from-huggingface "$work/hf" --to "$work/none"
refused "cannot be read" ./convert --from-huggingface "$work/none" --to "$work/none2"
sed -i 's/"n_embd": 32/"n_embd": 33/' "$work/hf/config.json"
cp "$work/hf/whole" "$work/hf/model.safetensors"
refused "does not divide" ./convert --from-huggingface "$work/hf" --to "$work/none"
refused "did you mean --to-huggingface" ./convert --to-hugingface x
refused "wants --plan" ./train_gpt --timeline x.svg
refused "start 8, or leave the option out" ./train_gpt $run --world-size 8
refused "choose one of these" ./train_gpt $run --trace "$work/x.svg" --trace-step 6
refused "cannot be written" ./train_gpt $run --trace "$work/nowhere/x.svg"
refused "choose one of dgx-a100" ./train_gpt $run --hardware dgx
refused "does not go with --plan" ./train_gpt --plan --trace x.svg
refused "cannot be written" ./train_gpt --plan --timeline "$work/nowhere/x.svg"
refused "35: give a multiple" bash scripts/launch_530b.sh slurm 36
expect "every configuration can be planned" bash -c 'for c in scripts/*.conf; do
    eval "$(sed -n "s/^#   \(.*--plan\)$/\1/p" "$c")" || exit 1; done'

data=../shared/data
if [ -d "$data" ]; then
    echo "== GPT-2's vocabulary and real text"
    expect "GPT-2 tokens" ./tokenize --vocabulary $data/gpt2/vocab.bpe --output "$work/ts" $data/tinyshakespeare.txt
    sum=$(tail -c +65 "$work/ts.bin" | head -c 676050 | sha256sum | cut -d' ' -f1)
    if [ "$sum" = 25c01b32b32f41897a6359dd222ec114992dc30c357bcafbfe6c56672f76cd31 ]; then good; else bad "sha256 $sum"; fi
    expect "decoding gives it back" bash -c "./tokenize --decode $work/ts.bin --vocabulary $data/gpt2/vocab.bpe |
        cmp - $data/tinyshakespeare.txt"
    refused "did you mean" ./tokenize --vocabulry x
    expect "a larger vocabulary trains" ./train_gpt --train "$work/ts.bin" --layers 1 --hidden 16 --heads 2 --sequence 32 --steps 2
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
