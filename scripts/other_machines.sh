#!/usr/bin/env bash
# Builds and checks with what other machines have, as far as it is installed here:
#   bash scripts/other_machines.sh
#   clang        clang++ 16 or later, libomp           the CPU build's checks, the kernels' in emulation
#   aarch64      g++-aarch64-linux-gnu, qemu-user      the emulated device, loaders, formats, under qemu
#   mpich        mpich                                 8 ranks equal one process to 1e-10
#   blis, blas   libblis-openmp-dev, libblas-dev       the model against PyTorch's record
# In a copy of the repository; the last line is `N passed, N failed`.
case "${1:-}" in -h | --help) sed -n '2,8s/^# //p' "$0"; exit ;; esac
set -uo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files --cached --others --exclude-standard | tar c -T - | tar x -C "$work"
cd "$work" || exit 1
export OMP_WAIT_POLICY=passive
passed=0 failed=0

add() {  # add WHAT, of output that ends with N passed, N failed
    local last
    last=$(grep -E '[0-9]+ passed, [0-9]+ failed$' out | tail -1)
    if [[ $last =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
        echo "$1: $last"
    else
        failed=$((failed + 1))
        echo "FAILED  $1 ended early"
        tail -5 out
    fi
}
built() {  # built WHAT OPTION…: make with these, without a warning
    local what=$1
    shift
    rm -rf build
    [ ! -e plain_blas.o ] || { mkdir -p build && cp plain_blas.o build/; }
    if make -s "$@" > out 2>&1 && ! grep -q 'warning:' out; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1))
    echo "FAILED  the build of $what is not clean"
    grep -E 'error|warning' out | head -5
    return 1
}
without() { echo "$1 is not here: not checked"; }

clang=$(compgen -c clang++ | grep -E '^clang\+\+(-[0-9]+)?$' | sort -V | tail -1)
if [ -n "$clang" ] && [ "$("$clang" -dumpversion | cut -d. -f1)" -ge 16 ]; then
    if built clang CXX="$clang" DEVICE=cpu PRECISION=fp32 COMM=single build/cpu-fp32-single/test_gpt \
        build/cpu-fp32-single/train_gpt build/cpu-fp32-single/tokenize; then
        build/cpu-fp32-single/test_gpt > out 2>&1
        add "$clang, cpu"
    fi
    if built clang CXX="$clang" DEVICE=emulated PRECISION=bf16 COMM=single \
        build/emulated-bf16-single/test_gpt; then
        build/emulated-bf16-single/test_gpt emulated kernels packed hopper pytorch > out 2>&1
        add "$clang, emulated"
    fi
else
    without "clang++ 16"
fi

if command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64 > /dev/null; then
    # at -O2 g++ 12 for aarch64 ends with an internal error (vect_transform_reduction)
    arm="CXX=aarch64-linux-gnu-g++ ARCH= COMM=single BLAS=build/plain_blas.o"
    aarch64-linux-gnu-g++ -O3 -fopenmp -c -o plain_blas.o layers/base/plain_blas.cpp
    if built aarch64 $arm CXXFLAGS=-O1 DEVICE=emulated PRECISION=bf16 \
        build/emulated-bf16-single/test_gpt; then
        chapters="rng json emulated loader tokenizer packed pytorch"
        qemu-aarch64 -L /usr/aarch64-linux-gnu build/emulated-bf16-single/test_gpt $chapters > out 2>&1
        add "aarch64, under qemu"
    fi
    rm -f plain_blas.o
else
    without "a compiler for aarch64 with qemu-aarch64"
fi

if command -v mpicxx.mpich > /dev/null; then
    if built mpich MPICXX=mpicxx.mpich DEVICE=cpu PRECISION=fp64 \
        build/cpu-fp64/{train_gpt,test_gpt,tokenize}; then
        build/cpu-fp64/tokenize --vocabulary bytes --output data README.md > /dev/null
        run="build/cpu-fp64/train_gpt --train data.bin --layers 4 --hidden 16 --heads 4 --sequence 8"
        run="$run --pad-vocabulary 264 --batch 12 --micro-batch 1 --steps 6"
        $run --metrics one.jsonl > /dev/null
        OMP_NUM_THREADS=1 mpirun.mpich -n 8 $run --tensor-parallel 2 --pipeline-parallel 2 \
            --metrics eight.jsonl > /dev/null 2>&1
        python3 - > out 2>&1 <<'PYTHON'
import json
one, eight = ([json.loads(line)["loss"] for line in open(f"{name}.jsonl")] for name in ("one", "eight"))
same = len(one) == len(eight) == 6 and all(abs(a - b) < 1e-10 * (1 + abs(a)) for a, b in zip(one, eight))
print("1 passed, 0 failed" if same else f"0 passed, 1 failed")
PYTHON
        add "MPICH, 8 ranks"
        for ranks in 2 3; do
            OMP_NUM_THREADS=1 mpirun.mpich -n $ranks build/cpu-fp64/test_gpt ranks replicas > out 2>&1
            add "MPICH, calls over $ranks ranks"
        done
    fi
else
    without MPICH
fi

folder=/usr/lib/$(g++ -print-multiarch)
for name in blis blas; do
    flags="-lblis"
    [ $name = blis ] || flags="-L$folder/blas -Wl,-rpath,$folder/blas -lblas"
    if [ ! -e "$folder/lib$name.so" ] && [ ! -e "$folder/blas/lib$name.so" ]; then
        without $name
        continue
    fi
    if built $name BLAS="$flags" DEVICE=cpu PRECISION=fp64 COMM=single build/cpu-fp64-single/test_gpt; then
        build/cpu-fp64-single/test_gpt options gradients training pytorch > out 2>&1
        add "$name"
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
