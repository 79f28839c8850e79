#!/usr/bin/env bash
# Benchmarks this GPU: bash scripts/bench_gpu.sh [OPTION…]   (bash scripts/bench_gpu.sh --help lists them)
# Builds, checks, and times every kernel and whole steps, compared with PyTorch if it is installed. Takes
# about ten minutes and needs no network. Writes bench_gpu.json and bench_gpu.md. --rehearse runs everything
# at a small size and without a GPU: its figures mean nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
case " $* " in
    *" --help "*) ;;
    *" --rehearse "*)
        make -s DEVICE=emulated PRECISION=bf16
        make -s DEVICE=cpu PRECISION=fp32 ;;
    *)
        if ! nvidia-smi -L > /dev/null 2>&1; then
            echo "bench_gpu.sh: no GPU is here: run it where nvidia-smi finds one, or with --rehearse" >&2
            exit 1
        fi
        make -s DEVICE=cuda PRECISION=bf16 GPU_CODE=native ;;
esac
exec python3 scripts/bench_gpu.py "$@"
