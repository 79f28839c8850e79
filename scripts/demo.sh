#!/usr/bin/env bash
# A GPT learns, before your eyes, in about two minutes: bash scripts/demo.sh [TEXTFILE]
# Without TEXTFILE it learns the text of this repository. Everything it writes lies in demo/.
set -euo pipefail
trap 'exit 130' INT  # an interrupted run saves and exits with 0: without this the demo would go on
case "${1:-}" in -h | --help) sed -n '2,3s/^# //p' "$0"; exit ;; esac
given=${1:+$(realpath -- "$1")}
cd "$(dirname "$0")/.."
if [ -n "${1:-}" ] && [ ! -f "$given" ]; then
    echo "demo.sh: $1: is not a file: give a text file, or none" >&2
    exit 1
fi
if [ -n "$given" ] && [ "$(stat -c %s "$given")" -lt 20000 ]; then
    echo "demo.sh: $1: has $(stat -c %s "$given") bytes, but learning needs at least 20000" >&2
    exit 1
fi
exec 9< .  # 1: somebody holds it; other codes: there are no locks here
flock -n 9 || if [ $? = 1 ]; then
    echo "demo.sh: another demo runs in this checkout: wait for it, or use another clone" >&2
    exit 1
fi
bash scripts/install.sh 9<&-

echo "== build"
make -s -j2 train_gpt tokenize

echo "== text -> tokens"
rm -rf demo.new && mkdir demo.new  # the last demo stays where it is until there are tokens for a new one
text=${given:-demo.new/text.txt}
if [ -z "$given" ]; then
    cat README.md ./*/README.md ./*.cu layers/*.cuh ./*/*.h ./*/*/*.h scripts/*.sh scripts/*.py > "$text"
fi
./tokenize --vocabulary bytes --validation 0.1 --output demo.new/text "$text" || { rm -rf demo.new; exit 1; }
if [ -e demo ]; then
    kept=demo.$(date -r demo +%Y%m%d-%H%M%S)
    mv demo "$kept"
    echo "the last demo is kept in $kept"
fi
mv demo.new demo
text=${given:-demo/text.txt}

# sizes that learn fast on two cores
model="--train demo/text.train.bin --layers 4 --hidden 128 --heads 4 --sequence 128
       --batch 16 --micro-batch 16 --learning-rate 3e-3"
./train_gpt $model --steps 24 --metrics demo/pace.jsonl > /dev/null
steps=$(python3 -c "
import json
pace = max(json.loads(line)['tokens_per_second'] for line in open('demo/pace.jsonl'))
print(max(100, min(4000, int(105 * pace / (16 * 128)))))")

echo "== train: $steps steps, about two minutes"
if [ "$steps" -lt 500 ]; then echo "a slow or busy machine: after so few steps the text hardly has words"; fi
./train_gpt $model --validation demo/text.validation.bin --steps "$steps" \
    --evaluate-every $(((steps + 4) / 5)) --evaluate-sequences 800 --save demo/checkpoints \
    --warmup-tokens $((steps * 16 * 128 / 20)) \
    --metrics demo/metrics.jsonl

echo "== loss curve: demo/loss.svg"
python3 scripts/compare_runs.py demo=demo/metrics.jsonl --output demo/loss.svg

prompt=$(head -c 200 "$text" | head -n 1 | cut -c 1-20)
echo "== the model continues from \"$prompt\""
printf %s "${prompt:-The}" |
    ./train_gpt --resume demo/checkpoints --generate - --sample-tokens 400 --temperature 0.8

echo "== what to try next
  more words:        ./train_gpt --resume demo/checkpoints --generate 'Once' --sample-tokens 500
  train on:          ./train_gpt --resume demo/checkpoints --train demo/text.train.bin --micro-batch 16 \\
                                 --validation demo/text.validation.bin --metrics demo/metrics.jsonl \\
                                 --steps $((2 * steps)) --decay-tokens $((2 * steps * 16 * 128))
  your own text:     bash scripts/demo.sh FILE
  GPT-2's tokens:    bash scripts/prepare.sh gpt2
  a larger model:    ./train_gpt --model 124M --train demo/text.train.bin --save demo/124M
  every option:      ./train_gpt --help
  every check:       bash scripts/test.sh"
