#!/usr/bin/env bash
# All checks, on this machine: bash scripts/test.sh. The last line is `N passed, N failed`.
# Some of them: bash scripts/test.sh PART…
#   units       the chapters of ./test_gpt, in builds for the CPU (fp64, against finite differences and
#               PyTorch; fp32; bf16 where oneDNN is), for every CUDA kernel in emulation (fp32, bf16), and for
#               a GPU, where there is one
#   parallel    tensor, pipeline and data parallelism under mpirun, equal to one process to 1e-10
#   nccl        comm_nccl.cpp over a stand-in for NCCL
#   start       refused options and folders, on every rank
#   hosts       four hosts: network namespaces with sshd
#   operations  --trace, --profile, --record and the plan of each operation
#   autotune    choices of the autotuner
#   evaluate    evaluation, generation and the server
#   faults      killed, late and damaged runs, disks and hosts
#   corpus      ./corpus, where its libraries are (scripts/install.sh --with-corpus)
#   programs    whole programs: flash against materialised attention, plans, formats, bias, first_contact.sh
#   figures     the published figures, and metrics
#   tour        the guided tour
#   readme      what the READMEs show
#   data        GPT-2's vocabulary, real text and the tasks' files, where ../shared/data has them
set -uo pipefail
cd "$(dirname "$0")/.."
parts="units parallel nccl start hosts operations autotune evaluate faults corpus programs figures tour
    readme data"
parts=$(echo $parts)
chosen=${*:-$parts}
for each in $chosen; do
    case " $parts " in
        *" $each "*) ;;
        *)
            sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "scripts/${0##*/}"
            [ "$each" = --help ] || [ "$each" = -h ] && exit 0
            echo "test.sh: no part $each: choose some of $parts" >&2
            exit 1
            ;;
    esac
done
bash scripts/install.sh || exit 1
export OMP_WAIT_POLICY=passive  # builds run beside checks: threads that spin keep others from their processor
passed=0
failed=0
work=$(mktemp -d)
builder=
trap 'rm -rf "$work"; [ -z "$builder" ] || { pkill -P $builder; kill $builder; } 2> /dev/null' EXIT

part() { echo "== $(date +%T) $*"; }
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED  $*"; }
skips=()
skip() { skips+=("$*"); }  # skip WHY: WHAT, said at the end
expect() {  # expect WHAT COMMAND…: the command succeeds
    local what=$1
    shift
    if "$@" > "$work/log" 2>&1; then good; else bad "$what"; tail -5 "$work/log"; fi
}

refused() {  # refused TEXT COMMAND…: the command fails with 1 and says TEXT
    local text=$1
    shift
    "$@" > "$work/log" 2>&1
    if [ $? = 1 ] && grep -q -- "$text" "$work/log"; then good; else
        bad "$* does not say $text"
        cat "$work/log"
    fi
}
# a helper that does not exist is a check that does not check
command_not_found_handle() {
    echo "test.sh: no such command: $1" | tee -a "$work/missing" >&2
    return 127
}
has_gpu() { command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1; }

variants="cpu-fp64 emulated-fp32 emulated-bf16"
if has_gpu && command -v nvcc > /dev/null; then variants="$variants cuda-fp32 cuda-bf16"; fi
has_onednn() { [ -n "$(make -s onednn-flags)" ]; }
if has_onednn; then variants="$variants cpu-bf16"; fi  # else units() says so
variants="$variants cpu-fp32"
has_mpi() { command -v mpirun > /dev/null; }
has_nccl() { has_mpi && [ -n "$(make -s nccl-folder)" ]; }
has_corpus() { make -s corpus-found > /dev/null 2>&1; }
bin=build/cpu-fp32  # the programs that a user without a GPU has

# the builds that a part needs, in the order in which they are made
wanted() {
    case $1 in
        units) echo "$variants" ;;
        parallel) echo cpu-fp64 emulated-fp32 cpu-fp32 ;;
        nccl) if has_nccl; then echo emulated-fp32 nccl; fi ;;
        start | hosts) echo cpu-fp64 ;;
        operations) echo emulated-fp32 cpu-fp32 ;;
        autotune) echo emulated-fp32 ;;
        evaluate) echo cpu-fp64 emulated-fp32 ;;
        corpus) if has_corpus; then echo cpu-fp32 corpus; fi ;;
        programs)
            echo emulated-fp32 emulated-bf16 cpu-fp32
            if ! has_gpu && has_nccl; then echo rehearsed; fi
            ;;
        *) echo cpu-fp32 ;;
    esac
}
build() {  # build NAME: makes it, and what came of it into files
    local programs="train_gpt test_gpt tokenize tasks convert" settings folder=build/$1
    settings="DEVICE=${1%-*} PRECISION=${1#*-}"
    case $1 in
        cpu-bf16) programs=test_gpt ;;
        emulated-bf16) programs="train_gpt test_gpt" ;;
        corpus) settings="DEVICE=cpu PRECISION=fp32" programs=corpus folder=$bin ;;
        nccl)
            settings="DEVICE=emulated PRECISION=fp32 COMM=nccl"
            programs="train_gpt test_gpt test_nccl" folder=build/emulated-fp32-nccl
            ;;
        rehearsed)
            settings="DEVICE=emulated PRECISION=bf16 COMM=nccl"
            programs=train_gpt folder=build/emulated-bf16-nccl
            ;;
    esac
    # not the programs in the top folder: those are the user's
    make -s -j2 $settings $(printf "$folder/%s " $programs) > "$work/build-$1" 2>&1
    echo $? > "$work/built-$1"
}
for each in $chosen; do wanted "$each"; done | tr ' ' '\n' > "$work/wanted"
{  # one after the other, while the checks of those that are built run
    for each in $variants nccl corpus rehearsed; do
        if grep -qx "$each" "$work/wanted"; then build "$each"; fi
    done
} &
builder=$!

is_built() {  # is_built NAME: waits for it; whether it is there, and without a warning
    while [ ! -s "$work/built-$1" ]; do
        if ! kill -0 $builder 2> /dev/null && [ ! -s "$work/built-$1" ]; then
            echo "test.sh: the builds were ended before $1 was built: run it again"
            exit 1
        fi
        sleep 1
    done
    if [ -e "$work/told-$1" ]; then return "$(cat "$work/told-$1")"; fi
    if [ "$(cat "$work/built-$1")" = 0 ] && ! grep -qs warning "$work/build-$1"; then
        good
        echo 0 > "$work/told-$1"
        return
    fi
    bad "the build of $1 is not clean"
    cat "$work/build-$1"
    echo 1 > "$work/told-$1"
    return 1
}

counted() {  # counted COMMAND…: adds up what its last line says; to check nothing is a failure
    "$@" 2> "$work/stderr" | tee "$work/out"
    local code=${PIPESTATUS[0]}
    if [[ $(tail -1 "$work/out") =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
        if [ "${BASH_REMATCH[1]}" = 0 ]; then bad "$* checked nothing"
        elif [ "${BASH_REMATCH[2]}" = 0 ] && [ "$code" != 0 ]; then bad "$* ended with $code"; fi
    else
        bad "$* ended early"
        tail -20 "$work/stderr"
    fi
}

variant() {  # variant DEVICE-PRECISION [CHAPTER…]: its chapters, when it is built
    part "${1/-/, }"
    is_built "$1" || return
    counted "build/$1/test_gpt" "${@:2}"
}

units() {
    has_onednn || skip "oneDNN is not here: bf16 on a CPU"
    has_gpu || skip "no GPU is here: the kernels on one, but for their emulation"
    for each in $variants; do
        case $each in
            emulated-bf16)
                variant "$each" gemm kernels packed hopper adamw pytorch training overfit scores checkpoint
                ;;
            cpu-bf16) variant "$each" gemm pytorch training overfit scores ;;
            *) variant "$each" ;;
        esac
    done
}

count_checks() { counted python3 "$@"; }  # count_checks SCRIPT BUILD…
parallel() { count_checks scripts/test_parallel.py build/cpu-fp64 build/cpu-fp32 build/emulated-fp32; }
nccl() {
    if has_nccl; then count_checks scripts/test_nccl.py build/emulated-fp32-nccl build/emulated-fp32
    else skip "nccl.h is not here: comm_nccl.cpp"; fi
}
start() { count_checks scripts/test_start.py build/cpu-fp64; }
hosts() { count_checks scripts/test_hosts.py build/cpu-fp64; }
operations() { count_checks scripts/test_operations.py build/cpu-fp32 build/emulated-fp32; }
autotune() { count_checks scripts/test_autotune.py build/emulated-fp32; }
evaluate() {
    count_checks scripts/test_evaluate.py build/cpu-fp64 build/emulated-fp32
    count_checks scripts/test_serve.py build/cpu-fp64
}
faults() { count_checks scripts/test_faults.py build/cpu-fp32; }
corpus() {
    if has_corpus; then
        count_checks scripts/test_corpus.py $bin/corpus $bin/train_gpt
    else
        skip "libraries of scripts/install.sh --with-corpus are not here: ./corpus"
    fi
}

programs() {
cat Makefile layers/*.cuh > "$work/text.txt"
expect "tokenize" $bin/tokenize --vocabulary bytes --validation 0.1 --output "$work/text" "$work/text.txt"

# the trainer in emulation and in ref: the same losses; sums in another order differ by 1e-7 and grow slowly
run="--train $work/text.train.bin --layers 2 --hidden 32 --heads 2 --sequence 24 --batch 4 --micro-batch 2"
run="$run --steps 5"
expect "a run in ref" build/cpu-fp32/train_gpt $run --metrics "$work/ref.jsonl"
expect "a run in emulation" build/emulated-fp32/train_gpt $run --metrics "$work/emulated.jsonl"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
expect "the kernels over two tensor-parallel ranks" env OMP_NUM_THREADS=1 mpirun -n 2 \
    build/emulated-fp32/train_gpt $run \
    --tensor-parallel 2 --pad-vocabulary 128 --metrics "$work/emulated2.jsonl"
expect "emulation and ref train alike" python3 - "$work" <<'PYTHON'
import json, sys
losses = lambda name: [json.loads(line)["loss"] for line in open(f"{sys.argv[1]}/{name}.jsonl")]
a, b, c = map(losses, ("ref", "emulated", "emulated2"))
assert len(a) == 5 and all(abs(x - y) < 1e-4 and abs(x - z) < 1e-4 for x, y, z in zip(a, b, c)), (a, b, c)
PYTHON

# flash attention and the one with scores in memory: the same losses for 200 steps. In fp32 they differ by
# sums in another order (1e-7, growing); in bf16 by what each rounds: losses, means over 160 tokens, by less
# than 4e-3
long="--train $work/text.train.bin --layers 1 --hidden 64 --heads 1 --sequence 40 --batch 4 --micro-batch 2"
long="$long --steps 200"
for build in cpu-fp32 emulated-bf16; do
    for attention in flash materialised; do
        expect "$attention in $build" build/$build/train_gpt $long --learning-rate 1e-3 \
            --attention $attention \
            --metrics "$work/$build-$attention.jsonl"
    done
done
expect "flash attention trains as the other one" python3 - "$work" <<'PYTHON'
import json, sys
for build, most in (("cpu-fp32", 1e-4), ("emulated-bf16", 4e-3)):
    losses = lambda name: [json.loads(line)["loss"] for line in open(f"{sys.argv[1]}/{build}-{name}.jsonl")]
    a, b = losses("flash"), losses("materialised")
    off = max(abs(x - y) for x, y in zip(a, b))
    assert len(a) == len(b) == 200 and a[0] > 5 and a[-1] < 3.6 and 0 < off < most, (build, a[0], a[-1], off)
PYTHON

# --fp8: losses are one rank's to the bit with full recomputation and over pipeline stages; over two
# tensor-parallel ranks, whose shards have scales of their own, they are close, and the same bits however rows
# are held. All runs share the choices that the first ones time: another algorithm's sums round differently
eight="--train $work/text.train.bin --layers 4 --hidden 64 --heads 2 --sequence 32 --batch 8 --micro-batch 2"
eight="$eight --steps 4 --learning-rate 1e-3 --fp8 yes --tuning $work/fp8-choices"
fp8() {  # NAME RANKS OPTION…
    local name=$1 ranks=$2
    shift 2
    expect "fp8: $name" env OMP_NUM_THREADS=1 mpirun -n "$ranks" build/emulated-bf16/train_gpt $eight "$@" \
        --metrics "$work/fp8-$name.jsonl"
}
if has_mpi; then
    fp8 one 1
    fp8 one-full 1 --recompute full
    fp8 one-p2 2 --pipeline-parallel 2 --pipeline-chunks 2
    fp8 two 2 --tensor-parallel 2
    fp8 two-rows 2 --tensor-parallel 2 --sequence-parallel no
    fp8 two-p2 4 --tensor-parallel 2 --pipeline-parallel 2 --recompute full
    expect "drift between replicas in bf16 is found" env OMP_NUM_THREADS=1 mpirun -n 4 \
        build/emulated-bf16/test_gpt replicas
    fp8 head 1 --fp8-lm-head yes --save "$work/fp8-head"
    expect "a run in fp8 that goes on in bf16" build/emulated-bf16/train_gpt --train "$work/text.train.bin" \
        --resume "$work/fp8-head" --save no --fp8 no --steps 5 --micro-batch 2
    fp8 head-chunk 1 --fp8-lm-head yes --loss-chunk 64  # all rows: the loss moves into backward
    fp8 head-p2 2 --fp8-lm-head yes --pipeline-parallel 2 --pipeline-chunks 2
    fp8 head-two 2 --fp8-lm-head yes --tensor-parallel 2
    fp8 head-rows 4 --fp8-lm-head yes --tensor-parallel 2 --pipeline-parallel 2 --recompute full
    fp8 head-some 1 --fp8-lm-head yes --loss-chunk 16
    expect "fp8 in every layout" python3 - "$work" <<'PYTHON'
import json, sys
def losses(name):
    return [json.loads(line)["loss"] for line in open(f"{sys.argv[1]}/fp8-{name}.jsonl")]
one, two = losses("one"), losses("two")
assert len(one) == 4 and one[-1] < one[0] - 0.5, one
assert losses("one-full") == one and losses("one-p2") == one, (one, losses("one-full"), losses("one-p2"))
assert losses("two-rows") == two and losses("two-p2") == two, (two, losses("two-rows"), losses("two-p2"))
head = losses("head")
for same in (losses("head-chunk"), losses("head-p2")):
    assert same == head, (head, same)
assert losses("head-rows") == losses("head-two"), (losses("head-rows"), losses("head-two"))
for other in (two, head, losses("head-two"), losses("head-some")):
    assert 0 < max(abs(a / b - 1) for a, b in zip(one, other)) < 3e-3, (one, other)
PYTHON
fi

# a plan for GPUs, made by a build for CPUs in fp32, is that of a build with kernels in bf16
shape="--plan --layers 8 --hidden 64 --heads 4 --sequence 32 --batch 16 --micro-batch 1 --plan-json"
for layout in "" "--tensor-parallel 2 --pipeline-parallel 4 --world-size 16 --pipeline-chunks 2" \
              "--tensor-parallel 4 --world-size 8 --sequence-parallel no --recompute full --zero 0"; do
    expect "a plan in fp32 for bf16" build/cpu-fp32/train_gpt $shape "$work/a.json" $layout \
        --hardware dgx-a100
    expect "a plan in bf16" build/emulated-bf16/train_gpt $shape "$work/b.json" $layout --hardware here
    expect "the same plan" python3 - "$work" <<'PYTHON'
import json, sys
a, b = (json.load(open(f"{sys.argv[1]}/{n}.json"))["stages"] for n in "ab")
assert all(stage["memory"]["GEMM workspace"] == 32 << 20 for stage in a)
assert a == b and len(a) in (1, 4) and all(stage["memory"]["parameters"] > 0 for stage in a), (a, b)
PYTHON
done

# the benchmarks for GPUs, as far as they go without one
if ! has_gpu; then
    # a machine without a BLAS has plain loops
    expect "plain_blas.cpp" g++ -O2 -fopenmp -c -o "$work/plain_blas.o" layers/base/plain_blas.cpp
    expect "first_contact.sh, rehearsed" \
        bash scripts/first_contact.sh --rehearse --output "$work/first" \
        --peer "other=124M=echo 1,234.5 tok/s"
    expect "what it found" python3 - "$work/first" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1] + ".json"))
parts = {p["part"]: p["good"] for p in report["parts"]}
left_out = {name for name, good in parts.items() if good is None}
assert report["rehearsal"] and "mean nothing" in open(sys.argv[1] + ".md").read()
assert all(good is not False for good in parts.values()), parts
assert left_out <= {"PyTorch", "GEMMs of PyTorch"} | {p for p in parts if "NCCL" in p or "nccl" in p}, parts
assert len(report["gemms"]) == 15 and all(row["us"] > 0 for row in report["gemms"].values())
names = [k["kernel"] for k in report["kernels"]]
assert "layer norm backward" in names and "AdamW" in names and len(names) > 20
assert report["steps"]["124M beside peers"]["other"] == [1234.5, 1234.5]
assert len(report["steps"]["124M"]) == 4 and all(len(r) == 2 for r in report["steps"]["124M"].values())
ranks = [p for p in parts if p.startswith("8 ranks over NCCL")]
assert len(ranks) == 1 or left_out, parts
assert "machine" in report["seconds"] and "switches" in report["seconds"]
PYTHON
    # a part that hangs is ended when its time is over, and the next one begins
    expect "a part that hangs" python3 - "$work/hangs" <<'PYTHON'
import json, subprocess, sys
words = ["bash", "scripts/first_contact.sh", "--rehearse", "--output", sys.argv[1], "--hang", "machine"]
done = subprocess.run([*words, "--parts", "machine", "1558M"], capture_output=True, text=True)
report = json.load(open(sys.argv[1] + ".json"))
parts = {p["part"]: p for p in report["parts"]}
assert done.returncode == 1 and not parts["bf16 starts"]["good"], done.stdout
assert "its time was over" in parts["bf16 starts"]["says"], parts
assert parts["1558M, micro-batch 16, batch 16"]["good"] and report["seconds"]["machine"] < 20, report
PYTHON
    expect "thirteen minutes" python3 - <<'PYTHON'
import re, subprocess
listed = subprocess.run(["bash", "scripts/first_contact.sh", "--list"], capture_output=True, text=True).stdout
planned = listed.split("by name only")[0]
seconds = [int(n) for n in re.findall(r"^\w+ +(\d+) s ", planned, re.M)]
assert len(seconds) == 12 and sum(seconds) <= 13 * 60, listed
PYTHON
    refused "no GPU is here" bash scripts/first_contact.sh
fi

# a byte order mark, as some editors put in front, is no part of a text
marked() { printf '\xef\xbb\xbf'; cat; }
printf '{"text": "some words"}\n{"text": "and more of them, and more"}\n' > "$work/lines.jsonl"
marked < "$work/lines.jsonl" > "$work/marked.jsonl"
marked < "$work/text.txt" > "$work/marked.txt"
for each in lines.jsonl marked.jsonl marked.txt; do
    expect "tokens of $each" $bin/tokenize --vocabulary bytes --output "$work/tokens-$each" "$work/$each"
done
expect "tokens of text.txt" $bin/tokenize --vocabulary bytes --output "$work/tokens-text.txt" "$work/text.txt"
expect "JSON lines behind a mark" cmp "$work/tokens-lines.jsonl.bin" "$work/tokens-marked.jsonl.bin"
expect "a text behind a mark" cmp "$work/tokens-text.txt.bin" "$work/tokens-marked.txt.bin"
printf 'layers 1\nsteps 1\n' | marked > "$work/marked.conf"
printf '1 text.train.bin\n' | marked > "$work/marked.blend"
expect "a configuration and a blend behind marks" $bin/train_gpt --config "$work/marked.conf" \
    --train "$work/marked.blend" --hidden 16 --heads 2 --sequence 16 --save "$work/marked"
printf '{"prompt": "ab"}\n' | marked > "$work/marked-prompts.jsonl"
expect "prompts behind a mark" $bin/train_gpt --resume "$work/marked" --generate "$work/marked-prompts.jsonl"
printf '{"context": "a", "continuations": ["b", "c"], "gold": 0}\n' | marked > "$work/marked-requests.jsonl"
expect "requests behind a mark" $bin/tasks --task requests --from "$work/marked-requests.jsonl" \
    --vocabulary bytes --output "$work/marked.eval"

# JSON lines that are read as plain text: a note, whichever field is first
for each in '{"text": "a"}' '{"id": 1, "text": "a"}'; do
    echo "$each" | $bin/tokenize --vocabulary bytes --output "$work/plain" - > /dev/null 2> "$work/note"
    expect "a note of JSON lines" grep -q "standard input begins like JSON lines" "$work/note"
done

# a text without ASCII: cut at its lines, behind characters that are no white space
for each in $(seq 60000); do printf '春眠不觉晓，处处闻啼鸟。\n　夜来风雨声\u00a0\n'; done > "$work/chinese.txt"
expect "a text without ASCII" $bin/tokenize --vocabulary bytes --validation 0.1 --output "$work/chinese" \
    "$work/chinese.txt"
expect "its parts" bash -c "for part in train validation; do
    $bin/tokenize --decode $work/chinese.\$part.bin --vocabulary bytes; done | cmp - $work/chinese.txt"

# what is no text is refused, with what to do
gzip -c "$work/text.txt" > "$work/text.gz"
iconv -f UTF-8 -t UTF-16 "$work/lines.jsonl" > "$work/utf16"
iconv -f UTF-8 -t UTF-16LE "$work/lines.jsonl" > "$work/utf16le"
: > "$work/empty"
while read -r file says; do
    refused "$says" $bin/tokenize --vocabulary bytes --output "$work/none" "$work/$file"
done <<'TABLE'
text.gz is gzip, expected UTF-8 text: gzip -dc
utf16 is UTF-16, expected UTF-8 text: iconv
utf16le has a zero byte at offset 1
empty there is no text
text.train.bin has a zero byte
TABLE

# a checkpoint to Hugging Face's form and back: the same weights
expect "a checkpoint" $bin/train_gpt $run --save "$work/saved"
biased() { python3 scripts/bias.py "$work/saved" --run $bin/train_gpt --vocabulary bytes "$@"; }
printf 'good 1 0\nbad 0 1\n' > "$work/lexicon"
printf '  a licence\naa n 1\nsad a 2\n' > "$work/adjectives"
mkdir "$work/lists"
cp scripts/bias/*.txt "$work/lists"
printf 'he | H\n' > "$work/lists/prompts.txt"
expect "bias" biased --output "$work/bias" --samples 3 \
    --tokens 9 --adjectives no --toxicity "python3 -c 'import sys, json
for i, line in enumerate(sys.stdin): print(0.25 if i % 3 or type(json.loads(line)) is not str else 1)'" \
    --lexicon "$work/lexicon" --also "--batch 40"
expect "its tables" python3 - "$work/bias" <<'PYTHON'
import json, math, sys
report, markdown = json.load(open(sys.argv[1] + "/bias.json")), open(sys.argv[1] + "/bias.md").read()
requests = json.load(open(sys.argv[1] + "/association.requests.json"))
logs = json.load(open(sys.argv[1] + "/association.results.json"))["log_likelihoods"]["association"]
asked = report["association"]["The competent {occupation} was a"]
at = next(i for i in range(len(logs)) if requests[10 * i][0] == "The competent nurse was a")
want = math.log(sum(map(math.exp, logs[at][:5])) / sum(map(math.exp, logs[at][5:])))
assert len(logs) == 237 and abs(asked["occupations"]["nurse"] - want) < 1e-9, asked
assert len(asked["occupations"]) == 79, asked
assert sum(1 for line in open(sys.argv[1] + "/answers.jsonl")) == 120
assert set(report["words"]) == {"gender", "ethnicity", "religion", "disability"}
for groups in report["toxicity"].values():
    for group in groups.values():
        assert abs(group["share"] - 1 / 3) < 1e-9 and abs(group["mean"] - 0.5) < 1e-9, group
assert report["counted"] == "all words but stop words" and "| deaf | 6 | 33.3 % | 0.500 |" in markdown
assert "| The {occupation} was a |" in markdown and "Sentiment: gender" in markdown
assert report["sentiment"]["gender"]["he"]["words"] >= 0
PYTHON
expect "to Hugging Face" $bin/convert --from-checkpoint "$work/saved" --to-huggingface "$work/hf"
expect "from Hugging Face" $bin/convert --from-huggingface "$work/hf" --to "$work/back"
expect "and to it again" $bin/convert --from-checkpoint "$work/back" --to-huggingface "$work/hf2"
expect "the same bytes" cmp "$work/hf/model.safetensors" "$work/hf2/model.safetensors"
expect "it trains on" $bin/train_gpt --resume "$work/back" --train "$work/text.train.bin" --batch 4 \
    --steps 2 --save "$work/on"
refused "stays as it is: say where this run should save" $bin/train_gpt --resume "$work/back" \
    --train "$work/text.train.bin" --steps 2
head -c 5000 "$work/hf/model.safetensors" > "$work/hf2/model.safetensors"
cp "$work/hf/model.safetensors" "$work/hf/whole"
refused "truncated" $bin/convert --from-huggingface "$work/hf2" --to "$work/none"
printf '\377\377\377\377\377\377\377\177' | dd of="$work/hf/model.safetensors" conv=notrunc status=none
refused "truncated, or not safetensors" $bin/convert --from-huggingface "$work/hf" --to "$work/none"
refused "cannot be read" $bin/convert --from-huggingface "$work/none" --to "$work/none2"
sed -i 's/"n_embd": 32/"n_embd": 33/' "$work/hf/config.json"
cp "$work/hf/whole" "$work/hf/model.safetensors"
refused "does not divide" $bin/convert --from-huggingface "$work/hf" --to "$work/none"
refused "would overwrite" $bin/tokenize --decode "$work/text.train.bin" \
    --output "$work/text.train.bin"
printf '{"text": "a"}\n' > "$work/single.jsonl"
refused "cannot be in both files: leave the option out" $bin/tokenize --vocabulary bytes --validation 0.5 \
    --output "$work/none" "$work/single.jsonl"
printf '{"text": "a passage", "prompt": "Q"}\n{"prompt": "Q", "answer": "A"}\n' > "$work/both.jsonl"
expect "a text beside a prompt" $bin/tokenize --vocabulary bytes --output "$work/both" "$work/both.jsonl"
expect "is the document" grep -q "^a passage.*QA" <($bin/tokenize --decode "$work/both.bin" | tr -d '\n')
refused "did you mean --to-huggingface" $bin/convert --to-hugingface x
count_checks scripts/test_convert.py build/cpu-fp32
expect "bias of adjectives and toxic words" biased --samples 3 --tokens 9 \
    --output "$work/bias2" --adjectives "$work/adjectives" \
    --toxic-words "$work/lexicon"
expect "nothing else is counted" python3 - "$work/bias2" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1] + "/bias.json"))
words = {each["word"] for axis in report["words"].values() for group in axis.values() for each in group}
assert words <= {"aa", "sad"} and report["counted"].startswith("adjectives, by "), words
assert report["toxicity"]["gender"]["he"] == {"share": 0, "mean": 0}
PYTHON
refused "expected one from 0 to 1 for each" biased --samples 1 --tokens 3 --output "$work/bias2" \
    --toxicity "echo 0.5"
refused "choose one" biased --output "$work/bias2" --toxicity x --toxic-words y
refused "has no words" biased --output "$work/bias2" --adjectives /dev/null
refused "expected AXIS | GROUP | PROMPT" biased --output "$work/bias" --lists "$work/lists"
refused "No such file" biased --output "$work/bias" --lists "$work/none"
refused "requires --plan" $bin/train_gpt --timeline x.json
refused "start 8, or leave the option out" $bin/train_gpt $run --world-size 8
refused "choose one of these" $bin/train_gpt $run --trace "$work/x.json" --trace-step 6
refused "cannot be written" $bin/train_gpt $run --trace "$work/nowhere/x.json"
refused "does not go with --plan" $bin/train_gpt --plan --trace x.json
refused "cannot be written" $bin/train_gpt $run --record "$work/nowhere/x.jsonl"
refused "at least three steps are needed" $bin/train_gpt $run --steps 2 --profile
refused "give --plan without published" $bin/train_gpt --plan published --hosts x
refused "cannot be written" $bin/train_gpt --plan --timeline "$work/nowhere/x.json"
# a published vocabulary and a text, fetched: whole, cut, absent
mkdir "$work/mirror"
printf 'cut off' > "$work/mirror/vocab.bpe"
refused "has SHA-256 .*, expected 1ce1664773c50f3e" env PREPARE_FROM="file://$work/mirror" \
    bash scripts/prepare.sh gpt2 "$work/prepared"
rm "$work/prepared/vocab.bpe"
refused "without a network, copy the file to $work/prepared/vocab.bpe" \
    env PREPARE_FROM="file://$work/nowhere" bash scripts/prepare.sh gpt2 "$work/prepared"
expect "nothing half fetched" bash -c "[ -z \"\$(ls '$work/prepared')\" ]"
refused "prepare.sh gpt2 .FOLDER" bash scripts/prepare.sh
refused "35: give a multiple" bash scripts/launch_530b.sh slurm 36
expect "6.7B on one GPU of 80 GB, as the README says" $bin/train_gpt --plan --model 6.7B --micro-batch 1 \
    --moments bf16 --master-weights no --hardware dgx-h100
refused "this machine has" $bin/train_gpt --plan --model 175B --hardware here
expect "every configuration can be planned" bash -c 'for c in scripts/*.conf; do
    command=$(sed -n "s/^#   \(.*--plan\( .*\)\{0,1\}\)$/\1/p" "$c")
    eval "${command//.\/train_gpt/$0/train_gpt}" || exit 1; done' $bin
}

figures() {
    count_checks scripts/test_figures.py $bin
    count_checks scripts/test_metrics.py
}
tour() { count_checks scripts/test_tour.py; }
readme() { count_checks scripts/test_readme.py $bin; }

data() {
    local data=../shared/data sum
    if [ ! -d "$data" ]; then
        skip "$data is not here: GPT-2's tokens and the tasks' files"
        return
    fi
    expect "GPT-2 tokens" $bin/tokenize --vocabulary $data/gpt2/vocab.bpe --output "$work/ts" \
        $data/tinyshakespeare.txt
    sum=$(tail -c +65 "$work/ts.bin" | head -c 676050 | sha256sum | cut -d' ' -f1)
    if [ "$sum" = 25c01b32b32f41897a6359dd222ec114992dc30c357bcafbfe6c56672f76cd31 ]; then good; else \
        bad "sha256 $sum"; fi
    cp $data/gpt2/vocab.bpe $data/tinyshakespeare.txt "$work"
    mv "$work/tinyshakespeare.txt" "$work/input.txt"
    expect "prepare.sh" env PREPARE_FROM="file://$work" bash scripts/prepare.sh gpt2 "$work/prepared-gpt2"
    expect "its tokens" test -s "$work/prepared-gpt2/shakespeare.validation.bin"
    expect "decoding gives it back" bash -c "$bin/tokenize --decode $work/ts.bin \
        --vocabulary $data/gpt2/vocab.bpe |
        cmp - $data/tinyshakespeare.txt"
    refused "did you mean" $bin/tokenize --vocabulry x
    # the tasks' public files: the requests that lm-evaluation-harness makes
    requests() {  # requests SHA256 OPTION…: what $bin/tasks makes has this hash
        $bin/tasks --vocabulary $data/gpt2/vocab.bpe --output "$work/task.eval" "${@:2}" > "$work/log" 2>&1
        if [ "$(tail -1 "$work/log")" = "sha256 of all requests $1" ]; then good; else bad "$*"; \
            cat "$work/log"; fi
    }
    # LAMBADA and PiQA: as the harness's own tests have frozen them
    requests 6829e6a8aa5922e6c92dd31403cc060f242dc0ede4a775e085a70da095ab2e20 --task lambada \
        --from $data/tasks
    requests c7a40acd54cab575fdc6f3274c2138b5416fb27b7d9160138ab2ebf581383501 --task lambada \
        --from $data/tasks --shots 1
    requests 177b7877381ac0af02c6ba9be1461c62ed419858207f12fb2c1841fcbe6f06a0 --task lambada \
        --from $data/tasks --shots 5
    requests 6048a3a2bb3ad1e6a3d98139618e06b4d7de766edd685bd38837596199c3f69f --task piqa \
        --from $data/tasks/piqa
    # a random model guesses: within three standard errors of a half
    expect "a model without training on PiQA" $bin/train_gpt --layers 2 --hidden 32 --heads 2 --sequence 256 \
        --evaluate "$work/task.eval" --results "$work/random.json"
    expect "it guesses" python3 - "$work" <<'PYTHON'
import json, sys
r = json.load(open(f"{sys.argv[1]}/random.json"))["results"]["piqa"]
assert abs(r["acc"] - 0.5) < 3 * r["acc_stderr"] and 0.011 < r["acc_stderr"] < 0.012, r
PYTHON
    # the others, of which a few records are here: as the harness's code of autumn 2021 makes them from these
    # files
    while read -r task folder shots sum; do
        requests "$sum" --task "$task" --from $data/tasks/"$folder" --shots "$shots"
    done <<'TABLE'
boolq boolq 0 ea2e12464015fbd39479b03134a703968a28a1f9b0a9479633bb6a3c30f59fd6
boolq boolq 2 01bf0c2478d50a4a81c24c6c0f6cac8498305f56dbb2e308ab8982428bc26467
wic wic 0 1cc0c60e922797086a2a0261ea14c12b43bddfcf754ad509e60da623cf9f9315
wic wic 2 78bfdac9ee990f21e568b004c5cfb2541a4ce0634d5420ed46ed740cdcd70f3d
hellaswag hellaswag 0 2cdf0f4a3cc6d9069457721c508247484d88d0cc24337ec4da585aad1ac6c715
hellaswag hellaswag 2 2e07d58482e031cc37aceeca5698b24d3cf8b634a22cb193fb55c1a4cd24a760
winogrande winogrande 0 1709cf253ec96562d07da607fb211f48667c0ec89bcdde4288c908a6a6838153
winogrande winogrande 2 bfccc0ebf59e4866223aa10a427a8abea67741b1a51ab89333013f318f70bd85
anli-r2 anli-r2 0 b898aeb2647ac70b0f8da07b9777c298560a0a1c6691d05b9767c653cbca3a4e
anli-r2 anli-r2 2 e8b1d45bfeaba06e2d381c82983897e18b27bb559e7f12bc0f0d7f56d0b9e4c5
race race-high 0 95605f622a5ade24b58b8387c17eda5530bbb491f54fd919e7dc5b4c4509b228
race race-high 2 a921920e68af328c81123cc673ba8e21e86272f5ae81039c40b318dfbe1932a8
TABLE
    expect "HANS" $bin/tasks --task hans --from $data/tasks/hans --vocabulary bytes \
        --output "$work/task.eval" --shots 2
    refused "--shots 4: $data/tasks/hans has 3 documents" $bin/tasks --task hans --from $data/tasks/hans \
        --vocabulary bytes \
        --output "$work/none.eval" --shots 4
    refused "expected the folder that holds valid-labels.lst" $bin/tasks --task piqa \
        --from $data/tasks/piqa/valid.jsonl \
        --vocabulary bytes --output "$work/none.eval"
    refused "has no \"text\": is this the task's file" $bin/tasks --task lambada \
        --from $data/tasks/piqa/valid.jsonl \
        --vocabulary bytes --output "$work/none.eval"
    refused "cannot be read" $bin/tasks --task wic --from $data/tasks/piqa --vocabulary bytes \
        --output "$work/none.eval"
    expect "a larger vocabulary trains" $bin/train_gpt --train "$work/ts.bin" --layers 1 --hidden 16 \
        --heads 2 --sequence 32 --steps 2
}

for each in $chosen; do
    part "$each"
    built=yes
    if [ "$each" != units ]; then  # those are counted one by one
        for name in $(wanted "$each"); do is_built "$name" || built=no; done
        case $each in
            parallel | nccl | start | hosts | operations | autotune | evaluate | faults | programs)
                has_mpi || { bad "mpirun is not here: run scripts/install.sh"; continue; }
                ;;
        esac
    fi
    if [ $built = yes ]; then "$each"; fi
done
if [ -s "$work/missing" ]; then bad "this script calls what does not exist: $(sort -u "$work/missing")"; fi
for each in "${skips[@]}"; do echo "not checked: $each"; done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
