"""Deduplication and decontamination against literal, slow implementations."""

import json
import math
import os
import random
import re
import struct
import time

from corpus_checks import SHARED, WORDS, counts, prose, read, run, tree, write
from over_ranks import check


def shingles(text, k=24):
    return {text[i : i + k] for i in range(max(len(text) - k + 1, 1))} if text else set()


def read_signatures(path):
    data = open(path, "rb").read()
    magic, n, _, documents = struct.unpack_from("<8sIIQ", data)
    assert magic == b"GPTMINH1"
    return [struct.unpack_from(f"<{n}I", data, 24 + 4 * n * i) for i in range(documents)]


def test_s_curve(work):
    r = random.Random(5)
    pairs, documents = [], []
    for s in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.97):
        for _ in range(250):
            tail = int(2400 * (1 - s) / (1 + s))
            common = prose(r, 2400 - tail)
            a, b = (common + " " + prose(r, tail) for _ in range(2))
            x, y = shingles(a), shingles(b)
            pairs.append((s, len(x & y) / len(x | y)))
            documents += [a, b]

    write(f"{work}/a.jsonl", documents)
    for fast in ("no", "yes"):
        run(
            f"dedup --fast {fast} --jaccard 0 --pairs {work}/pairs-{fast} --output {work}/{fast}",
            f"s={work}/a.jsonl",
        )

        met = {tuple(int(w.split(":")[1]) for w in line.split()[:2]) for line in open(f"{work}/pairs-{fast}")}
        signatures = read_signatures(f"{work}/{fast}/minhash/s/a.signatures")
        for s in sorted({s for s, _ in pairs}):
            # the paper's curve, 20 bands of 13 rows; each pair with its own Jaccard
            mine = [(i, j) for i, (level, j) in enumerate(pairs) if level == s]
            p = [1 - (1 - j**13) ** 20 for _, j in mine]
            found = sum((2 * i + 1, 2 * i + 2) in met for i, _ in mine)
            spread = math.sqrt(sum(x * (1 - x) for x in p))
            check(
                abs(found - sum(p)) <= 4 * spread + 1,
                f"S-curve, fast {fast}, {s}: {found} met, wants {sum(p):.1f} +- {spread:.1f}",
            )

            # the estimate: its mean over pairs; each place agrees with probability Jaccard
            n = len(signatures[0])
            mean = sum(
                sum(a == b for a, b in zip(signatures[2 * i], signatures[2 * i + 1])) / n - j for i, j in mine
            ) / len(mine)
            spread = math.sqrt(s * (1 - s) / n / len(mine))
            check(
                abs(mean) < 4.5 * spread,
                f"estimates, fast {fast}, {s}: off by {mean:.5f}, one deviation is {spread:.5f}",
            )

        strangers = [m for m in met if (m[0] + 1) // 2 != (m[1] + 1) // 2]
        check(not strangers, f"strangers met: {strangers[:3]}")


def test_components(work):
    r = random.Random(7)
    sets = {"cc-2021-04": [], "wikipedia": [], "own": []}
    for i in range(2000):
        base = prose(r, r.choice((40, 300, 900)))
        names = list(sets)
        if i % 5 == 0:  # a family of near-copies, spread over the sets
            for k in range(r.randint(2, 4)):
                words = base.split()
                for _ in range(k):
                    words[r.randrange(len(words))] = r.choice(WORDS)
                sets[r.choice(names)].append(" ".join(words))
        else:
            sets[r.choice(names)].append(base)

    sets["own"] += ["", "", "short", "short"]
    args = []
    for name, texts in sets.items():
        r.shuffle(texts)
        for k in range(2):
            write(
                f"{work}/{name}{k}.jsonl",
                [{"text": t, "id": f"{name}{k} {i}"} for i, t in enumerate(texts[k::2])],
            )
        args.append(f"{name}={work}/{name}?.jsonl")

    for priority in (None, "own,cc-2021-04"):
        folder = f"{work}/out-{priority}"
        more = ["--priority", priority] if priority else []
        run("dedup", "--compress", "none", "--output", folder, *more, *args)
        order = ["wikipedia", "cc-2021-04", "own"] if not priority else ["own", "cc-2021-04", "wikipedia"]

        documents = []
        for name in order:
            for k in range(2):
                signatures = read_signatures(f"{folder}/minhash/{name}/{name}{k}.signatures")
                documents += list(
                    zip([d["id"] for d in read(f"{work}/{name}{k}.jsonl")], signatures, strict=True)
                )

        group = list(range(len(documents)))  # each document's lowest-numbered relative

        def root(x):
            while group[x] != x:
                x = group[x]
            return x

        for band in range(20):
            buckets = {}
            for i, (_, s) in enumerate(documents):
                buckets.setdefault(s[13 * band : 13 * band + 13], []).append(i)
            for bucket in buckets.values():
                while len(bucket) > 1:
                    pivot, rest = bucket[0], []
                    for other in bucket[1:]:
                        alike = sum(a == b for a, b in zip(documents[pivot][1], documents[other][1])) / 260
                        if alike <= 0.8:
                            rest.append(other)
                            continue
                        a, b = root(pivot), root(other)
                        group[max(a, b)] = min(a, b)
                    bucket = rest

        want = {documents[i][0] for i in range(len(documents)) if root(i) == i}
        got = {d["id"] for name in sets for k in range(2) for d in read(f"{folder}/{name}/{name}{k}.jsonl")}
        check(
            got == want and len(want) < len(documents) - 300,
            f"components, priority {priority}: {len(got)} stay, wants {len(want)}",
        )
        check(
            json.load(open(f"{folder}/components.json"))["removed"] == len(documents) - len(want),
            "the count of what goes",
        )

    # pairs follow the settings; a damaged list of removed documents is refused; an output that was emptied
    # is made again
    one = args[:1]
    for jaccard in (0.99, 0.5):
        run(f"dedup --compress none --output {work}/p --pairs {work}/pairs --jaccard {jaccard}", *one)
        lines = open(f"{work}/pairs").read().splitlines()
        check(
            all(float(line.split("\t")[2]) > jaccard for line in lines) and (lines or jaccard > 0.9),
            f"pairs above {jaccard}",
        )

    survivors = tree(f"{work}/p")
    name = one[0].split("=")[0]
    open(f"{work}/p/{name}/{name}0.jsonl", "w").close()
    run("dedup", "--compress", "none", "--output", f"{work}/p", "--jaccard", 0.5, *one)
    check(tree(f"{work}/p") == survivors, "an output that was emptied")

    with open(f"{work}/p/removed", "r+b") as f:
        f.seek(20)
        f.write(b"\x07")
    open(f"{work}/p/{name}/{name}0.jsonl", "w").close()
    run("dedup", "--compress", "none", "--output", f"{work}/p", "--jaccard", 0.5, *one)
    check(tree(f"{work}/p") == survivors, "a list of duplicates that was damaged")

    # little memory: sorted through files, over several ranks; many joins: the forest is reduced again and
    # again
    many = [f"{i} {i * 7919} {i * 104729} {i * 31} and more of the number {i}" for i in range(20000)]
    write(f"{work}/many.jsonl", many + many[::3])
    write(f"{work}/more.jsonl", many[:9000])
    wide = [f"a={work}/many.jsonl", f"b={work}/more.jsonl"]
    start = time.time()
    run("dedup", "--output", f"{work}/wide", "--pairs", f"{work}/wide.pairs", *wide)

    for ranks in (1, 3):
        run(
            *f"dedup --output {work}/narrow{ranks} --memory 1e6 --pairs {work}/narrow.pairs".split(),
            *wide, ranks=ranks
        )
        check(tree(f"{work}/narrow{ranks}") == tree(f"{work}/wide"), f"little memory, {ranks} ranks")
        check(
            open(f"{work}/narrow.pairs").read() == open(f"{work}/wide.pairs").read(),
            f"pairs of {ranks} ranks",
        )
        os.remove(f"{work}/narrow.pairs")

    run("dedup", "--output", f"{work}/narrow", "--memory", 1e6, *wide)
    check(
        tree(f"{work}/narrow") == tree(f"{work}/wide") and time.time() - start < 120,
        "little memory, without pairs",
    )
    check(json.load(open(f"{work}/wide/components.json"))["removed"] == 6667 + 9000, "each copy goes")
    # an earlier step's output that somebody has changed since
    run("clean", "--output", f"{work}/cleaned", "--compress", "none", "--language", "any", wide[1])
    step = f"{work}/cleaned/b/more.jsonl"
    words = ["dedup", "--output", f"{work}/again", "--compress", "none", f"b={step}"]
    run(*words)
    write(step, read(step)[10:])
    run(*words)
    first = read(f"{work}/again/b/more.jsonl")[0]["id"]
    check(first == read(step)[0]["id"], f"an input that was shortened: it begins with {first}")

    write(f"{work}/none.jsonl", [])
    run("dedup", "--output", f"{work}/empty", "--pairs", f"{work}/empty.pairs", f"s={work}/none.jsonl")
    check(open(f"{work}/empty.pairs").read() == "", "pairs of no documents")
    run("dedup", "--output", f"{work}/o", "--priority", "nobody", *args, fails="there is no such set")


def words_of(text):
    return [(m.group(), m.start()) for m in re.finditer(r"\w+", text.lower())]


def literal_decontamination(documents, questions, common=10, margin=200, shortest=200, most=10):
    keys = set()
    for question in questions:
        words = [w for w, _ in words_of(question)]
        if 8 <= len(words) <= 12:
            keys.add(tuple(words))
        keys |= {tuple(words[i : i + 13]) for i in range(len(words) - 12)}

    hits = dict.fromkeys(keys, 0)
    for d in documents:
        words = [w for w, _ in words_of(d["text"])]
        for i in range(len(words)):
            for n in range(8, 14):
                key = tuple(words[i : i + n])
                if len(key) == n and key in keys:
                    hits[key] += 1

    rare = {k for k in keys if hits[k] < common}
    out = []
    for d in documents:
        text, pieces, hit_any = d["text"], [], False
        while text is not None:
            words, found = words_of(text), None
            for i, (_, at) in enumerate(words):
                for n in range(13, 7, -1):
                    key = tuple(w for w, _ in words[i : i + n])
                    if len(key) == n and key in rare:
                        found = (at, len(" ".join(key)))
                        break
                if found:
                    break

            if not found:
                pieces.append(text)
                break
            hit_any = True
            left = found[0] - margin
            while left >= 0 and text[left] not in ".!?":
                left -= 1
            if left >= 0 and left + 1 > shortest:
                pieces.append(text[: left + 1])
            right = found[0] + found[1] + margin
            while right < len(text) and text[right] not in ".!?":
                right += 1

            text = text[right + 1 :] if right < len(text) and len(text) - right - 1 > shortest else None

        if len(pieces) <= most:
            out += [(d["id"] + (f"#{i + 1}" if hit_any else ""), p) for i, p in enumerate(pieces)]

    return out, hits


def test_pairs(work):
    """What is said of duplicates: each pair once, components by size, what was left where pivots ran out."""
    r = random.Random(6)
    two, three, alone = (prose(r, 400) for _ in range(3))
    write(f"{work}/a.jsonl", [two, three, alone, two, three, three])
    run(f"dedup --output {work}/d --pairs {work}/pairs --compress none s={work}/a.jsonl")
    found = sorted(line.split("\t")[:2] for line in open(f"{work}/pairs"))
    check(found == [["s/a:1", "s/a:4"], ["s/a:2", "s/a:5"], ["s/a:2", "s/a:6"]], f"pairs: {found}")
    told = json.load(open(f"{work}/d/components.json"))
    want = {"documents": 6, "removed": 3, "components": 2, "of size": {"2-3": 2}, "left over": 0}
    check(told == want, f"components: {told}")
    pairs = open(f"{work}/pairs").read()
    os.remove(f"{work}/pairs")
    run(f"dedup --output {work}/d --pairs {work}/pairs --compress none s={work}/a.jsonl")
    again = os.path.exists(f"{work}/pairs") and open(f"{work}/pairs").read()
    check(again == pairs, f"pairs that were removed are found again: {again}")
    os.rename(f"{work}/a.jsonl", f"{work}/c.jsonl")
    run(f"dedup --output {work}/d --pairs {work}/pairs --compress none s={work}/c.jsonl")
    again = open(f"{work}/pairs").read()
    check(again == pairs.replace("s/a:", "s/c:"), f"pairs of a file that was renamed: {again}")
    short = ["shorter", "than a shingle", "some letters more than one", "another one of few shingles"]
    write(f"{work}/short.jsonl", [*short, "shorter"])
    signatures = set()
    for words in ("", "--shingle 5", "--shingle 5 --fast yes"):
        run(f"dedup {words} --output {work}/s --compress none s={work}/short.jsonl")
        signatures.add(tuple(read_signatures(f"{work}/s/minhash/s/short.signatures")))
        kept = [d["text"] for d in read(f"{work}/s/s/short.jsonl")]
        check(kept == short, f"texts shorter than a shingle, and of few, {words}: {kept}")
        c = counts(f"{work}/s", "dedup")["s"]
        told = c["kept characters"], c["characters"]
        check(told == (len("".join(short)), len("".join(short)) + 7), f"characters: {c}")
    check(len(signatures) == 3, "other settings of min-hashes: they are made again")
    write(f"{work}/b.jsonl", [two] * 1200)
    for ranks in (0, 2):  # no estimate is above 1
        words = f"--bands 3 --rows 1 --jaccard 1 --output {work}/l{ranks} s={work}/b.jsonl"
        run(f"dedup {words}", ranks=ranks)
        told = json.load(open(f"{work}/l{ranks}/components.json"))
        check(told["left over"] == 3 * 200 and told["removed"] == 0, f"left over, {ranks} ranks: {told}")


def test_keys(work):
    """What is cut again when keys change: by other questions, or as they become common; RACE's questions."""
    r = random.Random(5)
    questions = [" ".join(r.sample(WORDS, 13)) for _ in range(3)]
    texts = [prose(r, 900) + " " + question + " " + prose(r, 900) for question in questions]
    race = {"article": "A", "questions": questions[:2], "answers": ["A", "B"]}
    race["options"] = [["a", "b", "c", "d"]] * 2
    os.makedirs(f"{work}/race/test/high")
    with open(f"{work}/race/test/high/1.txt", "w") as f:
        json.dump(race, f)

    def whole(against):  # which of the texts are left as they were
        words = f"--common 3 --output {work}/k --compress none s={work}/k*.jsonl"
        run(f"decontaminate --against {against} {words}")
        left = [d["text"] for d in read(f"{work}/k/s/k1.jsonl")]
        return [text in left for text in texts]

    def asked(question):
        write(f"{work}/q.jsonl", [{"context": question, "continuations": ["a"], "gold": 0}])
        return f"requests={work}/q.jsonl"

    def told(name):
        return open(f"{work}/k/{name}.tsv").read().splitlines()

    write(f"{work}/k1.jsonl", texts)
    write(f"{work}/k3.jsonl", [{"text": texts[0], "meta": {"a": 1}}])  # without an id
    check(whole(asked(questions[0])) == [False, True, True], "the text with the question is cut")
    check(told("keys")[1:] == [f"2\tno\trequests\t{questions[0]}"], f"keys: {told('keys')}")
    check(told("s/k1.cut") == [f'"d0"\t2\t1\trequests\t{questions[0]}'], f"cuts: {told('s/k1.cut')}")
    pieces = read(f"{work}/k/s/k3.jsonl")
    check([sorted(d) for d in pieces] == [["meta", "text"]] * 2, f"pieces without an id: {pieces}")
    check(whole(asked(questions[2])) == [True, True, False], "another question, of as many keys")
    write(f"{work}/k2.jsonl", [questions[2]] * 2)
    check(whole(asked(questions[2])) == [True, True, True], "a question that has become common language")
    check(told("keys")[1].startswith("3\tyes\t"), f"a common key: {told('keys')}")
    check(whole(f"race={work}/race") == [False, False, True], "both of RACE's questions")


def test_decontaminate(work):
    r = random.Random(11)
    questions = [" ".join(r.choice(WORDS) for _ in range(r.randint(5, 30))) + "?" for _ in range(3000)]
    questions += ["Élan über " + q for q in questions[:20]]
    write(
        f"{work}/questions.jsonl", [{"context": q, "continuations": ["a", "b"], "gold": 0} for q in questions]
    )

    documents = []
    for i in range(10000):
        text = "" if i % 500 == 0 else prose(r, 60000 if i % 200 == 7 else r.choice((100, 500, 700, 900)))
        for _ in range(40 if i % 200 == 7 else r.choice((0, 0, 0, 1, 1, 2, 3))):
            q = r.choice(questions[:40] if r.random() < 0.05 else questions)
            words = q[:-1].split()
            if r.random() < 0.5 and len(words) > 13:
                start = r.randrange(len(words) - 12)
                words = words[start : start + 13]
            at = r.choice((0, len(text), r.randint(0, len(text))))
            joint = r.choice((" ", ", ", "\n"))
            text = text[:at] + " " + joint.join(words).upper() + " " + text[at:]
        if i % 97 == 0:
            text = text.replace(".", "")
        documents.append({"text": text, "id": f"d{i}"})

    write(f"{work}/a.jsonl", documents[:6000])
    write(f"{work}/b.jsonl", documents[6000:])
    for options in ({}, {"margin": 30, "shortest": 10, "most": 3, "common": 4}):
        names = {"margin": "margin", "shortest": "shortest-piece", "most": "most-pieces", "common": "common"}
        words = [w for k, v in options.items() for w in ("--" + names[k], v)]
        run(
            f"decontaminate --against requests={work}/questions.jsonl --output {work}/d --compress none",
            *words, f"s={work}/?.jsonl", ranks=2 if options else 0,
        )

        got = [(d["id"], d["text"]) for n in "ab" for d in read(f"{work}/d/s/{n}.jsonl")]
        want, hits = literal_decontamination(documents, questions, **options)
        first = str(next((pair for pair in zip(got, want) if pair[0] != pair[1]), ""))[:200]
        check(got == want, f"decontamination, {options}: {len(got)} pieces, wants {len(want)}: {first}")
        told = {
            tuple(line.rstrip("\n").split("\t")[3].split()): int(line.split("\t")[0])
            for line in open(f"{work}/d/keys.tsv").readlines()[1:]
        }
        check(told == {k: n for k, n in hits.items() if n}, "hits of each key")
        least = options.get("common", 10)
        check(
            any(n >= least for n in hits.values()) and any(0 < n < least for n in hits.values()),
            "both kinds of keys were hit",
        )

        c = counts(f"{work}/d", "decontaminate")["s"]
        check(
            min(c.get(k, 0) for k in ("split", "trimmed", "untouched", "nothing left", "in too many pieces"))
            > 0,
            f"all cases: {c}",
        )

    if os.path.exists(f"{SHARED}/tasks"):
        tasks = [
            "lambada=/lambada_test.jsonl",
            "piqa=/piqa",
            "boolq=/boolq",
            "wic=/wic",
            "hellaswag=/hellaswag",
            "winogrande=/winogrande",
            "anli-r2=/anli-r2",
            "race=/race-high",
            "hans=/hans",
        ]
        against = ",".join(t.replace("=", f"={SHARED}/tasks") for t in tasks)

        goal = max((json.loads(line)["goal"] for line in open(f"{SHARED}/tasks/piqa/valid.jsonl")), key=len)
        write(f"{work}/t.jsonl", [prose(r, 900) + " " + goal + " " + prose(r, 900)])
        run(f"decontaminate --against {against} --output {work}/t --compress none s={work}/t.jsonl")

        pieces = read(f"{work}/t/s/t.jsonl")
        check(
            [d["id"] for d in pieces] == ["d0#1", "d0#2"] and all(goal not in d["text"] for d in pieces),
            "a task's question is cut out",
        )

    run(f"decontaminate --against piqa=/nowhere --output {work}/n s={work}/a.jsonl", fails="/nowhere")
    run(
        *f"decontaminate --against pica=/nowhere --output {work}/n s={work}/a.jsonl".split(),
        fails="did you mean piqa"
    )
