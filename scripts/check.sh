#!/usr/bin/env bash
# The architecture: who includes whom, limits, one statement a line (scripts/check.py); then each header
# compiles alone, with kernels where it may have some. Run: make check
set -eu
cd "$(dirname "$0")/.."
python3 scripts/check.py || bad=1

alone() {  # alone HEADER [DEFINE]
    if [[ $1 = layers/emulator/*_on_cpu.h ]] && [ -z "${2:-}" ]; then return; fi
    if [ "$1" = comm/mpi/mpi_world.h ] && [ -z "$mpi" ]; then return; fi
    local nccl=
    if [[ $1 = layers/emulator/nccl/* ]]; then
        if [ -z "$nccl_folder" ]; then return; fi
        nccl="-Ilayers/emulator/nccl -idirafter $nccl_folder"
    fi
    ${CXX:-g++} -std=c++20 -fopenmp -fsyntax-only -w -x c++ $mpi ${2:-} $nccl -I/usr/include/libxml2 "$1" ||
        { echo "check: $1 does not compile alone ${2:-}"; return 1; }
}
export -f alone
export mpi=$(mpicxx --showme:compile 2>/dev/null || true)
export nccl_folder=$(make -s nccl-folder)
headers() {  # but those of checks, which ./test_gpt compiles
    git ls-files --cached --others --exclude-standard '*.h' '*.cuh' | grep -v '/test_[^/]*$' |
        while read -r f; do [ ! -f "$f" ] || echo "$f"; done
}
no_corpus='^data/corpus'  # where its libraries are missing
if make -s corpus-found > /dev/null 2>&1; then no_corpus='^$'; fi
# each DEFINE: the listed headers, but not those that another one begins with: it compiles only if they do
each() {
    local list=$(cat)
    echo "$list" | grep -vxFf <(echo "$list" | begun_with) |
        xargs -P "$(nproc)" -I{} bash -c "alone {} ${1:-}"
}
begun_with() {  # of the listed headers: what each includes before anything else
    xargs awk 'FNR == 1 { begins = 1 }
               begins && /^#(include|if)/ { begins = 0; if ($2 ~ /^"/) print FILENAME, $2 }' | tr -d '"' |
        while read -r name included; do realpath --relative-to=. "$(dirname "$name")/$included"; done
}
may_have_kernels='^layers/[^/]*$\|^layers/\(base\|fast\|emulator\)\|^layers/run/bench'
headers | grep -v "$no_corpus" | grep -v "$may_have_kernels" | each || bad=1
headers | grep "$may_have_kernels" | each -DDEVICE_EMULATED || bad=1
if [ -n "${bad:-}" ]; then exit 1; fi
echo "check: arrows, limits, statements, headers: good"
