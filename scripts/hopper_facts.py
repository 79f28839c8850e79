#!/usr/bin/env python3
"""Operand layouts of Hopper's tensor cores according to CUTLASS's CuTe: writes scripts/hopper_facts.json.

Usage: pip install nvidia-cutlass && python3 scripts/hopper_facts.py

That the kernels (layers/fast/hopper.h) and the emulated device (layers/emulator/hopper_on_cpu.h) agree
does not prove them right: both are compared with this table, computed on the host by a third party's
library. It holds, all in bf16:
  tiles      in shared memory, with 128-byte swizzle; (rows, columns) are the operand's (M or N, K).
             pieces[i]: the position of the i-th 16 bytes, in units of 16 bytes, counted along a row where K
             is contiguous, else along a column. descriptors[k]: of the columns 16 k .. 16 k + 15, for a tile
             at address 0
  registers  [thread][value]: row + 64 * column of each value that a thread of the warpgroup holds, for A
             (64, 16) and for the accumulators (64, N)
"""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = r"""
#include <cstdio>
#include <cute/tensor.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
using namespace cute;
using bf16 = cute::bfloat16_t;
FILE* out;

template <SM90::GMMA::Major major, class L>
void tile(const char* name, L layout) {
    constexpr bool k_major = major == SM90::GMMA::Major::K;
    constexpr int rows = size<0>(L{}), columns = size<1>(L{});
    auto tensor = make_tensor(make_smem_ptr((bf16*)nullptr), layout);
    auto steps = flat_divide(tensor, make_shape(Int<rows>{}, Int<16>{}));
    SM90::GMMA::DescriptorIterator first{SM90::GMMA::make_gmma_desc<major>(steps(_, _, 0, 0))};
    fprintf(out, "  \"%s\": {\"rows\": %d, \"columns\": %d, \"k_major\": %s,\n   \"descriptors\": [", name,
            rows, columns, k_major ? "true" : "false");
    for (int k = 0; k < columns; k += 16)
        fprintf(out, "%s\"%016llx\"", k ? ", " : "",
                (unsigned long long)(first + int(layout(0, k)) / 8).desc_.desc_);
    fprintf(out, "],\n   \"pieces\": [");
    for (int i = 0; i < rows * columns / 8; i++) {
        int row = k_major ? i / (columns / 8) : i % (rows / 8) * 8;
        int column = k_major ? i % (columns / 8) * 8 : i / (rows / 8);
        long address = (long)raw_pointer_cast(&tensor(row, column));
        fprintf(out, "%s%ld", i ? ", " : "", address / 16);
    }
    fprintf(out, "]},\n");
}

template <class L>
void registers(const char* name, L layout, const char* end) {
    fprintf(out, "  \"%s\": [", name);
    for (int thread = 0; thread < 128; thread++) {
        fprintf(out, thread ? ", [" : "[");
        for (int v = 0; v < size<1>(layout); v++) fprintf(out, "%s%d", v ? ", " : "", int(layout(thread, v)));
        fprintf(out, "]");
    }
    fprintf(out, "]%s\n", end);
}

int main(int, char** argv) {
    out = fopen(argv[1], "w");
    using namespace SM90::GMMA;
    Layout_K_SW128_Atom<bf16> k_atom;
    Layout_MN_SW128_Atom<bf16> mn_atom;
    fprintf(out, "{\"tiles\": {\n");
    tile<Major::K>("64 rows, K contiguous", tile_to_shape(k_atom, Shape<_64, _64>{}));
    tile<Major::K>("128 rows, K contiguous", tile_to_shape(k_atom, Shape<_128, _64>{}));
    // 64 columns of a matrix after the other, as TMA brings them
    tile<Major::MN>("64 rows, 64 of K", tile_to_shape(mn_atom, Shape<_64, _64>{}, Step<_2, _1>{}));
    tile<Major::MN>("64 rows, 128 of K", tile_to_shape(mn_atom, Shape<_64, _128>{}, Step<_2, _1>{}));
    tile<Major::MN>("128 rows, 128 of K", tile_to_shape(mn_atom, Shape<_128, _128>{}, Step<_2, _1>{}));
    tile<Major::MN>("128 rows, 64 of K", tile_to_shape(mn_atom, Shape<_128, _64>{}, Step<_2, _1>{}));
    fprintf(out, "  \"\": {}}, \"registers\": {\n");
    registers("A 64 x 16", ALayout_64x16{}, ",");
    registers("C 64 x 128", CLayout_64x128{}, "");
    fprintf(out, "}}\n");
    fclose(out);
}
"""


def main():
    library = importlib.util.find_spec("cutlass_library")
    if library is None:
        sys.exit("hopper_facts.py: cutlass_library is not here: pip install nvidia-cutlass")
    headers = Path(library.origin).parent / "source/include"
    facts = Path(__file__).parent / "hopper_facts.json"
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "facts.cpp", Path(folder) / "facts"
        source.write_text(PROGRAM)
        cuda = Path("/usr/local/cuda/include")
        includes = [f"-I{path}" for path in (headers, cuda, cuda / "cccl")]
        compile = ["g++", "-std=c++17", "-O1", "-w", *includes, str(source), "-o", str(program)]
        subprocess.run(compile, check=True)
        # it says that it has no address of shared memory; the tiles begin at 0
        subprocess.run([str(program), str(facts)], check=True, stdout=subprocess.DEVNULL)
    text = facts.read_text().replace(',\n  "": {}}', "\n}")
    facts.write_text(text)
    print(f"{facts}: {len(text)} bytes")


if __name__ == "__main__":
    main()
