#!/usr/bin/env python3
"""Checks of scripts/figures.sh: prompts character by character, tables against what was published.

Usage: python3 scripts/test_figures.py BUILD
"""

import json
import sys
import tempfile
import xml.dom.minidom
from pathlib import Path

import figure_hans
import figures
from over_ranks import check, environment, finish, limited, make_tokens, words
from planned import ROOT, plan

BUILD = Path(sys.argv[1]).resolve()
FIRST = (
    "Q: 11 # 2 = ?\nA: 5.5\nQ: 18 # 9 = ?\nA: 2\nQ: 35 # 4 = ?\nA: 8.75\n"
    "Q: 27 # 9 = ?\nA: 3\nQ: 75 # 6 = ?\nA:"
)
SECOND = (
    "Q: 11 $^% 2 = ?\nA: 22\nQ: 3 $^% 9 = ?\nA: 27\nQ: 12 $^% 4 = ?\nA: 48\nQ: 7 $^% 7 = ?\nA: 49\n"
    "Q: 8 $^% 5 = ?\nA:"
)
HANS = (
    "The banker forgot that the judge advised the professors.\nQuestion: The judge advised the professors."
    " True or False?\n"
)


def made(name, work, *options):
    out = limited(
        ["bash", "scripts/figures.sh", name, "--output", work, *options], 300, cwd=ROOT, env=environment
    )
    check(out.returncode == 0, f"{name}: {out.stderr[-500:]}")
    if out.returncode:
        return {}
    check((work / f"{name}.md").read_text() in out.stdout, f"{name}: what is printed is the table")
    if name != "samples":
        xml.dom.minidom.parse(str(work / f"{name}.svg"))
    return json.loads((work / f"{name}.json").read_text())


def test_prompts():
    published = figures.prompts(0)
    check([want for _, want in published] == ["12.5", "40", "True", "True"], f"answers: {published}")
    check(published[0][0] == FIRST and published[1][0] == SECOND and published[2][0] == HANS, f"{published}")
    own = figures.prompts(40)[4:]
    check(len(own) == 40 and len(set(own)) == 40, "one's own differ")
    for prompt, want in own:  # each example's answer and the wanted one follow the same rule
        lines = prompt.splitlines()
        numbers = [(q.split()[1], q.split()[3]) for q in lines[::2]]
        answers = [a.removeprefix("A: ") for a in lines[1:-1:2]] + [want]
        rules = (lambda a, b: a * b, lambda a, b: a / b)
        fits = [
            all(f"{rule(float(a), float(b)):g}" == x for (a, b), x in zip(numbers, answers)) for rule in rules
        ]
        check(any(fits), f"an obfuscated sum: {prompt} {want}")


def test_tables(work):
    sizes = made("sizes", work)
    check(sum(model["ours"] is not None for model in sizes["models"]) >= 4, "models that are presets")
    for model in sizes["models"]:
        near = model["ours"] is None or abs(model["ours"] / model["parameters"] - 1) < 0.04
        check(near, f"{model['name']}: {model['ours']} parameters, published {model['parameters']}")
    sets = made("sets", work)
    check(
        len(sets["sets"]) == 15 and abs(sum(s["drawn"] for s in sets["sets"]) - 270) < 0.1,
        "15 sets, 270e9 tokens",
    )
    for s in sets["sets"]:
        check(abs(s["epochs"] - s["published_epochs"]) < 0.16, f"{s['set']}: {s['epochs']} epochs")
    throughput = made("throughput", work)
    check(abs(throughput["fall"]["published"] - 0.103) < 5e-4, f"{throughput['fall']}")

    for run in throughput["runs"]:
        off = run["planned_seconds"] / run["published_seconds"] - 1
        check(abs(off) < 0.03, f"{run['servers']} servers: {off:+.1%}")

    # errors are those of the times, and a plan at the fitted efficiency takes the seconds that are printed
    tried, holding = throughput["rest"]["hypotheses"], []
    for one in tried:
        holding += [one["what"].split(":")[0].split(",")[0]] if one["error"] < 0.005 else []
        errors = [s / p - 1 for s, p in zip(one["seconds"], (60.1, 50.2, 44.4))]
        check(abs(sum(e * e for e in errors) / 3 - one["error"] ** 2) < 1e-9, f"the error of {one}")

    check(set(holding) == {"a slower network", "a cost of each step that is the same at all sizes"}, holding)
    again = plan({"world-size": 3360, "ramp-start": 0, "gemm-efficiency": tried[0]["efficiency"]})["seconds"]
    check(abs(again - tried[0]["seconds"][2]) < 0.01, f"planned {again}, said {tried[0]['seconds'][2]}")
    slow = {"world-size": 2240, "network-rate": 2, "gemm-efficiency": tried[3]["efficiency"]}
    again = plan({**slow, "ramp-start": 0})["seconds"]
    check(abs(again - tried[3]["seconds"][0]) < 0.01, f"planned {again}, said {tried[3]['seconds'][0]}")
    rates = throughput["rest"]["contended_rates"]
    check(abs(rates[0] - 25) < 1e-6 and rates == sorted(rates, reverse=True), f"contended rates {rates}")
    check([a["fits"] for a in throughput["alone"]] == [True, False, True, True], "what fits alone")
    check(all(a["mfu"] < throughput["runs"][0]["mfu"] for a in throughput["alone"][2:]), "what alone costs")


def test_samples(work):
    make_tokens(BUILD, work / "text", "".join(f"Q: {a} # 1 = ?\nA: {a}\n" for a in range(500)))
    model = {"layers": 1, "hidden": 32, "heads": 1, "sequence": 64, "batch": 4, "steps": 2}
    model |= {"train": work / "text.bin", "save": work / "model"}
    check(limited([BUILD / "train_gpt", *words(model)], 120, env=environment).returncode == 0, "a model")
    out = made("samples", work, "--resume", work / "model", "--more", "3")
    check(len(out["samples"]) == 7 and all(s["answer"] for s in out["samples"]), f"{out}")
    refused = limited(["bash", "scripts/figures.sh", "samples", "--output", work], 60, cwd=ROOT)
    check(refused.returncode == 1 and "give --resume" in refused.stderr, refused.stderr)


def test_tasks(work):
    """Two of the nine tasks, with the model of test_samples: the numbers are those of single runs."""
    source = work / "sources"
    answered = lambda i: {"passage": f"{i}.", "question": "q", "label": i % 3 == 0}  # noqa: E731
    for name, lines in {
        "lambada/lambada_test.jsonl": [{"text": f"he said {i} and then {i % 3}"} for i in range(30)],
        "boolq/val.jsonl": [answered(i) for i in range(9)],
        "boolq/train.jsonl": [answered(i) for i in range(9, 49)],
    }.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    model = ["--resume", work / "model"]
    out = made("tasks", work, *model, "--from", source, "--vocabulary", "bytes")
    cells = {(s["task"], s["shots"]): s for s in out["tasks"]}
    check(len(cells) == 27 and len(out["left_out"]) == 7, f"{len(cells)} cells, {out['left_out']}")
    check(all("the files are at" in line for line in out["left_out"]), "where the others' files are")
    have = {key for key, cell in cells.items() if cell["ours"] is not None}
    check(have == {("lambada", n) for n in (0, 1, 15)} | {("boolq", n) for n in (0, 1, 32)}, f"{have}")
    check(cells["hans", 4]["mtnlg"] == 70.2 and cells["wic", 32]["gpt3"] == 55.3, "what was published")
    check([key[0] for key, s in cells.items() if s["star"]] == ["lambada"] * 3 + ["piqa"] * 3, "stars")
    asked = ["--task", "boolq", "--shots", "32", "--from", source / "boolq", "--vocabulary", "bytes"]
    done = limited([BUILD / "tasks", *asked, "--output", work / "one.eval"], 60)
    check(done.returncode == 0, done.stderr)

    results = ["--evaluate", work / "one.eval", "--results", work / "one.json"]
    done = limited([BUILD / "train_gpt", *model, *results], 60, env=environment)
    check(done.returncode == 0, done.stderr)
    acc = json.loads((work / "one.json").read_text())["results"]["boolq-32-shot"]["acc"]
    check(cells["boolq", 32]["ours"] == 100 * acc, f"{cells['boolq', 32]} {acc}")

    for options, says in (
        (["--task", "all", "--shots", "0", "--from", work], "none of the nine tasks"),
        (["--task", "requests", "--shots", "few", "--from", work], "give a number"),
        (["--task", "boolq", "--shots", "many", "--from", source / "boolq"], "--shots many"),
    ):
        done = limited([BUILD / "tasks", *options, "--vocabulary", "bytes", "--output", work / "no"], 60)
        check(done.returncode == 1 and says in done.stderr, f"{options}: {done.stderr}")


def hans_file(folder):
    """Forty documents: two of three are entailed, three heuristics."""
    folder.mkdir(parents=True)
    names = ("lexical_overlap", "subsequence", "constituent")
    lines = ["gold_label\tsentence1\tsentence2\theuristic\tsubcase"]
    for i in range(40):
        label = "non-entailment" if i % 3 == 0 else "entailment"
        lines.append(f'{label}\tThe {i} saw "it .\tThe {i % 7} is .\t{names[i % 3]}\tcase {i % 4}')
    (folder / "heuristics_evaluation_set.txt").write_text("\n".join(lines) + "\n")


def test_hans(work):
    """The study's plain requests and scores are those of ./tasks --task hans; what it changes, by hand."""
    source, model = work / "hans", {"layers": 1, "hidden": 32, "heads": 1, "sequence": 1024, "batch": 1}
    hans_file(source)
    model |= {"train": work / "text.bin", "save": work / "long", "steps": 2, "save-every": 1}
    check(limited([BUILD / "train_gpt", *words(model)], 120, env=environment).returncode == 0, "a model")
    steps = sorted((work / "long").glob("step-*"))
    asked = ["--from", source, "--vocabulary", "bytes", "--limit", "12"]

    for form in ([], ["--form", "mtnlg"]):
        out = made("hans", work, "--resume", *steps, *asked, *form)
        check([m["step"] for m in out["models"]] == [1, 2] and out["documents"] == 12, "two checkpoints")
        for shots in (0, 4, 32):
            single = [*asked, *form, "--shots", shots, "--requests", work / "one.requests"]
            single += ["--output", work / "one.eval"]
            done = limited([BUILD / "tasks", "--task", "hans", *single], 60)
            check(done.returncode == 0, done.stderr)
            want = [context for context, _ in json.loads((work / "one.requests").read_text())[::2]]
            lines = (work / f"hans-requests/hans-{shots}.jsonl").read_text().splitlines()
            contexts = [json.loads(line)["context"] for line in lines]
            each = len(contexts) // 12  # variants of a document, the plain one first
            check(contexts[::each] == want, f"{form} {shots} shots: the requests of ./tasks")
            results = ["--evaluate", work / "one.eval", "--results", work / "one.json"]
            done = limited([BUILD / "train_gpt", "--resume", steps[-1], *results], 60, env=environment)
            check(done.returncode == 0, done.stderr)

            (got,) = json.loads((work / "one.json").read_text())["results"].values()
            row = next(s for s in out["models"][-1]["shots"] if s["shots"] == shots)
            check(abs(row["accuracy"] - 100 * got["acc"]) < 1e-9, f"{shots} shots: {row} {got['acc']}")
            check(row["published"] == {0: 60.7, 4: 70.2}.get(shots), f"{shots} shots: published: {row}")
            check(abs(row["error"] - 100 * got["acc_stderr"]) < 1e-9, f"{shots} shots: its error")
            for name, value in row["by_heuristic"].items():
                check(abs(value - 100 * got[f"acc heuristic {name}"]) < 1e-9, f"{shots} shots: {name}")
            if shots == 4:
                test_variants(contexts, each)

    refused = limited(["bash", "scripts/figures.sh", "hans", "--output", work, *asked], 60, cwd=ROOT)
    check(refused.returncode == 1 and "give --resume" in refused.stderr, refused.stderr)


def without_answers(texts):
    return [text[: text.rindex("?")] for text in texts]


def test_variants(contexts, each):
    """Of four shots: the same ones in other orders; other labels; and nothing to answer."""
    check(each == 3 + figure_hans.ORDERS, f"{each} variants")
    others = changed = 0
    for i in range(0, len(contexts), each):
        plain, empty, *orders, labels = [text.split("\n\n") for text in contexts[i : i + each]]
        check(empty[:-1] == plain[:-1] and empty[-1].startswith("N/A\nQuestion: N/A True or"), f"{empty}")
        for order in orders:
            check(sorted(order[:-1]) == sorted(plain[:-1]) and order[-1] == plain[-1], f"{order}")
            others += order != plain
        check(without_answers(labels) == without_answers(plain), f"{labels}")
        changed += sum(a != b for a, b in zip(labels, plain))
    check(others > 24 and 12 < changed < 36, f"{others} other orders, {changed} other labels")


def test_answers():
    """Two questions of one shot, answered by hand: calibration turns the second."""
    document = [figure_hans.Document("", ["", ""], gold, "h") for gold in (0, 1)]
    names = ("drawn", "without content", "labels")
    questions = [figure_hans.Question(d, dict.fromkeys(names, "")) for d in document]
    scores = [(-1, -2), (-1, -1), (-3, -2), (-1, -2), (-1, -5), (-1, -1)]
    got = figure_hans.summed_up(1, questions, scores, 64.9)
    check(got["accuracy"] == 50 and got["calibrated"] == 100 and got["labels_at_random"] == 0, f"{got}")
    check(got["says_true"] == 100 and got["says_true_calibrated"] == 50, f"{got}")
    check(got["by_label"] == {"entailment": 100, "non-entailment": 0} and got["published"] == 64.9, f"{got}")


def main():
    test_prompts()
    test_answers()
    with tempfile.TemporaryDirectory() as folder:
        test_tables(Path(folder))
        test_samples(Path(folder))
        test_tasks(Path(folder))
        test_hans(Path(folder))
    finish()


main()
