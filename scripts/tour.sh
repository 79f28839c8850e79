#!/usr/bin/env bash
# The guided tour: builds what it shows, runs it, and serves it on 127.0.0.1 (or writes it: --output DIR).
# Run: bash scripts/tour.sh [--output DIR] [--port N]
case "${1:-}" in -h | --help) sed -n '2,3s/^# //p' "$0"; exit ;; esac
set -euo pipefail
from=$PWD
cd "$(dirname "$0")/.."
bash scripts/install.sh --with-tour
mkdir -p build
exec 9> build/.building
flock 9  # another script may build the same programs just now
kernels=build/emulated-bf16-watched-single/tour_kernels
make -s DEVICE=cpu PRECISION=fp32 build/cpu-fp32/train_gpt build/cpu-fp32/tokenize &
trainer=$!
make -s DEVICE=emulated PRECISION=bf16 COMM=single SANITIZE=thread $kernels
if make -s corpus-found > /dev/null 2>&1; then make -s DEVICE=cpu PRECISION=fp32 build/cpu-fp32/corpus; fi
wait $trainer || { echo "tour.sh: train_gpt cannot be built (above)" >&2; exit 1; }
exec 9>&-
here=$PWD
cd "$from"
exec python3 "$here/scripts/tour/tour.py" "$@"
