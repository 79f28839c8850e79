#!/usr/bin/env python3
"""Every layout trains the same model as one process: scripts/test_parallel.py FP64 FP32 EMULATED […]

(folders of builds: for the CPU in fp64 and fp32, and emulated in fp32; then names of chapters, or all.)
Runs train_gpt of the fp64 build under mpirun over tensor-, pipeline- and data-parallel layouts and compares
the losses of six steps, the validation loss, gradient norms and all final parameters and moments with one
process: 1e-10, absolute plus relative. A sum over ranks in another order differs by about 1e-16 per term;
AdamW's division by sqrt(v) amplifies that where the exact gradient is 0 (the key bias), so parameters are
compared at the scale of the learning rate. In fp32, pipeline parallelism alone equals one process bit for
bit. The kernels, in emulation, train over several ranks with streams in several orders. The last line is
`N passed, N failed`.
"""

import shutil
import sys
import time

import parallel_data
import parallel_layouts
import parallel_refusals
from over_ranks import finish
from parallel_runs import work

# in this order: some compare with the runs of all_layouts
CHAPTERS = {
    name[5:]: function
    for module in (parallel_layouts, parallel_data, parallel_refusals)
    for name, function in vars(module).items()
    if name.startswith("test_")
}

for name in sys.argv[4:] or CHAPTERS:
    began = time.time()
    CHAPTERS[name]()
    print(f"{name}: {time.time() - began:.0f} s", flush=True)
shutil.rmtree(work)
finish()
