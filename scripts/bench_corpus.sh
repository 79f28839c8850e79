#!/usr/bin/env bash
# The speed and the memory of ./corpus: bash scripts/bench_corpus.sh [FILE.warc.gz]. Run: make bench-corpus
#   1  each step's inner work on one core
#   2  whole steps, files and all: one rank against two
#   3  memory of dedup: how much more a million documents take than none
case "${1:-}" in -h | --help) sed -n '2,5s/^# //p' "$0"; exit ;; esac
set -euo pipefail
warc=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
make -s corpus
if [ -z "$warc" ] && [ -f ../shared/data/warc/sample-0000.warc.gz ]; then \
    warc=../shared/data/warc/sample-0000.warc.gz; fi
./corpus bench ${warc:+"$warc"}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1
python3 - "$work" "$warc" <<'PYTHON'
import json, os, random, subprocess, sys, time
work, warc = sys.argv[1:]
r = random.Random(1)
words = ["".join(r.choice("etaoinshrdlu") for _ in range(r.randint(2, 9))) for _ in range(5000)]
for k in range(8):
    with open(f"{work}/t{k}.jsonl", "w") as f:
        for i in range(30000):
            f.write(json.dumps({"text": " ".join(r.choices(words, k=200)), "id": f"{k} {i}"}) + "\n")
if warc:
    for k in range(4):
        with open(f"{work}/w{k}.warc.gz", "wb") as f:
            f.write(open(warc, "rb").read() * 80)

def seconds(ranks, *command):
    best = 1e9
    for _ in range(2):
        subprocess.run(["rm", "-rf", f"{work}/out"])
        start = time.time()
        subprocess.run(["mpirun", "-n", str(ranks), "./corpus", *command, "--output", f"{work}/out",
                        "--progress", "0"],
                       check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.time() - start)
    return best

text = f"s={work}/t?.jsonl"
bpe = "../shared/data/gpt2/vocab.bpe"  # where it is: the work of a real run
vocabulary = ["--vocabulary", bpe] if os.path.exists(bpe) else []
for name, command in (("extract", ["extract", f"s={work}/w?.warc.gz"]), ("clean", ["clean", text]),
                      ("dedup", ["dedup", text]),
                      ("tokens", ["tokens", *vocabulary, text])):
    if name == "extract" and not warc:
        continue
    one, two = seconds(1, *command), seconds(2, *command)
    print(f"{name:10} one rank {one:6.2f} s, two {two:6.2f} s: {one / two:.2f} x", flush=True)

def peak(documents):  # bytes of one rank
    with open(f"{work}/m.jsonl", "w") as f:
        for i in range(documents):  # one in ten is its neighbour's copy
            words = (str((i - (i % 10 == 0)) * 7919 + k * 104729) for k in range(6))
            f.write('{"text": "%s"}\n' % " ".join(words))
    subprocess.run(["rm", "-rf", f"{work}/out"])
    command = ["./corpus", "dedup", "--output", f"{work}/out", "--progress", "0", f"s={work}/m.jsonl"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    used = os.wait4(process.pid, 0)[2].ru_maxrss * 1024
    return used

n = 1_000_000
few, many = peak(1000), peak(n)
each = (many - few) / n
print(f"dedup of {n} documents: {many / 1e6:.0f} MB at most, {each:.0f} bytes a document (wanted: 250)")
PYTHON
