#!/usr/bin/env python3
"""The figures of MT-NLG's announcement (October 2021) and paper (arXiv 2201.11990), each by one command.

Usage: bash scripts/figures.sh NAME [--output FOLDER] [--resume CHECKPOINT…] [--from FOLDER]
       [--vocabulary bytes|PATH/vocab.bpe] [--limit N] [--form mtnlg]

    sizes        figure 1: parameters of language models over time, this program's presets among them
    sets         figure 2: the 15 sets: tokens, weight, epochs: published, and what a run would draw
    tasks        figure 3: nine tasks with zero, one and few shots by the model of --resume, from the folders
                 of --from, each named after its task; with MT-NLG's and GPT-3's published scores
    samples      figure 4: the four samples' prompts, answered by the model of --resume; answers to arithmetic
                 prompts are checked, and --more N adds N more of these
    hans         the effect of shots on HANS: accuracy against their number, with their order and their labels
                 changed, by label and by heuristic, calibrated; --from is HANS's folder; several checkpoints
                 of --resume are compared
    throughput   seconds and TFLOP/s on 280, 350 and 420 servers, planned and published, and why they differ;
                 why one kind of parallelism alone is not enough

Writes FOLDER/NAME.md, FOLDER/NAME.json and, except for samples, FOLDER/NAME.svg. Every number of a 530B model
is labelled planned or published: none was measured by this program.
"""

import argparse
import json
import random
import re
import shutil
import sys
from pathlib import Path

from charts import bars, over_time, table, write
from figure_hans import hans
from figure_throughput import throughput
from over_ranks import limited, output_of
from planned import PROGRAM, ROOT, plan, plan_of


# ---- figure 1 --------------------------------------------------------------------------------------------

# name, when, parameters as published, where, preset
MODELS = (
    ("ELMo", 2018.1, 94e6, "arXiv 1802.05365", ""),
    ("BERT-Large", 2018.8, 340e6, "arXiv 1810.04805", ""),
    ("GPT-2", 2019.1, 1.5e9, "Radford et al. 2019", "1558M"),
    ("Megatron-LM", 2019.7, 8.3e9, "arXiv 1909.08053", "8.3B"),
    ("T5", 2019.8, 11e9, "arXiv 1910.10683", ""),
    ("Turing-NLG", 2020.1, 17.2e9, "Microsoft Research blog, February 2020", "17B"),
    ("GPT-3", 2020.4, 175e9, "arXiv 2005.14165", "175B"),
    ("MT-NLG", 2021.8, 530e9, "arXiv 2201.11990", "530B"),
)


def sizes(_options):
    models = [
        {"name": name, "year": year, "parameters": parameters, "source": source, "preset": preset,
         "ours": plan_of({"model": preset, "hardware": "dgx-a100"})["parameters"] if preset else None}
        for name, year, parameters, source, preset in MODELS
    ]  # fmt: skip
    rows = [
        (m["name"], f"{int(m['year'])}", f"{m['parameters'] / 1e9:g} billion",
         f"{m['ours']:,} (`--model {m['preset']}`)" if m["preset"] else "", m["source"])
        for m in models
    ]  # fmt: skip
    text = table(("model", "year", "published", "this program's preset", "source"), rows)
    return text, {"models": models}, over_time("Parameters of language models", models)


# ---- figure 2 --------------------------------------------------------------------------------------------

# name in scripts/mtnlg-530b.blend: tokens in billions and epochs as published, or as recalled (False)
SETS = {
    "books3": (25.7, 1.5, True), "openwebtext2": (14.8, 3.6, True), "stackexchange": (11.6, 1.4, False),
    "pubmed": (4.4, 1.8, False), "wikipedia": (4.2, 3.2, False), "gutenberg": (2.7, 0.9, False),
    "bookcorpus2": (1.5, 1.8, False), "nih-exporter": (0.3, 1.8, False), "pile-cc": (49.8, 0.5, False),
    "arxiv": (20.8, 0.2, False), "github": (24.3, 0.2, False), "cc-2020-50": (68.7, 0.5, True),
    "cc-2021-04": (82.6, 0.5, True), "realnews": (21.9, 1.1, False), "cc-stories": (5.3, 0.5, True),
}  # fmt: skip


def sets(_options):
    text = (ROOT / "scripts/mtnlg-530b.blend").read_text()
    weights = {
        name: float(weight) for weight, name in re.findall(r"^([\d.]+) (\S+)\.train\.bin$", text, re.M)
    }
    if set(weights) != set(SETS):
        sys.exit(f"figures.py: scripts/mtnlg-530b.blend has {set(weights) ^ set(SETS)} besides, or not")
    tokens = plan({"world-size": 2240})["tokens"]

    out = []
    for name, (size, epochs, published) in SETS.items():
        drawn = weights[name] / sum(weights.values()) * tokens / 1e9
        out.append({
            "set": name, "tokens": size, "weight": weights[name], "published_epochs": epochs,
            "drawn": drawn, "epochs": drawn / size, "is_published": published,
        })  # fmt: skip

    rows = [
        (s["set"], f"{s['tokens']}{'' if s['is_published'] else ' (recalled)'}", s["weight"],
         f"{s['drawn']:.1f}", f"{s['published_epochs']}{'' if s['is_published'] else ' (recalled)'}",
         f"{s['epochs']:.2f}")
        for s in out
    ]  # fmt: skip
    head = (
        "set",
        "tokens, billions",
        "weight",
        "drawn in the run, billions",
        "epochs, published",
        "epochs, drawn",
    )

    said = f"A run of {tokens:,} tokens (`--plan`), by the weights of `scripts/mtnlg-530b.blend`.\n\n"
    pictures = [
        (s["set"], [(round(s["epochs"], 2), "ours", None), (s["published_epochs"], "published", None)])
        for s in out
    ]
    return said + table(head, rows), {"tokens": tokens, "sets": out}, bars(
        "Epochs of each set", pictures, "", {"ours": "drawn", "published": "published or recalled"}
    )  # fmt: skip


# ---- figure 3 --------------------------------------------------------------------------------------------

SHOTS = ("0", "1", "few")


def tasks(options):
    if not (options.resume and options.source and options.vocabulary):
        sys.exit("figures.py: tasks needs a model and the tasks' files: give --resume, --from, --vocabulary")
    limit = ["--limit", str(options.limit)] if options.limit else []
    form = ["--form", options.form] if options.form else []
    files, gaps = [], {}  # what is left out, and with how many shots

    for shots in SHOTS:
        folder = options.output / f"tasks-{shots}"
        shutil.rmtree(folder, ignore_errors=True)
        asked = ["--task", "all", "--shots", shots, "--from", options.source, *limit, *form]
        asked += ["--vocabulary", options.vocabulary, "--output", folder]
        done = limited([ROOT / "build/cpu-fp32/tasks", *asked], 3600, cwd=ROOT)
        if done.returncode and ": left out: " not in done.stdout:
            sys.exit(done.stderr.strip())
        for line in done.stdout.splitlines():
            if ": left out: " in line:
                gaps.setdefault(line, []).append(shots)
        files += sorted(folder.glob("*.eval"))

    if not files:
        sys.exit(f"figures.py: {options.source}: no task can be made:\n" + "\n".join(gaps))
    results = options.output / "tasks.results.json"
    asked = ["--resume", options.resume[-1], "--evaluate", *files, "--results", results]
    output_of([PROGRAM, *asked], 24 * 3600, cwd=ROOT)
    got = json.loads(results.read_text())

    out = []
    for task, published in got["published"].items():
        for column, shots in enumerate(SHOTS):
            number = published["few"] if shots == "few" else int(shots)
            name = re.compile(rf"{task}(-mtnlg)?" + (f"-{number}-shot" if number else "") + "$")
            keys = [key for key in got["results"] if name.match(key)]
            ours = [got["results"][key] for key in keys]
            out.append({
                "task": task, "shots": number, "star": published["star"],
                "ours": 100 * ours[0]["acc"] if ours else None,
                "error": 100 * (ours[0]["acc_stderr"] or 0) if ours else None,
                "documents": len(got["log_likelihoods"][keys[0]]) if ours else None,
                "mtnlg": published["MT-NLG 530B"][column], "gpt3": published["GPT-3 175B"][column],
            })  # fmt: skip

    shown = lambda value: "-" if value is None else f"{value:.1f}"  # noqa: E731
    rows = [
        (s["task"], s["shots"], s["documents"] or "-",
         "-" if s["ours"] is None else f"{s['ours']:.1f} ± {s['error']:.1f}",
         shown(s["mtnlg"]) + ("*" if s["star"] else ""), shown(s["gpt3"]))
        for s in out
    ]  # fmt: skip
    said = (
        "Accuracy, per cent, with its standard error over n documents. MT-NLG 530B: its announcement of"
        " October 2021, figure 3, where * marks what was the best known in all three settings; GPT-3 175B:"
        " arXiv 2005.14165. Both are published numbers; the model's own are of --resume"
        f"{f', of the first {options.limit} documents' if options.limit else ''}.\n\n"
    )

    left_out = [
        line if len(with_shots) == len(SHOTS) else f"{line} (with {', '.join(with_shots)} shots)"
        for line, with_shots in gaps.items()
    ]
    list_of_gaps = "".join(f"\n- {line}" for line in left_out) + "\n" * bool(left_out)
    counted = [s["documents"] for s in out if s["documents"]]
    pictures = [
        (f"{s['task']}{'*' if s['star'] else ''}, {s['shots']} shots",
         [(round(s[key], 1), colour, s["error"] if key == "ours" else None) for key, colour in
          (("ours", "ours"), ("mtnlg", "published"), ("gpt3", "others")) if s[key] is not None])
        for s in out
    ]  # fmt: skip
    return (
        said + table(("task", "shots", "n", "the model", "MT-NLG 530B", "GPT-3 175B"), rows) + list_of_gaps,
        {"tasks": out, "left_out": left_out},
        bars(
            "Accuracy", pictures, "%",
            {"ours": "the model, ± its standard error", "published": "MT-NLG 530B", "others": "GPT-3 175B"},
            f"n = {min(counted)} to {max(counted)} documents; * best known in all three settings in 2021",
        ),  # fmt: skip
    )


# ---- figure 4 --------------------------------------------------------------------------------------------

HANS = (
    ("The banker forgot that the judge advised the professors.", "The judge advised the professors."),
    ("Famous professors supported the secretary.", "Professors supported the secretary."),
)


def arithmetic(sign, pairs, operation):
    """A prompt with the last answer left out, and what it is."""
    lines = [f"Q: {a} {sign} {b} = ?\nA: {operation(a, b):g}" for a, b in pairs]
    prompt = "\n".join(lines)
    return prompt[: prompt.rindex(" ")], f"{operation(*pairs[-1]):g}"


def prompts(more, seed=1234):
    division = lambda a, b: a / b  # noqa: E731
    product = lambda a, b: a * b  # noqa: E731
    out = [
        arithmetic("#", [(11, 2), (18, 9), (35, 4), (27, 9), (75, 6)], division),
        arithmetic("$^%", [(11, 2), (3, 9), (12, 4), (7, 7), (8, 5)], product),
        *((f"{first}\nQuestion: {second} True or False?\n", "True") for first, second in HANS),
    ]

    draw = random.Random(seed)
    for _ in range(more):  # one's own: a sign that means something else, four examples, one question
        sign = "".join(draw.choice("#$%^&*@!~") for _ in range(draw.randint(1, 3)))
        if draw.random() < 0.5:
            pairs = [(b * draw.choice((1, 2, 3, 2.5)), b) for b in draw.sample(range(2, 13), 5)]
            out.append(arithmetic(sign, [(f"{a:g}", b) for a, b in pairs], lambda a, b: float(a) / b))
        else:
            out.append(
                arithmetic(sign, [(draw.randint(2, 12), draw.randint(2, 12)) for _ in range(5)], product)
            )

    return out


def samples(options):
    if not options.resume:
        sys.exit("figures.py: samples needs a trained model: give --resume CHECKPOINTS")
    asked = prompts(options.more)
    file = options.output / "samples.jsonl"
    lines = [json.dumps({"prompt": prompt, "tokens": 24, "temperature": 0}) for prompt, _ in asked]
    file.write_text("\n".join(lines) + "\n")
    answers = output_of([PROGRAM, "--resume", options.resume[-1], "--generate", file], cwd=ROOT)

    out = []
    for (prompt, want), line in zip(asked, answers.rstrip("\n").split("\n"), strict=True):
        said = json.loads(line)["text"]
        got = (re.match(r"\s*([-\w.]*\w)", said) or [""])[0].strip()
        out.append({"prompt": prompt, "want": want, "answer": said, "right": got == want})

    shown = [(i + 1, s["prompt"].splitlines()[-2], s["want"],
              s["answer"].replace("\n", "⏎").replace("|", "\\|"), "yes" if s["right"] else "no")
             for i, s in enumerate(out)]  # fmt: skip
    right = sum(s["right"] for s in out)
    said = f"{right} of {len(out)} right. The prompts are whole in samples.jsonl.\n\n"
    return (
        said + table(("", "question", "right answer", "the model's", "right"), shown),
        {"samples": out},
        None,
    )


FIGURES = {
    "sizes": sizes,
    "sets": sets,
    "tasks": tasks,
    "samples": samples,
    "hans": hans,
    "throughput": throughput,
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=sorted(FIGURES))
    parser.add_argument("--output", type=Path, default=ROOT / "build/figures")
    parser.add_argument(
        "--resume", type=Path, nargs="+", help="checkpoints of a trained model, for tasks, samples and hans"
    )
    parser.add_argument(
        "--from", dest="source", type=Path, help="for tasks: folder of their folders; for hans: its folder"
    )
    parser.add_argument("--vocabulary", help="for tasks and hans: the model's")
    parser.add_argument("--limit", type=int, help="for tasks and hans: only this many documents of each")
    parser.add_argument("--form", choices=["mtnlg"], help="for tasks and hans: MT-NLG's wording")
    parser.add_argument(
        "--more", type=int, default=0, help="for samples: add this many arithmetic prompts"
    )

    options = parser.parse_args()
    if options.limit is not None and options.limit < 1:
        sys.exit(f"figures.py: --limit {options.limit}: must be at least one document")
    if options.resume and len(options.resume) > 1 and options.name != "hans":
        sys.exit(f"figures.py: {options.name} takes one checkpoint, but --resume has {len(options.resume)}")
    # programs run in the repository, wherever this one was started
    options.output = options.output.resolve()
    options.resume = options.resume and [folder.resolve() for folder in options.resume]
    options.source = options.source and options.source.resolve()
    if options.vocabulary and Path(options.vocabulary).exists():
        options.vocabulary = str(Path(options.vocabulary).resolve())
    options.output.mkdir(parents=True, exist_ok=True)
    text, numbers, picture = FIGURES[options.name](options)
    if picture:
        write(options.output / f"{options.name}.svg", picture)
    (options.output / f"{options.name}.md").write_text(text)
    (options.output / f"{options.name}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print(text)
    print(f"in {options.output}: {options.name}.md, .json{', .svg' if picture else ''}")


if __name__ == "__main__":
    main()
