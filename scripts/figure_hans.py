"""HANS and in-context learning: the figure `hans` of figures.py.

In MT-NLG's announcement, shots improve the scores on HANS. What do the shots contribute? For each number of
shots, the same documents are scored again with
    their order      the same shots in other orders (ORDERS of them)
    their labels     the same shots, each label drawn at random (arXiv 2202.12837)
    calibration      each answer's log-likelihood minus the one after "N/A" with the same shots, which shows
                     what the shots alone make likely (arXiv 2102.09690)
Documents, shots and wording are those of ./tasks --task hans, which formats all prompts.
"""

import csv
import json
import math
import random
import statistics
import sys
from dataclasses import dataclass

from charts import LINES, Curve, line_chart, table
from over_ranks import output_of
from planned import ROOT

BUILD = ROOT / "build/cpu-fp32"
FILE = "heuristics_evaluation_set.txt"
ANSWERS = ("entailment", "non-entailment")  # in the order of the requests' continuations
SHOTS = (0, 1, 2, 4, 8, 16, 32)
ORDERS = 3
DOCUMENTS = 300  # without --limit


@dataclass
class Document:
    prompt: str
    answers: list  # both, as they follow the prompt
    gold: int
    heuristic: str

    def shot(self, answer):
        return f"{self.prompt}{self.answers[answer]}\n\n"


@dataclass
class Question:
    """A document with a number of shots: all that is asked of it."""

    document: Document
    asked: dict  # variant: context


# ---- what is asked ---------------------------------------------------------------------------------------


def read_rows(path):
    with path.open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def shuffled(n):
    """The order in which ./tasks asks n documents; and the generator that then draws their shots."""
    draw, order = random.Random(42), list(range(n))
    draw.shuffle(order)
    return order, draw


def worded(folder, form, work):
    """What ./tasks makes of a folder without shots: each document's prompt and answers, in its order."""
    text = work / "requests.json"
    asked = ["--task", "hans", "--from", folder, "--vocabulary", "bytes", "--requests", text]
    form = ["--form", form] if form else []
    output_of([BUILD / "tasks", *asked, *form, "--output", work / "worded.eval"], cwd=ROOT)
    pairs = json.loads(text.read_text())
    return [(one[0], [one[1], other[1]]) for one, other in zip(pairs[::2], pairs[1::2])]


def read_documents(source, form, work):
    """All documents in the order of the file; and what a document without content is asked."""
    texts = worded(source, form, work)  # stops where the file is not as it should be
    rows = read_rows(source / FILE)
    documents = [None] * len(rows)
    for at, (prompt, answers) in zip(shuffled(len(rows))[0], texts, strict=True):
        row = rows[at]
        documents[at] = Document(prompt, answers, ANSWERS.index(row["gold_label"]), row["heuristic"])
    empty = work / "without-content"
    empty.mkdir(exist_ok=True)
    row = dict.fromkeys(rows[0], "N/A") | {"gold_label": ANSWERS[0]}
    (empty / FILE).write_text("\t".join(row) + "\n" + "\t".join(row.values()) + "\n", encoding="utf8")
    return rows, documents, worded(empty, form, work)[0][0]


def questions_of(shots, rows, documents, empty, limit):
    """The first documents of the order of ./tasks with as many of its shots, in all variants."""
    order, draw = shuffled(len(documents))
    change = random.Random(shots)
    out = []
    for at in order[:limit]:
        document = documents[at]
        sample = draw.sample(range(len(documents)), shots + 1) if shots else []
        chosen = [documents[i] for i in sample if rows[i] != rows[at]][:shots]
        before = "".join(shot.shot(shot.gold) for shot in chosen)
        asked = {"drawn": before + document.prompt, "without content": before + empty}
        for i in range(ORDERS if shots > 1 else 0):
            other = "".join(shot.shot(shot.gold) for shot in change.sample(chosen, shots))
            asked[f"order {i}"] = other + document.prompt
        if shots:
            guessed = "".join(shot.shot(change.randrange(2)) for shot in chosen)
            asked["labels"] = guessed + document.prompt
        out.append(Question(document, asked))

    return out


def request_file(questions, path, vocabulary):
    """An evaluation file of all that is asked; ./train_gpt answers in the same order."""
    text = path.with_suffix(".jsonl")
    with text.open("w", encoding="utf8") as file:
        for question in questions:
            for context in question.asked.values():
                asked = {"context": context, "continuations": question.document.answers}
                file.write(json.dumps(asked) + "\n")
    made = ["--task", "requests", "--from", text, "--vocabulary", vocabulary, "--output", path]
    output_of([BUILD / "tasks", *made], cwd=ROOT)


# ---- what is answered ------------------------------------------------------------------------------------


def share(chosen):
    """Per cent, and its standard error: sample deviation over the root of n."""
    n = len(chosen)
    mean = sum(chosen) / n
    return 100 * mean, 100 * math.sqrt(mean * (1 - mean) / (n - 1)) if n > 1 else None


def summed_up(shots, questions, scores, published):
    """What one model made of the questions with so many shots. scores: both answers of each context."""
    at, said = 0, []  # of each question: variant -> which answer
    for question in questions:
        both = dict(zip(question.asked, scores[at : at + len(question.asked)], strict=True))
        at += len(both)
        answer = {name: int(true < false) for name, (true, false) in both.items()}  # equal: the first
        (true, false), (true_alone, false_alone) = both["drawn"], both["without content"]
        answer["calibrated"] = int(true - true_alone < false - false_alone)
        said.append(answer)

    def accuracy(name, kept=lambda _: True):
        right = [a[name] == q.document.gold for a, q in zip(said, questions) if kept(q.document)]
        return share(right) if right else (None, None)

    def says_true(name):
        return share([answer[name] == 0 for answer in said])[0]

    orders = [accuracy(name)[0] for name in said[0] if name.startswith("order")]
    heuristics = sorted({question.document.heuristic for question in questions})

    def by_heuristic(variant):
        return {name: accuracy(variant, lambda d: d.heuristic == name)[0] for name in heuristics}

    return {
        "shots": shots,
        "accuracy": accuracy("drawn")[0], "error": accuracy("drawn")[1],
        "calibrated": accuracy("calibrated")[0],
        "orders": orders,
        "labels_at_random": accuracy("labels")[0] if shots else None,
        "says_true": says_true("drawn"), "says_true_calibrated": says_true("calibrated"),
        "by_label": {
            name: accuracy("drawn", lambda d, i=i: d.gold == i)[0] for i, name in enumerate(ANSWERS)
        },
        "by_heuristic": by_heuristic("drawn"), "calibrated_by_heuristic": by_heuristic("calibrated"),
        "published": published,
    }  # fmt: skip


def answered(checkpoint, files, asked, work):
    results = work / "results.json"
    options = ["--resume", checkpoint, "--evaluate", *files, "--results", results]
    output_of([BUILD / "train_gpt", *options], 24 * 3600, cwd=ROOT)
    got = json.loads(results.read_text())
    hans = got["published"]["hans"]
    published = dict(zip((0, 1, hans["few"]), hans["MT-NLG 530B"]))
    rows = [
        summed_up(shots, questions, got["log_likelihoods"][f"hans-{shots}"], published.get(shots))
        for shots, questions in asked.items()
    ]
    cut = {shots: got["truncated_documents"][f"hans-{shots}"] for shots in asked}
    return {"checkpoint": str(checkpoint), "step": got["config"]["step"], "shots": rows, "cut": cut}


# ---- what is shown ---------------------------------------------------------------------------------------


def shown(value):
    return "-" if value is None else f"{value:.1f}"


def tables(model):
    head = ("shots", "accuracy", "calibrated", f"{ORDERS} other orders", "labels at random", "entailed",
            "not entailed", "says True", "calibrated", "MT-NLG 530B")  # fmt: skip
    rows = []
    for s in model["shots"]:
        orders = s["orders"]
        error = "" if s["error"] is None else f" ± {s['error']:.1f}"
        rows.append((
            s["shots"], shown(s["accuracy"]) + error, shown(s["calibrated"]),
            f"{statistics.mean(orders):.1f} ({min(orders):.1f} to {max(orders):.1f})" if orders else "-",
            shown(s["labels_at_random"]), *map(shown, s["by_label"].values()), shown(s["says_true"]),
            shown(s["says_true_calibrated"]), shown(s["published"]),
        ))  # fmt: skip

    names = list(model["shots"][0]["by_heuristic"])
    by_heuristic = [
        (
            s["shots"],
            *(f"{shown(s['by_heuristic'][n])} ({shown(s['calibrated_by_heuristic'][n])})" for n in names),
        )
        for s in model["shots"]
    ]
    by_name = "\nBy heuristic (calibrated):\n\n" + table(("shots", *names), by_heuristic)
    cut = [f"{n} contexts with {shots} shots" for shots, n in model["cut"].items() if n]
    said = f"\nLonger than the model's sequence, cut from the left: {', '.join(cut)}.\n" if cut else ""
    return table(head, rows) + by_name + said


def over_checkpoints(models):
    if len(models) == 1:
        return ""
    rows = [
        (m["step"], *(f"{s['accuracy']:.1f} ({s['calibrated']:.1f})" for s in m["shots"])) for m in models
    ]
    return "\n## Over checkpoints: accuracy (calibrated)\n\n" + table(
        ("step", *(f"{n} shots" for n in SHOTS)), rows
    )


def chart(models):
    def curve(i, name, points, width=1.2):
        return Curve(name, LINES[i % len(LINES)], width, points)

    model, names = models[-1], [str(n) for n in SHOTS]
    curves = [
        curve(0, "shots as drawn", [(i, s["accuracy"]) for i, s in enumerate(model["shots"])], 2),
        curve(3, "calibrated", [(i, s["calibrated"]) for i, s in enumerate(model["shots"])]),
        curve(1, "other orders, mean",
              [(i, statistics.mean(s["orders"])) for i, s in enumerate(model["shots"]) if s["orders"]]),
        curve(4, "labels at random",
              [(i, s["labels_at_random"]) for i, s in enumerate(model["shots"]) if s["shots"]]),
        curve(2, "MT-NLG 530B, published",
              [(i, s["published"]) for i, s in enumerate(model["shots"]) if s["published"]], 2),
    ]  # fmt: skip

    for i, earlier in enumerate(models[:-1]):
        points = [(j, s["accuracy"]) for j, s in enumerate(earlier["shots"])]
        curves.append(curve(5 + i, f"as drawn, step {earlier['step']}", points))
    low = 5 * math.floor(min(y for c in curves for _, y in c.points) / 5)
    return line_chart(curves, "shots", "accuracy on HANS, per cent", low, names)


def hans(options):
    if not (options.resume and options.source and options.vocabulary):
        sys.exit("figures.py: hans needs a model and HANS's file: give --resume, --from, --vocabulary")
    work = options.output / "hans-requests"
    work.mkdir(exist_ok=True)
    rows, documents, empty = read_documents(options.source, options.form, work)

    most = SHOTS[-1]
    if len(documents) <= most:
        sys.exit(
            f"figures.py: {options.source / FILE}: has {len(documents)} documents, expected more than {most}"
        )

    limit = options.limit or DOCUMENTS
    asked = {n: questions_of(n, rows, documents, empty, limit) for n in SHOTS}
    files = [work / f"hans-{n}.eval" for n in SHOTS]
    for file, questions in zip(files, asked.values()):
        request_file(questions, file, options.vocabulary)
    models = [answered(checkpoint, files, asked, work) for checkpoint in options.resume]

    said = (
        f"Accuracy, per cent, on {len(asked[0])} of {len(documents)} documents"
        f" ({'MT-NLG' if options.form else 'lm-evaluation-harness'}'s wording), after step"
        f" {models[-1]['step']}."
        ' "Calibrated" takes from each answer what it gets behind "N/A" with the same shots. MT-NLG 530B: its'
        " announcement of October 2021, all documents; the later paper has HANS otherwise.\n\n"
    )
    text = said + tables(models[-1]) + over_checkpoints(models)
    return text, {"documents": len(asked[0]), "form": options.form or "", "models": models}, chart(models)
