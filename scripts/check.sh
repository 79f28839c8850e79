#!/usr/bin/env bash
# The architecture, checked: who includes whom, each header alone, and the limits on lines. Run: make check
set -eu
cd "$(dirname "$0")/.."
bad=0
complain() { echo "check: $*"; bad=1; }

# ---- arrows: a folder includes only what stands beside it here -----------------------------------------------
allowed() {  # allowed FOLDER INCLUDED_FOLDER
    case "$1" in
        layers/base) [[ $2 = layers/base ]] ;;
        comm) [[ $2 = comm || $2 = layers/base ]] ;;
        data) [[ $2 = data || $2 = layers/base ]] ;;
        data/corpus) [[ $2 = data/corpus || $2 = data || $2 = comm || $2 = layers/base ]] ;;
        layers) [[ $2 = layers || $2 = layers/base ]] ;;
        layers/model) [[ $2 != . && $2 != plan ]] ;;
        plan) [[ $2 != . ]] ;;
        .) true ;;
        *) false ;;
    esac
}
files=$(ls ./*.cu layers/*.cuh layers/*/*.h layers/*/*.cpp data/*.h data/*.cpp data/corpus/*.h data/corpus/*.cpp \
    comm/*.h comm/*.cpp plan/*.h 2>/dev/null || true)
for file in $files; do
    file=${file#./}
    from=$(dirname "$file")
    while read -r included; do
        to=$(dirname "$(realpath --relative-to=. -m "$from/$included")")
        allowed "$from" "$to" || complain "$file includes $included: $from may not include $to"
    done < <(sed -n 's/^ *#include "\([^"]*\)".*/\1/p' "$file")
done

if grep -ln 'comm/schedule.h"' layers/*.cuh layers/*/*; then complain "a layer or model knows the schedule"; fi

# ---- each header compiles alone, with and without kernels ----------------------------------------------------
alone() {  # alone HEADER [DEFINE]
    if [[ $1 = layers/base/*_on_cpu.h ]] && [ -z "${2:-}" ]; then return; fi
    if [ "$1" = comm/mpi_world.h ] && [ -z "$mpi" ]; then return; fi
    ${CXX:-g++} -std=c++20 -fopenmp -fsyntax-only -w -x c++ $mpi ${2:-} -I/usr/include/libxml2 "$1" ||
        { echo "check: $1 does not compile alone ${2:-}"; return 1; }
}
export -f alone
export mpi=$(mpicxx --showme:compile 2>/dev/null || true)
for device in "" -DDEVICE_EMULATED; do
    corpus=$([ -n "$device" ] || ! make -s corpus-found > /dev/null || ls data/corpus/*.h)  # where its libraries are
    ls layers/*.cuh layers/*/*.h data/*.h $corpus comm/*.h plan/*.h 2>/dev/null |
        xargs -P "$(nproc)" -I{} bash -c "alone {} $device" || bad=1
done

# ---- limits: 450 lines a file, 110 columns, 60 lines a function, 120 a kernel --------------------------------
for file in $files; do
    file=${file#./}
    lines=$(wc -l < "$file")
    if [ "$lines" -gt 450 ] && [ "$file" != test_gpt.cu ]; then complain "$file has $lines lines, at most 450"; fi
    python3 - "$file" <<'PYTHON' || bad=1
import re, sys
name, good = sys.argv[1], True
start = None
for number, line in enumerate(open(name, encoding="utf8"), 1):
    if len(line.rstrip("\n")) > 110:
        print(f"check: {name}:{number}: {len(line) - 1} columns, at most 110")
        good = False
    if start is None and re.match(r"(inline|static|template|__global__|__device__|[A-Za-z_:<>]+ )[^=;]*\) *(const )?\{$|"
                                  r"    [A-Za-z_:<>&\* ]+\([^;=]*\) (const )?\{$", line) and "struct" not in line:
        start, depth, kernel = number, len(line) - len(line.lstrip()), "__global__" in line
    elif start and line.startswith(" " * depth + "}"):
        limit = 120 if kernel else 60
        if number - start > limit and not name.startswith("test_gpt"):
            print(f"check: {name}:{start}: a function of {number - start} lines, at most {limit}")
            good = False
        start = None
sys.exit(not good)
PYTHON
done
# ---- the transport, the device and the precision are chosen in one place -------------------------------------
if grep -nE '<<<' $files | grep -v '^./\?layers/base\|^layers/base'; then complain "a launch outside LAUNCH"; fi
if grep -nE '^ *# *if' $files | grep -v 'HAS_KERNELS' | grep -v '^\(\./\)\?layers/base\|test_gpt.cu'; then
    complain "a preprocessor fence outside layers/base"
fi
[ $bad = 0 ] && echo "check: arrows, headers, limits: good"
exit $bad
