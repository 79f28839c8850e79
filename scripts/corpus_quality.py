"""The classifier of good documents, and the Pareto rule that keeps them by chance."""

import math
import random
import re
import shutil

from corpus_checks import WORDS, counts, read, run, write
from over_ranks import check


def test_quality(work):
    filtered = lambda *words: run(  # noqa: E731
        "quality", "filter", "--output", f"{work}/f", "--compress", "none", *words
    )
    r = random.Random(3)
    fine, coarse = WORDS[: len(WORDS) // 2], WORDS[len(WORDS) // 3 :]
    texts = lambda words, n: [" ".join(r.choice(words) for _ in range(60)) for _ in range(n)]
    write(f"{work}/good.jsonl", texts(fine, 300))
    write(f"{work}/web.jsonl", [{"text": t, "id": f"w{i}"} for i, t in enumerate(texts(coarse, 3000))])

    train = f"quality train --buckets 10000 --dimensions 10 --epochs 50 --positives {work}/good.jsonl --model"
    out = run(train, f"{work}/model.bin", f"s={work}/web.jsonl")
    accuracy = float(re.search(r"accuracy ([\d.]+) %", out).group(1))
    check(60 < accuracy <= 100, out)  # half is chance; the vocabularies differ widely
    held_out = int(re.search(r"on (\d+) held out", out).group(1))
    check(30 < held_out < 100, f"a tenth of 300 and of as many others: {held_out}")
    run(train, f"{work}/half.bin", "--held-out", 0.5, f"s={work}/web.jsonl")
    models = [open(f"{work}/{name}.bin", "rb").read() for name in ("model", "half")]
    check(models[0] != models[1], "what is held out is not learned")
    write(f"{work}/fewer.jsonl", texts(coarse, 100))
    run(train, f"{work}/half.bin", "--held-out", 0.5, f"s={work}/fewer.jsonl")
    check(open(f"{work}/half.bin", "rb").read() != models[1], "other documents are learned anew")
    run(train, f"{work}/again.bin", f"s={work}/web.jsonl", ranks=2)
    check(
        open(f"{work}/model.bin", "rb").read() == open(f"{work}/again.bin", "rb").read(),
        "the same model twice",
    )
    run(
        f"quality score --model {work}/model.bin --output {work}/s --compress none good={work}/good.jsonl",
        f"s={work}/web.jsonl",
    )

    mean = lambda name: sum(d["meta"]["quality"] for d in read(name)) / len(read(name))
    check(
        mean(f"{work}/s/good/good.jsonl") > mean(f"{work}/s/s/web.jsonl") + 0.1,
        "good documents have the higher scores",
    )

    # kept with probability (2 - p)^-alpha, for each p; within 4.5 standard deviations
    for alpha in (3, 1):
        for p in (0, 0.25, 0.5, 0.9, 1):
            write(
                f"{work}/p.jsonl",
                [{"text": "x", "id": f"{alpha} {p} {i}", "meta": {"quality": p}} for i in range(4000)],
            )
            filtered(f"--pareto {alpha} s={work}/p.jsonl")
            kept, want = len(read(f"{work}/f/s/p.jsonl")) / 4000, (2 - p) ** -alpha
            check(
                abs(kept - want) <= 4.5 * math.sqrt(want * (1 - want) / 4000),
                f"alpha {alpha}, p {p}: {kept}, expected {want}",
            )

    # what is drawn for a document does not depend on the files it is in
    half = read(f"{work}/p.jsonl")
    for d in half:
        d["meta"]["quality"] = 0.3
    write(f"{work}/all.jsonl", half)
    write(f"{work}/h1.jsonl", half[2000:])
    write(f"{work}/h2.jsonl", half[:2000])
    filtered(f"a={work}/all.jsonl b={work}/h?.jsonl")
    ids = lambda *names: sorted(d["id"] for n in names for d in read(f"{work}/f/{n}.jsonl"))
    kept = ids("a/all")
    filtered("--seed 2", f"a={work}/all.jsonl", f"b={work}/h?.jsonl")
    check(ids("a/all") != kept and len(ids("a/all")) > 400, "another seed keeps others")
    filtered(f"a={work}/all.jsonl", f"b={work}/h?.jsonl")
    check(ids("a/all") == ids("b/h1", "b/h2") and len(ids("a/all")) > 400, "the filter depends on the files")

    # a second score replaces the first; words that mean something to fastText mean nothing in a text
    run(f"quality score --model {work}/again.bin --output {work}/s2 --compress none s={work}/s/s/web.jsonl")

    twice = open(f"{work}/s2/s/web.jsonl").readline()
    check(twice.count('"quality"') == 1, f"scored twice: {twice[-100:]}")
    good = read(f"{work}/good.jsonl")[0]["text"]
    tricks = [{"text": t, "id": t[:3]} for t in ("a b </s> " + good, "b __label__positive c", "c __label__x")]
    tricks += [{"text": "a b < s > " + good, "id": "end"}, {"text": "a b", "id": "cut"}]
    tricks += [{"text": "b _ label _positive c", "id": "spelt"}]
    write(f"{work}/t.jsonl", tricks)
    run(f"quality score --model {work}/model.bin --output {work}/t --compress none s={work}/t.jsonl")

    told = {d["id"]: d["meta"]["quality"] for d in read(f"{work}/t/s/t.jsonl")}
    check(
        all(0 < q < 1 for q in told.values()) and told["a b"] == told["end"] != told["cut"]
        and told["b _"] == told["spelt"],
        f"tricks in a text: {told}",
    )

    for damage in (100, -4):
        data = open(f"{work}/model.bin", "rb").read()
        open(f"{work}/bad.bin", "wb").write(data[:damage])
        shutil.copy(f"{work}/model.bin.about.json", f"{work}/bad.bin.about.json")
        run(f"quality score --model {work}/bad.bin --output {work}/t s={work}/t.jsonl", fails="damaged")

    write(
        f"{work}/n.jsonl", [{"text": f"text {i}", "id": None, "meta": {"quality": 0.5}} for i in range(400)]
    )
    filtered(f"s={work}/n.jsonl")
    check(
        80 < len(read(f"{work}/f/s/n.jsonl")) < 160, "documents whose id is null are drawn each"
    )  # 118 +- 9
    write(f"{work}/n.jsonl", [{"text": "x", "meta": {"quality": "1"}}, {"text": "y", "meta": {}}])
    filtered(f"s={work}/n.jsonl")
    check([d["text"] for d in read(f"{work}/f/s/n.jsonl")] == ["x"], "a quality that is a string")
    run("quality", "filter", "--output", f"{work}/f", f"s={work}/good.jsonl")
    check(
        counts(f"{work}/f", "filter")["s"]["without a quality from 0 to 1"] == 300,
        "documents without a score",
    )
