"""Checks and times this program on a GPU: scripts/first_contact.sh calls it."""

import argparse
import collections
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import first_contact_programs as programs
from charts import table
from models import MODELS
from over_ranks import environment, limited

MODEL = programs.MODEL
# name: seconds, what it answers. In order of value; `others` run only where they are asked for by name
PARTS = {
    "machine": (10, "card, driver, clocks, libraries; do the programs start?"),
    "checks": (100, "every kernel beside the CPU's; if one is wrong (but attention's of sm_90a), it ends"),
    "losses": (25, "training in fp32, bf16 and as a graph beside the CPU's losses"),
    "124M": (45, "a step's rate and its parts, the choices made for it"),
    "peers": (80, "other trainers, in turn with 124M"),
    "pytorch": (115, "PyTorch compiled, in its fastest forms, between two runs of 124M"),
    "nccl": (100, "2, 4 and 8 ranks that share the GPU over NCCL, beside one"),
    "gemms": (95, "each GEMM of a step under load: the choice, others, PyTorch's, the clocks"),
    "1558M": (60, "a larger model, one and four micro-batches a step"),
    "fp8": (50, "124M and 1.3B in fp8 beside bf16, in turn"),
    "kernels": (50, "each kernel at the step's own size, for a second"),
    "switches": (50, "other ways to run a step, in turn with the usual one"),
}
OTHERS = {
    "models": (400, "the other models"),
    "memory": (150, "compute-sanitizer: memcheck, synccheck"),
    "races": (150, "compute-sanitizer: racecheck, initcheck"),
}
FORMS = "default:cudnn reduce-overhead:cudnn default:flash reduce-overhead:flash".split()
SWITCHES = ("--graph no", "--moments bf16", "--recompute light")
LAYOUTS = (  # ranks, options
    (2, "--tensor-parallel 2"),
    (2, "--pipeline-parallel 2"),
    (2, ""),
    (2, "--pipeline-parallel 2 --pipeline-chunks 2"),
    (4, "--tensor-parallel 2 --pipeline-parallel 2 --pipeline-chunks 2"),
    (8, "--tensor-parallel 2 --pipeline-parallel 2"),  # through sockets a second a step
    # four replicas, whose sums each have an order of their own: complete_gradients makes copies equal
    (8, "--tensor-parallel 2 --sequence-parallel no --micro-batch 2"),
)

parser = argparse.ArgumentParser(prog="first_contact.sh", description=__doc__)
parser.add_argument(
    "--output", default="first_contact", help="OUTPUT.json, OUTPUT.md, OUTPUT/ [first_contact]"
)
parser.add_argument("--list", action="store_true", help="the parts and their seconds")
parser.add_argument("--parts", nargs="*", choices=[*PARTS, *OTHERS], help="only these, in this order [all]")
parser.add_argument("--from", dest="first", choices=list(PARTS), help="this part and those that follow")
parser.add_argument("--prepare", action="store_true", help="build what is run, to be carried to a GPU")
parser.add_argument("--arch", help="with --prepare: for which GPU [native, or 90a where none is]")
parser.add_argument("--peer", action="append", default=[], metavar="NAME=MODEL=COMMAND")
parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch [this one]")
parser.add_argument("--minutes", type=float, default=9.5, help="time limit, report included [9.5]")
parser.add_argument("--force", action="store_true", help="continue even if checks fail")
parser.add_argument("--rehearse", action="store_true", help="small, without a GPU: to see that it works")
parser.add_argument(
    "--hang", choices=list(PARTS), help="to see that a part is ended: its programs sleep instead"
)
o = parser.parse_args()
began = time.time()
logs = Path(o.output)
parts, figures = [], {}
deadline = 0.0  # of the part that runs
slower = 10 if o.rehearse and not o.hang else 1  # a rehearsal must not depend on a machine's speed


def program(variant, name="train_gpt"):
    return programs.program(variant, name, o.rehearse)


def left():
    return max(0.0, deadline - time.time())


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "printed nothing"


def note(name, good, says):
    """good: True, False, or None for what was left out."""
    parts.append({"part": name, "good": good, "says": says, "at": round(time.time() - began, 1)})
    state = "left out" if good is None else "ok" if good else "FAILED"
    print(f"{time.time() - began:5.0f} s  {state:8s} {name}: {says}", flush=True)
    write_report()
    return good


# a GPU's own run starts on all cores: parameters are drawn on the host
CORES = {} if o.rehearse else {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}


def words_of(command):
    return ["sleep", "10000"] if o.hang == current else [str(word) for word in command]


def run(name, command, seconds=600, **variables):
    """A program, until the part's time is over; its whole output is kept. A hang is an exit code of 124."""
    words = words_of(command)
    done = limited(words, min(seconds, left()), env=dict(environment, **variables))
    text = f"$ {' '.join(words)}\n{done.stdout}{done.stderr}\nexit {done.returncode}\n"
    with open(logs / (re.sub(r"\W+", "_", name) + ".log"), "a") as log:
        log.write(text)
    return done


def check(name, command, judge, **variables):
    """judge(what the program printed) -> (good, what it says)"""
    return judged(name, run(name, command, **variables), judge)


def judged(name, done, judge):
    if done.returncode == 124:
        return note(name, False, f"was ended: its time was over: {last_line(done.stdout)}")
    good, says = judge(done.stdout)
    if not good:
        says = "; ".join([says, last_line(done.stderr), *re.findall(r"^FAILED.*", done.stdout, re.M)[:5]])
    return note(name, good and done.returncode == 0, says)


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def is_counted(text):
    last = last_line(text)
    return bool(re.search(r"[1-9]\d* passed, 0 failed", last)), last


# ---- steps -------------------------------------------------------------------------------------------


OVER = "its time was over"


def train(name, model, micro_batch, *options, steps=20, batch=None):
    """tokens/s (the median of the later half of the steps) and MFU, or what went wrong."""
    if o.rehearse:
        model, micro_batch, batch, steps = "124M --layers 2 --hidden 64 --heads 1 --sequence 64", 2, 2, 2
    metrics = logs / (re.sub(r"\W+", "_", name) + ".jsonl")
    metrics.unlink(missing_ok=True)
    words = f"--model {model} --vocabulary 50257 --micro-batch {micro_batch} --batch {batch or micro_batch}"
    # without fp8's kernels, which require bf16 and a GPU, a rehearsal runs in the CPU's fp32
    done = run(
        name,
        [
            program("cpu" if o.rehearse else "bf16"),
            *words.split(),
            *(word for word in options if not o.rehearse or "fp8" not in " ".join(options)),
            *("--steps", steps, "--train", logs / "tokens.bin", "--metrics", metrics),
            *("--tuning", logs / "tuning"),
        ],
        **CORES,
    )
    if done.returncode:
        return {"error": OVER if done.returncode == 124 else last_line(done.stderr)}
    lines = json_lines(metrics.read_text())
    size = (batch or micro_batch) * (64 if o.rehearse else MODELS[model].sequence)
    rates = [size / line["seconds"] for line in lines[len(lines) // 2 :]]
    return {
        "tokens_per_second": statistics.median(rates),
        "mfu": lines[-1].get("mfu"),
        "loss": lines[-1]["loss"],
    }


def rate_of(got):
    return f"{got['tokens_per_second']:,.0f} tokens/s" if "error" not in got else got["error"]


def in_turn(name, model, micro_batch, ways, rounds=2, **more):
    """ways: name -> options, or a function that returns tokens/s. A B A B: {way: [tokens/s, …]}"""
    rates = {way: [] for way in ways}
    for _ in range(rounds):
        for way, options in ways.items():
            if left() < 3:
                continue
            if callable(options):
                got = options()
            else:
                got = train(f"{name} {way}", model, micro_batch, *options.split(), **more)
            if "error" in got:
                note(f"{name}, {way}", None if got["error"] == OVER else False, got["error"])
            rates[way].append(got.get("tokens_per_second"))
    base = next(iter(ways))
    rounds_of = {way: list(zip(own, rates[base])) for way, own in rates.items()}
    for way, own in rates.items():
        own[:] = [rate for rate in own if rate]
        if not own:
            note(f"{name}, {way}", None, OVER)
            continue
        ratios = [a / b for a, b in rounds_of[way] if a and b]  # of the same round
        beside = f"; {statistics.mean(ratios):.3f} x {base}" if way != base and ratios else ""
        note(f"{name}, {way}", True, " and ".join(f"{rate:,.0f}" for rate in own) + " tokens/s" + beside)
    figures.setdefault("steps", {})[name] = rates


# ---- parts -------------------------------------------------------------------------------------------


def identify():
    query = "name,driver_version,memory.total,clocks.max.sm,power.limit,clocks_event_reasons.active"
    card = run("card", ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]).stdout.strip()
    torch = "import torch; print(torch.__version__, torch.version.cuda)"
    found = run("torch", [o.python, "-c", torch])
    figures["machine"] = {
        "card": card.splitlines()[0] if card else "no GPU",
        "torch": found.stdout.strip() if found.returncode == 0 else None,
        "why": OVER if found.returncode == 124 else last_line(found.stderr),
        "commit": programs.commit() or programs.prepared().get("commit"),
    }


def machine():
    card = figures["machine"]["card"]
    torch = figures["machine"]["torch"] or f"is not here: {figures['machine']['why']}"
    note("card", card != "no GPU" or o.rehearse, f"{card}; PyTorch {torch}")
    for variant in ("bf16", "fp32", "bf16-nccl", "fp32-nccl"):
        path = program(variant)
        if not path.exists():
            note(f"{variant}", None, f"no {path} is here")
            continue
        judge = lambda text: ("train_gpt" in text, last_line(text))
        check(f"{variant} starts", [path, "--version"], judge, **(libraries if "nccl" in variant else {}))


def checks():
    # most of their time is the CPU's, which computes what the kernels should: at once, with the share of the
    # cores that each needs (hopper: 66 s of 8 cores)
    shares = {"emulated": 1} if o.rehearse else {
        "hopper": 5 / 8,
        "kernels packed": 2 / 8,
        "pytorch training scores overfit": 1 / 8,
    }
    chapters = list(shares)

    def ask(chapter):
        threads = max(1, int((os.cpu_count() or 1) * shares[chapter]))
        return run(chapter, [program("bf16", "test_gpt"), *chapter.split()], OMP_NUM_THREADS=f"{threads}")

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(ask, chapters))
    good = [judged(name, done, is_counted) for name, done in zip(chapters, answers)]
    # those that were only too slow prove nothing
    wrong = [
        name
        for name, done, right in zip(chapters, answers, good)
        if not right and (done.returncode != 124 or re.search("^FAILED", done.stdout, re.M))
    ]
    if wrong == ["hopper"]:
        environment["TRAIN_GPT_SM80_ATTENTION"] = "1"
        note("attention", None, "its sm_90a kernels are wrong: everything runs those of sm_80")
    elif wrong and not o.force:
        sys.exit(
            "first_contact.sh: kernels are wrong, so nothing is timed (--force times anyway)"
        )


def losses(variant, name, *options, ranks=1, steps=programs.STEPS, **variables):
    launch = ["mpirun", "-n", ranks] if ranks > 1 else []
    train = [program(variant), "--train", logs / "text.bin", *MODEL, "--steps", steps, *options]
    command = words_of([*launch, *train])
    metrics = logs / f"losses_{name}.jsonl"
    limit = min((25 if ranks > 1 else 60) * slower, left())
    got, done = programs.losses_of(command, metrics, limit, dict(environment, **variables))
    if "cannot be captured" in done.stderr and not o.rehearse:
        raise RuntimeError(next(line for line in done.stderr.splitlines() if "captured" in line))
    return got


def compare_losses(what, wanted, most, *run, **more):
    start = time.time()
    try:
        mine = losses(*run, **more)
        worst = max(abs(a - b) / b for a, b in zip(mine, wanted))
        good = len(mine) == len(wanted) and worst <= most
        says = (
            f"{len(mine)} steps, off by {worst:.1e} at most ({most:g} allowed), {time.time() - start:.1f} s"
        )
    except (OSError, RuntimeError, ValueError) as e:
        good, says = False, f"{e}"
    with open(logs / "losses.log", "a") as log:
        log.write(f"{what}: {says}\n")
    figures.setdefault("losses", {})[what] = says
    return note(what, good, says.partition("\n")[0][:300])


def losses_beside_cpu():
    for name, variant, most, options in (
        ("bf16", "bf16", 3e-2, ()),
        ("fp32", "fp32", 2e-3, ()),
        ("bf16 as a graph", "bf16", 3e-2, ("--graph", "yes")),
        ("bf16, recompute light", "bf16", 3e-2, ("--recompute", "light")),
    ):
        name_of = re.sub(r"\W+", "_", name)
        compare_losses(f"training in {name}", cpu, most, variant, name_of, *options, steps=len(cpu))


def step_124M():
    got = train("124M", "124M", 64, steps=40)
    figures["124M"] = got
    note("124M", "error" not in got, rate_of(got))
    for path in (logs / "tuning").glob("choices-*[0-9a-f]") if (logs / "tuning").exists() else ():
        lines = [line.rpartition(" = ") for line in path.read_text().splitlines()[1:]]
        figures["choices"] = {key: choice for key, _, choice in lines}
        note("choices", bool(lines), f"{len(lines)} choices; the table is in {o.output}.md")
    small = "--layers 2 --hidden 64 --heads 1 --sequence 64 --micro-batch 2".split()
    options = small if o.rehearse else ["--micro-batch", 64]
    done = run("profile", [program("bf16", "test_gpt"), "profile", *options], **CORES)
    figures["profile"] = done.stdout
    note("profile", done.returncode == 0, f"the table is in {o.output}.md")


def timed_peer(command):
    def rate():
        done = run("peers", shlex.split(command))
        rates = [float(x.replace(",", "")) for x in re.findall(r"([0-9][0-9.,]*) tok(?:ens)?/s", done.stdout)]
        if not rates:
            return {"error": f"no `tok/s` in its output: {last_line(done.stdout + done.stderr)}"}
        return {"tokens_per_second": statistics.median(rates[len(rates) // 2 :])}

    return rate


def peers():
    if not o.peer:
        return note("peers", None, "none is given (--peer)")
    for model in dict.fromkeys(each.split("=")[1] for each in o.peer):
        ways = {"usual": ""}
        for each in o.peer:
            name, of, command = each.split("=", 2)
            if of == model:
                ways[name] = timed_peer(command)
        in_turn(f"{model} beside peers", model, MODELS[model].micro_batches[0], ways)


def twin(*words):
    size = ["--micro-batch", 2, "--rehearse"] if o.rehearse else ["--micro-batch", 64]
    return [o.python, "scripts/twin_pytorch.py", "--model", "124M", *size, *words]


def pytorch():
    if not figures["machine"]["torch"]:
        return note("PyTorch", None, "PyTorch is not here")
    before = train("124M before PyTorch", "124M", 64)
    forms = ["none"] if o.rehearse else FORMS
    done = run("PyTorch", twin("--forms", *forms, "--steps", 20), left() - 12)
    after = train("124M after PyTorch", "124M", 64)
    rows = json_lines(done.stdout)
    figures["pytorch"] = rows
    rates = [got["tokens_per_second"] for got in (before, after) if "error" not in got]
    for row in rows:
        if "error" in row:
            note(f"PyTorch {row['form']}", False, row["error"])
            continue
        ratio = f", ours is {statistics.mean(rates) / row['tokens_per_second']:.3f} x that" if rates else ""
        note(f"PyTorch {row['form']}", True, rate_of(row) + ratio)
    if len(rows) < len(forms):
        note(
            "PyTorch",
            False if not rows else None,
            f"{len(rows)} of {len(forms)} forms; {last_line(done.stderr)}",
        )


def nccl():
    if not program("fp32-nccl").exists() or not shutil.which("mpirun", path=libraries.get("PATH")):
        return note("NCCL", None, "no build over NCCL, or no mpirun, is here")
    most = 3 if o.rehearse else 20
    # the latter for NCCL's stand-in
    common = {**libraries, "TRAIN_GPT_SHARE_GPU": "1", "NCCL_ON_CPU_ONE_DEVICE": "1"}
    layers = ("--layers", 4)  # for two chunks on each of two stages
    one = {each: losses(each, f"one_{each}", *layers, steps=most) for each in ("fp32", "bf16")}
    # fp32: sums in another order, 2^-24 each; bf16: each value is rounded by 2^-9, means of 512 by less
    bounds = {"fp32": 1e-6, "bf16": 5e-3}
    in_order = [(ranks, words, kind) for kind in ("fp32", "bf16") for ranks, words in LAYOUTS]

    def compare(ranks, words, kind):
        what = f"{ranks} ranks over NCCL, {kind}, {words.replace('--', '') or 'data-parallel'}"
        name = re.sub(r"\W+", "_", what)
        steps = most if ranks < 8 else min(most, 6)
        compare_losses(
            what, one[kind][:steps], bounds[kind], f"{kind}-nccl", name, *layers, *words.split(),
            ranks=ranks, steps=steps, **common,
        )  # fmt: skip

    if o.rehearse:
        for each in (in_order[5], in_order[3], (2, "--tensor-parallel 2", "bf16")):
            compare(*each)
        return
    for each in in_order:
        if left() < 8:
            note("NCCL", None, f"its time was over before {each}")
            break
        compare(*each)


def gemms():
    small = "--layers 1 --hidden 64 --heads 1 --sequence 64 --vocabulary 300 --micro-batch 1".split()
    options = small if o.rehearse else ["--micro-batch", 64]
    ours = run("gemms", [program("bf16", "test_gpt"), "bench-gemms", *options], left() - 38, **CORES)
    rows = {row["gemm"]: row for row in json_lines(ours.stdout) if "m" in row}
    figures["gemms"] = rows
    figures["beside"] = [row for row in json_lines(ours.stdout) if "beside_us" in row]
    note(
        "GEMMs", len(rows) == 15, f"{len(rows)} of 15; the table is in {o.output}.md {last_line(ours.stderr)}"
    )
    if not figures["machine"]["torch"]:
        return note("GEMMs of PyTorch", None, "PyTorch is not here")
    done = run("gemms of torch", twin("--gemms", 0 if o.rehearse else 2))
    theirs = json_lines(done.stdout)
    for row in theirs:
        rows.setdefault(row["gemm"], {})["torch"] = row
    note("GEMMs of PyTorch", len(theirs) == 15, f"{len(theirs)} of 15 {last_line(done.stderr)}")


def larger():
    for batch in (16, 64):
        got = train(f"1558M batch {batch}", "1558M", 16, batch=batch, steps=8)
        figures.setdefault("1558M", {})[batch] = got
        good = None if got.get("error") == OVER else "error" not in got
        note(f"1558M, micro-batch 16, batch {batch}", good, rate_of(got))


def fp8():
    ways = {"bf16": "", "fp8": "--fp8 yes", "fp8, LM head too": "--fp8 yes --fp8-lm-head yes"}
    in_turn("124M in fp8", "124M", 64, ways)
    in_turn("1.3B in fp8", "1.3B", 16, {"bf16": "", "fp8": "--fp8 yes"}, rounds=1, steps=8)


def kernels():
    done = run("bench-kernels", [program("bf16", "test_gpt"), "bench-kernels"])
    figures["kernels"] = json_lines(done.stdout)
    over = done.returncode == 124
    note("kernels alone", done.returncode == 0 or (over and None), f"{len(figures['kernels'])} kernels timed")


def switches():
    in_turn("124M", "124M", 64, {"usual": "", **{words: words for words in SWITCHES}})


def models():
    for name in [each for each in MODELS if each not in ("124M", "1558M")]:
        for size in MODELS[name].micro_batches:
            got = train(name, name, size, steps=8)
            figures.setdefault("models", {})[f"{name}, micro-batch {size}"] = got
            if note(f"{name}, micro-batch {size}", "error" not in got or None, rate_of(got)):
                break


def sanitize(tools, variant):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if o.rehearse or not Path(tool).exists():
        return note(" ".join(tools), None, "compute-sanitizer is not here")
    tiny = "--layers 2 --hidden 128 --heads 2 --sequence 80 --batch 4 --micro-batch 2 --steps 2 --graph no"
    command = [program(variant), "--train", logs / "text.bin", *tiny.split(), "--tuning", logs / "tuning"]
    run("sanitize", command)  # so that tuning is done: under a tool it would be slow
    for each in tools:
        summary = r"=+ (ERROR SUMMARY.*|RACECHECK SUMMARY.*)"
        judge = lambda text: (True, (re.findall(summary, text) or [last_line(text)])[-1])
        check(each, [tool, "--tool", each, "--error-exitcode", 9, *command], judge)


RUN = {
    "machine": machine,
    "checks": checks,
    "losses": losses_beside_cpu,
    "124M": step_124M,
    "peers": peers,
    "pytorch": pytorch,
    "nccl": nccl,
    "gemms": gemms,
    "1558M": larger,
    "fp8": fp8,
    "kernels": kernels,
    "switches": switches,
    "models": models,
    "memory": lambda: sanitize(("memcheck", "synccheck"), "bf16"),
    # what cuBLASLt's bf16 kernels store through TMA is not written, as initcheck sees it
    "races": lambda: (sanitize(("racecheck",), "bf16"), sanitize(("initcheck",), "fp32")),
}

# ---- clocks and report -------------------------------------------------------------------------------


def log_clocks():
    """Clock, power and what holds them down, every 100 ms, into OUTPUT/clocks.csv."""
    query = "timestamp,clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active"
    words = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-lms", "100"]
    try:
        return subprocess.Popen(words, stdout=open(logs / "clocks.csv", "w"), stderr=subprocess.DEVNULL)
    except OSError:
        return None


def clocks_between(first, last):
    """Between two times: the median clock in MHz, the mean power in W, what held the clock down."""
    rows = []
    for line in (logs / "clocks.csv").read_text().splitlines() if (logs / "clocks.csv").exists() else ():
        cells = [cell.strip() for cell in line.split(",")]
        try:
            at = datetime.strptime(cells[0], "%Y/%m/%d %H:%M:%S.%f").timestamp()
            if first <= at <= last:
                rows.append((float(cells[1]), float(cells[2]), cells[4]))
        except (ValueError, IndexError):
            continue  # a line that is being written
    if not rows:
        return None
    reasons = collections.Counter(row[2] for row in rows).most_common(3)
    held = ", ".join(f"{reason} {count / len(rows):.0%}" for reason, count in reasons)
    return {
        "MHz": statistics.median(row[0] for row in rows),
        "W": statistics.mean(row[1] for row in rows),
        "reasons": held,
    }


def number(x, form):
    return format(x, form) if isinstance(x, (int, float)) else "-"


def gemm_rows():
    for name, row in figures.get("gemms", {}).items():
        torch = row.get("torch", {})
        clock = clocks_between(row["began"], row["ended"]) if "began" in row else None
        yield [
            name,
            f"{row.get('m')} x {row.get('n')} x {row.get('k')}",
            f"{row.get('chosen')} of {row.get('of')}",
            number(row.get("tuned_us"), ".1f"),
            number(row.get("us"), ".1f"),
            number(row.get("tflops"), ".0f"),
            number(row.get("first_tflops"), ".0f"),
            number(clock and clock["MHz"], ".0f"),
            number(row.get("separate_us"), ".1f"),
            f"{number(row.get('best_us'), '.1f')} ({row.get('best')} of {row.get('best_of')})",
            number(torch.get("us"), ".1f"),
            number(torch.get("tflops"), ".0f"),
        ]


def write_report():
    report = {"rehearsal": o.rehearse, "minutes": (time.time() - began) / 60, "parts": parts, **figures}
    Path(o.output + ".json").write_text(json.dumps(report, indent=1) + "\n")
    title = "A rehearsal without a GPU: these figures mean nothing" if o.rehearse else "First contact"
    told = figures.get("machine", {})
    here = f"{told.get('card')}; PyTorch {told.get('torch')}; commit {told.get('commit')}"
    out = [f"# {title}", "", here, ""]
    states = {None: "left out", True: "ok", False: "**failed**"}
    rows = ([p["part"], states[p["good"]], p["says"].replace("|", "/"), f"{p['at']}"] for p in parts)
    out.append(table(["part", "", "says", "s"], rows))
    if "clocks" in figures:
        rows = (
            [name, f"{c['MHz']:.0f}", f"{c['W']:.0f}", c["reasons"]] for name, c in figures["clocks"].items()
        )
        out.append(table(["clocks of a part", "MHz", "W", "held down by"], rows))
    if "gemms" in figures:
        columns = "GEMM, m x n x k, chosen, timed as µs, under load µs, TFLOP/s, in its first 50 ms, MHz"
        columns += ", epilogue apart µs (down's dx: with up's bias gradient)"
        columns += ", best of 64 with 256 MiB µs, PyTorch µs, TFLOP/s"
        out.append(table(columns.split(", "), gemm_rows()))
    if "beside" in figures:
        rows = (
            [r["gemm"], *(f"{r[k]:.1f}" for k in ("alone_us", "beside_us", "told_us"))]
            for r in figures["beside"]
        )
        out.append(table(["GEMM", "alone, µs", "beside a kernel on 16 SMs", "and told of it"], rows))
    if "kernels" in figures:
        rows = (
            [
                k["kernel"],
                f"{k['microseconds']:.1f}",
                number(k.get("gb_per_s"), ",.0f"),
                number(k.get("of_floor"), ".0%"),
                number(k.get("tflop_per_s"), ".4g"),
            ]
            for k in figures["kernels"]
        )
        out.append(table(["kernel", "µs", "GB/s", "of the copy's rate", "TFLOP/s"], rows))
    if "choices" in figures:
        out.append(table(["what was chosen", "number, µs"], ([k, v] for k, v in figures["choices"].items())))
    if figures.get("profile"):
        out += ["", "```", figures["profile"].rstrip(), "```"]
    Path(o.output + ".md").write_text("\n".join(out) + "\n")


def pack():
    """One archive, for machines from which only a few files come back."""
    with tarfile.open(o.output + ".tgz", "w:gz") as archive:
        for path in sorted([*logs.glob("*.log"), *logs.glob("*.json*"), *logs.glob("*.csv")]):
            archive.add(path, path.name)


def run_part(name, end):
    global deadline, current
    current, start = name, time.time()
    if start > end - 10:
        return note(name, None, f"no time is left: continue with --from {name} --output OTHER")
    deadline = min(start + {**PARTS, **OTHERS}[name][0] * slower, end - 5)
    try:
        RUN[name]()
    except Exception as e:  # a part that fails does not stop the rest
        note(name, False, f"{type(e).__name__} {e}"[:300])
    if held := clocks_between(start, time.time()):
        figures.setdefault("clocks", {})[name] = held
    figures.setdefault("seconds", {})[name] = round(time.time() - start, 1)


def main():
    global deadline
    names = o.parts if o.parts is not None else list(PARTS)
    if o.first:
        names = list(PARTS)[list(PARTS).index(o.first) :]
    logs.mkdir(parents=True, exist_ok=True)
    programs.make_tokens(logs / "tokens.bin", 40_000 if o.rehearse else 4_000_000)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever ends it gets the report all the same
    clocks = log_clocks()
    end = began + 60 * o.minutes * slower
    deadline = time.time() + 90  # PyTorch may be read from a cold disk
    try:
        identify()
        for name in names:
            run_part(name, end)
    finally:
        if clocks:
            clocks.terminate()
        write_report()
        pack()
    failed = sum(part["good"] is False for part in parts)
    print(f"{sum(part['good'] is True for part in parts)} passed, {failed} failed: {o.output}.md")
    sys.exit(bool(failed))


current = ""
if o.list:
    for name, (seconds, what) in PARTS.items():
        print(f"{name:9s} {seconds:4d} s  {what}")
    print(f"{sum(seconds for seconds, _ in PARTS.values()) / 60:.1f} minutes; by name only:")
    for name, (seconds, what) in OTHERS.items():
        print(f"{name:9s} {seconds:4d} s  {what}")
    sys.exit()
has_gpu = limited(["nvidia-smi", "-L"], 20).returncode == 0
if not has_gpu and not o.rehearse and not o.prepare:
    sys.exit("first_contact.sh: no GPU is here: run it where nvidia-smi finds one, or with --rehearse")
if o.prepare or not (o.rehearse or programs.is_prepared()):
    if programs.FOLDER.exists() and not o.prepare:  # building would take a GPU's minutes
        sys.exit(
            f"first_contact.sh: {programs.FOLDER} was built from other sources than those here: build"
            " it again with --prepare"
        )
    programs.prepare(o.arch or ("native" if has_gpu else "90a"))
    if o.prepare:
        sys.exit()
libraries = {} if o.rehearse else programs.libraries_environment(o.python)
if o.rehearse:
    cpu = programs.prepare_texts(logs, True, 3)
else:
    cpu = programs.prepared()["cpu"]
    logs.mkdir(parents=True, exist_ok=True)
    shutil.copy(programs.FOLDER / "text.bin", logs)
main()
