"""Bad input, ranks that differ, ranks that fail, signals, launchers: one message, and nothing hangs."""

import os
import shutil
import signal
import subprocess
import time

from over_ranks import check, environment, limited
from parallel_runs import DATA, MODEL, build, run, text, work

PROGRAM = f"{build}/train_gpt"


def test_bad_input():
    """Every rank ends, one message names what would work."""
    for ranks, extra, message in (
        (3, "--tensor-parallel 2", "does not divide 3 ranks"),
        (6, "--tensor-parallel 2 --pipeline-parallel 2", "start 4 or 8 ranks"),
        (3, "--tensor-parallel 3", "choose a --tensor-parallel that divides 4"),
        (2, "--batch 7", "choose a multiple of 2"),
        (2, "--tensor-parallel 2 --pad-vocabulary 257", "choose --pad-vocabulary"),
        (2, "--tensor-parallel 2 --sequence 9", "choose a multiple of 2"),
        (3, "--pipeline-parallel 3", "over 3 pipeline stages: choose --pipeline-parallel 1, 2 or 4, or "
         "--layers 3 or 6"),
        (8, "--pipeline-parallel 8", "choose --pipeline-parallel 1, 2 or 4, or --layers 8"),
        (2, "--pipeline-parallel 2 --pipeline-chunks 3", "over 2 pipeline stages of 3 chunks"),
        (4, "--pipeline-parallel 4 --pipeline-chunks 2", "choose --pipeline-parallel 2, or --layers 8"),
        (2, "--pipeline-parallel 2 --pipeline-chunks 2 --layers 2",
         "choose --pipeline-parallel 1 with --pipeline-chunks 1, or --layers 4"),
        (2, "--pipeline-parallel 2 --pipeline-chunks 2 --batch 1", "needs at least 2 micro-batches"),
        (2, "--pipeline-parallel 2 --pipeline-chunks 2 --batch 1 --micro-batch auto", "not even 1 is "
         "possible: --pipeline-chunks 2 over 2 stages with 1 micro-batch a step: needs at least 2 "
          "micro-batches"),
        (4, "--pipeline-parallel 4 --layers 8 --pipeline-chunks 2 --pipeline-group 5",
         "choose 4, 6, 7, 8 or 12"),
        (2, "--pipeline-chunks 2", "on one pipeline stage"),
        (2, "--pipeline-parallel 2 --pipeline-group 4", "--pipeline-chunks of 2 or more: leave it out"),
        (2, "--pipeline-parallel 2 --pipeline-chunks 2147483647", "over 2 pipeline stages of 2147483647"),
        (1, "--tensor-parallel 65536 --pipeline-parallel 65536", "does not divide 1 rank:"),
        (2, "--batch 2147483646", "micro-batches a step on each replica"),
        (2, f"--metrics {os.path.abspath(__file__)}", "is not a metrics file"),
        (2, f"--metrics {text}.validation.bin", "is a file that this run reads"),
        (1, "--min-learning-rate 1", "is more than --learning-rate"),
        (2, "--ramp-start 3 --ramp-tokens 1000", "a ramp in multiples of 2, or 1 or 3 data-parallel ranks"),
        (2, "--ramp-start 4 --ramp-increment 3 --ramp-tokens 1000", "does not reach --batch 12"),
        (2, "--recompute half", "expected none, light or full"),
        (2, "--graph yes", "MPI calls cannot be captured"),
        (2, "--micro-batch automatic", "expected a whole number"),
        (2, "--zero 2", "expected 0 or 1"),
        (2, "--no-such 2", "unknown option"),
        (2, f"--train {work}/nothing.bin", "cannot be read"),
        (2, "--validation a.bin", "--validation is given twice: write all its values after one"),
    ):  # fmt: skip
        begin = time.time()
        data = [] if "--train" in extra else DATA
        result = run(ranks, [*data, *MODEL, *extra.split()])
        said = [line for line in result.stderr.split("\n") if "train_gpt:" in line]
        check(
            result.returncode == 1
            and len(said) == 1
            and message in said[0]
            and said[0].startswith(
                f"[all {ranks} ranks]"
                if message != "is not a metrics file" and ranks > 1
                else ("train_gpt", "[rank 0]")
            ),
            f"{extra} over {ranks} ranks: {result.returncode} {result.stderr[-300:]}",
        )
        check(time.time() - begin < 20, f"{extra}: ended after {time.time() - begin:.0f} s")


def inside(folder, *words):
    """train_gpt with these options, started in a folder."""
    return ["sh", "-c", f"cd {folder} && exec {PROGRAM} {' '.join([*words, *MODEL])}"]


def test_different_ranks():
    """Ranks that were started differently."""
    shutil.copy(f"{text}.train.bin", f"{work}/other.bin")
    with open(f"{work}/other.bin", "r+b") as f:
        f.seek(70)
        f.write(b"zz")

    os.makedirs(f"{work}/here")
    os.makedirs(f"{work}/there")
    shutil.copy(f"{text}.train.bin", f"{work}/here/data.bin")
    shutil.copy(f"{work}/other.bin", f"{work}/there/data.bin")
    shutil.copy(f"{build}/train_gpt", f"{work}/other_build")
    with open(f"{work}/other_build", "ab") as f:
        f.write(b" ")

    # two folders of checkpoints with the same newest one: it may be damaged, and then the older ones count
    run(1, [*DATA, *MODEL, "--save", f"{work}/here/old", "--save-every", "3"])
    shutil.copytree(f"{work}/here/old", f"{work}/there/old")
    shutil.rmtree(f"{work}/there/old/step-00000003")
    for first, second, message in (
        (
            [PROGRAM, *DATA, *MODEL],
            [PROGRAM, *DATA, *MODEL, "--batch", "24"],
            "rank 1: --batch differs from rank 0's",
        ),
        ([PROGRAM, *DATA, *MODEL], [f"{work}/other_build", *DATA, *MODEL], "rank 1: the program differs"),
        (
            inside(f"{work}/here", "--train", "data.bin"),
            inside(f"{work}/there", "--train", "data.bin"),
            "rank 1: the training set differs",
        ),
        (
            inside(f"{work}/here", *DATA[:2], "--validation", "data.bin"),
            inside(f"{work}/there", *DATA[:2], "--validation", "data.bin"),
            "rank 1: the validation set differs",
        ),
        (
            inside(f"{work}/here", "--train", "data.bin"),
            inside("/", "--train", "data.bin"),
            "[rank 1] train_gpt: data.bin: cannot be read",
        ),
        (
            inside(f"{work}/here", *DATA, "--save", "saved"),
            inside(f"{work}/there", *DATA, "--save", "saved"),
            "is not the folder that rank 0 has",
        ),
        (
            inside(f"{work}/here", *DATA, "--resume", "old"),
            inside(f"{work}/there", *DATA, "--resume", "old"),
            "rank 1: the folder of --resume differs",
        ),
        ([PROGRAM, "--help"], [PROGRAM, *DATA, *MODEL], "rank 1: --"),
    ):
        both = ["mpirun", "-n", "1", *first, ":", "-n", "1", *second]
        result = limited(both, 60, env=environment, encoding="latin-1")
        check(
            result.returncode == 1 and message in result.stderr and result.stderr.count("train_gpt:") == 1,
            f"{message}: {result.returncode} {result.stderr[-400:]}",
        )


def test_failing_rank():
    """One rank's failure ends all, with its message."""
    begin = time.time()
    result = run(4, [*DATA, *MODEL, "--metrics", "/proc/nothing"])
    check(
        result.returncode == 1
        and result.stderr.count("[rank 0] train_gpt: --metrics /proc/nothing") == 1
        and time.time() - begin < 10,
        f"metrics that rank 0 cannot write: {result.returncode} {result.stderr[-300:]}",
    )


def signalled(victim, number, options, timeout, hangs):
    """Endless training over 4 ranks, one gets a signal: return code, ranks, stdout, stderr; or None."""
    endless = [*DATA, *MODEL, "--pipeline-parallel", "2", "--steps", "1000000", "--decay-tokens", "1e6"]
    process = subprocess.Popen(
        ["mpirun", "-n", "4", PROGRAM, *endless, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="latin-1",
    )
    time.sleep(2)
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    ranks = listed.stdout.split()
    os.kill(int(ranks[victim]), number)

    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        check(False, hangs)
        return None

    return process.returncode, len(ranks), out, errors


def test_killed_rank():
    """A killed rank ends the run."""
    end = signalled(1, signal.SIGKILL, [], 20, "a killed rank leaves the others hanging")
    if end:
        code, ranks, _, _ = end
        check(code != 0 and ranks == 4, f"a killed rank ends the run: {code}")


def test_stopped_rank():
    """A rank that stops answering is named, and where the others wait."""
    end = signalled(
        2, signal.SIGSTOP, ["--comm-timeout", "2"], 30, "a stopped rank leaves the others hanging"
    )
    if end:
        code, _, _, said = end
        check(
            code != 0
            and said.count("waits for rank 2, which does not answer") > 0
            and said.count("its last calls") >= 3,
            f"a stopped rank is named: {said[-1500:]}",
        )


def test_terminated_rank():
    """SIGTERM to one rank alone: all stop after the same step, and save."""
    save = ["--tensor-parallel", "2", "--save", f"{work}/stopped"]
    end = signalled(3, signal.SIGTERM, save, 20, "SIGTERM to one rank leaves a hang")
    if end:
        code, _, out, errors = end
        check(
            code == 0
            and "stopped by a signal" in out
            and len([name for name in os.listdir(f"{work}/stopped") if name.startswith("step-")]) == 1,
            f"SIGTERM to one rank: {code} {out[-200:]} {errors[-300:]}",
        )


def test_launchers():
    """As many ranks as hosts have slots; started again they go on. Slurm's own commands are stubs here."""
    with open(f"{work}/hosts", "w") as f:
        f.write("# one host\n\nlocalhost slots=4\n")
    for name, line in (
        ("srun", 'while [[ $1 = --* ]]; do shift; done; exec mpirun -n 4 "$@"'),
        ("scontrol", f"[ $1 = show ] && echo localhost || echo $* > {work}/scontrol.log"),
    ):
        with open(f"{work}/{name}", "w") as f:
            f.write(f"#!/usr/bin/env bash\n{line}\n")
        os.chmod(f"{work}/{name}", 0o755)

    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "4", "PATH": f"{work}:{os.environ['PATH']}"}
    job["LAUNCH_DIR"] = build
    for name, start_with in (
        ("mpirun", ["scripts/launch_mpirun.sh", f"{work}/hosts", "4"]),
        ("slurm", ["scripts/launch_slurm.sh"]),
    ):
        for steps, message in (
            ("2", f"saved     {work}/{name}/step-00000002"),
            ("4", f"resumed   {work}/{name}/step-00000002"),
        ):
            command = [
                "bash", *start_with, *DATA, *MODEL,
                *f"--tensor-parallel 2 --pipeline-parallel 2 --save {work}/{name} --steps".split(), steps
            ]
            result = limited(command, 60, env={**environment, **job}, encoding="latin-1")
            check(
                result.returncode == 0
                and message in result.stdout
                and "4 ranks = 2 tensor x 1 data x 2 pipeline" in result.stdout,
                f"{start_with[0]}, {steps} steps: {result.returncode} {result.stdout[-300:]}"
                f" {result.stderr[-300:]}",
            )

    # what the launcher itself refuses
    with open(f"{work}/binary", "wb") as f:
        f.write(b"\0\xff\n")
    for hosts, options, variables, message in (
        ("nothing", [], {}, "cannot be read"),
        ("binary", [], {}, "is no host"),
        ("hosts", ["--tensor-parallel", "inf"], {}, "--tensor-parallel inf: expected a number"),
        ("hosts", [], {"LAUNCH_MPIRUN": '"'}, "LAUNCH_MPIRUN="),
    ):
        command = ["bash", "scripts/launch_mpirun.sh", f"{work}/{hosts}", "4", "--steps", "1", *options]
        result = limited(command, 60, env={**environment, **job, **variables})
        said = result.stderr.strip().splitlines()
        check(result.returncode == 1 and len(said) == 1 and message in said[0], f"{message}: {result.stderr}")
