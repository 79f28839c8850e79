#!/usr/bin/env python3
"""Every layout trains the same model as one process: python3 scripts/test_parallel.py FP64 FP32 EMULATED

(folders of builds: for the CPU in fp64 and fp32, and emulated in fp32.) Runs train_gpt of the fp64 build
under mpirun over tensor-, pipeline- and data-parallel layouts and compares the losses of six steps, the
validation loss, gradient norms and all final parameters and moments with one process: 1e-10, absolute plus
relative. A sum over ranks in another order differs by about 1e-16 per term; AdamW's division by sqrt(v)
amplifies that where the exact gradient is 0 (the key bias), so parameters are compared at the scale of the
learning rate. In fp32, pipeline parallelism alone equals one process bit for bit. The kernels, in emulation,
train over several ranks with streams in several orders. The last line is `N passed, N failed`.
"""

import shutil
import time

import parallel_data as data
import parallel_layouts as layouts
import parallel_refusals as refusals
from over_ranks import finish
from parallel_runs import work

CHECKS = (
    layouts.calls,
    layouts.all_layouts,
    data.answers,
    data.whole_validation_set,
    data.recorded,
    layouts.bf16_moments,
    layouts.pipelines_to_the_bit,
    layouts.emulated_kernels,
    layouts.graphs,
    data.largest_micro_batch,
    layouts.ramped_groups,
    layouts.odd_batches,
    data.resumed_elsewhere,
    data.blends,
    data.generation,
    data.samples_in_training,
    refusals.bad_input,
    refusals.different_ranks,
    refusals.failing_rank,
    refusals.killed_rank,
    refusals.stopped_rank,
    refusals.terminated_rank,
    refusals.named_by_log,
    refusals.launchers,
)

for each in CHECKS:
    began = time.time()
    each()
    print(f"{each.__name__}: {time.time() - began:.0f} s", flush=True)
shutil.rmtree(work)
finish()
