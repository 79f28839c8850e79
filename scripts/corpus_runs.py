"""Token files, whole runs over ranks and after kill -9, and bad input."""

import gzip
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

from corpus_checks import CORPUS, ENVIRONMENT, TRAINER, counts, prose, read, run, sentence, tree, write
from corpus_pages import ENGLISH, page, record, response
from over_ranks import check


def decode_tokens(path):
    """Documents of a file in the vocabulary `bytes`."""
    data = open(path, "rb").read()
    count, documents = struct.unpack_from("<Q", data, 16)[0], struct.unpack_from("<Q", data, 32)[0]
    tokens = struct.unpack_from(f"<{count}H", data, 64)
    out, now = [], bytearray()
    for t in tokens:
        if t < 256:
            now.append(t)
        else:
            out.append(now.decode())
            now = bytearray()
    assert len(out) == documents and not now
    return out


def test_tokens(work):
    r = random.Random(13)
    texts = [prose(r, r.randint(1, 400)) for _ in range(2000)]
    write(f"{work}/a.jsonl", texts[:500])
    write(f"{work}/b.jsonl", [{"text": t, "id": f"b{i}"} for i, t in enumerate(texts[500:])])
    run("tokens", "--vocabulary", "bytes", "--output", f"{work}/t", f"s={work}/?.jsonl")
    got = decode_tokens(f"{work}/t/s.bin")
    check(sorted(got) == sorted(texts), "all documents, each once")
    order = [texts.index(t) for t in got]
    moved = (
        sum(abs(a - b) for a, b in zip(order, range(2000))) / 2000
    )  # a shuffle moves by a third of the length
    check(600 < moved < 733, f"shuffled: documents moved by {moved}")
    run(
        f"tokens --vocabulary bytes --output {work}/v --validation 0.2 --memory 1000000 s={work}/?.jsonl",
        ranks=2,
    )

    train, held = decode_tokens(f"{work}/v/s.train.bin"), decode_tokens(f"{work}/v/s.validation.bin")
    check(
        sorted(train + held) == sorted(texts) and abs(len(held) - 400) < 4.5 * math.sqrt(320),
        f"{len(held)} are held out",
    )
    check([t for t in got if t in set(train)] == train, "the same order, but for those held out")
    weight, name = open(f"{work}/v/train.blend").read().split("\n")[1].split()
    count = counts(f"{work}/v", "tokens")["s"]["tokens"]
    check(name == "s.train.bin" and float(weight) == count > 1000, f"the blend: {weight} for {count} tokens")
    words = f"tokens --output {work}/n --validation 1 s={work}/a.jsonl"
    run(words, fails="must be at most 0.99")
    open(f"{work}/v/encoded/s/a.tokens", "r+b").truncate(1000)
    before = tree(f"{work}/v")
    run("tokens", "--vocabulary", "bytes", "--output", f"{work}/v", "--validation", 0.2, f"s={work}/?.jsonl")
    check(
        tree(f"{work}/v") != before and decode_tokens(f"{work}/v/s.train.bin") == train,
        "what was cut off is made again",
    )


CONFIGURATION = """# a corpus of three sets
output     out
set wikipedia   jsonl wiki?.jsonl.gz   weight 0.6
set cc-2021-04  warc  crawl?.warc.gz   weight 0.3
set own         jsonl own.jsonl        weight 0.1
positives  wikipedia
buckets    5000
dimensions 5
pareto     0.5
against    requests=questions.jsonl
vocabulary bytes
validation 0.1
common     1000
"""


def make_inputs(folder):
    os.makedirs(folder)
    r = random.Random(17)
    fine = [sentence(r) for _ in range(400)]
    article = lambda: " ".join(r.choice(fine) for _ in range(r.randint(5, 30)))
    for k in range(2):
        with gzip.open(f"{folder}/wiki{k}.jsonl.gz", "wt") as f:
            f.write(
                "".join(json.dumps({"text": article(), "id": f"wiki {k} {i}"}) + "\n" for i in range(150))
            )

    for k in range(3):
        with open(f"{folder}/crawl{k}.warc.gz", "wb") as f:
            for i in range(60):
                text = (
                    ENGLISH * r.randint(2, 3) + "It was then said of the town that " + article()
                    if r.random() < 0.7
                    else ENGLISH * 3
                )
                f.write(gzip.compress(record(response(page(text))), mtime=0))

    write(f"{folder}/own.jsonl", [article() for _ in range(80)] + ["x " * 2000])
    write(f"{folder}/questions.jsonl", [{"context": f, "continuations": ["a"], "gold": 0} for f in fine[:30]])
    open(f"{folder}/corpus.conf", "w").write(CONFIGURATION)


def test_few(work):
    """However few documents a set has, one is trained on and, of several, one held out."""
    for share in (0.01, 0.5, 0.99):
        for seed in range(12):
            write(f"{work}/few.jsonl", [f"{seed} {i}" for i in range(3)])
            words = f"tokens --vocabulary bytes --output {work}/few --validation {share} --seed {seed}"
            run(words, f"s={work}/few.jsonl")
            train, held = (decode_tokens(f"{work}/few/s.{name}.bin") for name in ("train", "validation"))
            check(train and held and len(train + held) == 3, f"{share}, seed {seed}: {train} {held}")
    write(f"{work}/same.jsonl", [{"text": "one", "id": "1"}] * 2)
    run(f"tokens --vocabulary bytes --output {work}/same --validation 0.5 s={work}/same.jsonl")
    check(decode_tokens(f"{work}/same/s.train.bin") == ["one"] * 2, "two that are the same are trained on")
    check(not os.path.exists(f"{work}/same/s.validation.bin"), "… and none is held out")
    held = f"{work}/few/s.validation.bin"
    words = f"tokens --vocabulary bytes --output {work}/few --validation 0.5 s={work}/few.jsonl"
    run(words)
    os.remove(held)
    run(words)
    check(os.path.exists(held), "what was removed is made again")
    write(f"{work}/few.jsonl", ["alone"])
    write(f"{work}/empty.jsonl", [])
    out = run(words, f"t={work}/empty.jsonl")
    check("set t has no document left for training" in out, f"a set without documents: {out}")
    blend = open(f"{work}/few/train.blend").read().split("\n")
    check(len(blend) == 3 and blend[1].endswith(" s.train.bin"), f"… is not in the blend: {blend}")
    check(not os.path.exists(held), "a file of documents that are no more")


def test_changes(work):
    """What is done again: an output that was spoilt, an input that was edited, another vocabulary."""
    texts = [f"{i:05} " + "x" * 100 for i in range(2000)]
    write(f"{work}/a.jsonl", texts)
    cleaned, out = f"--language any --output {work}/c --compress none s={work}/a.jsonl", f"{work}/c/s/a.jsonl"
    run(f"clean {cleaned}")
    whole = tree(f"{work}/c")
    with open(out, "r+b") as f:
        f.seek(-20, 2)
        f.write(b"z")
    run(f"clean {cleaned}")
    check(tree(f"{work}/c") == whole, "an output whose end was overwritten")

    def encoded(vocabulary):
        run(f"tokens --vocabulary {vocabulary} --output {work}/t-{len(vocabulary)} s={out}")
        return f"{work}/t-{len(vocabulary)}/s.bin"

    sizes = []
    for merges in ("x x\n", "x x\nxx xx\n"):
        with open(f"{work}/v.bpe", "w") as f:
            f.write("#version: 0.2\n" + merges)
        written = encoded(f"{work}/v.bpe")
        sizes.append(os.path.getsize(written))
        same = open(written.replace(".bin", ".vocab.bpe")).read() == open(f"{work}/v.bpe").read()
        check(same, "the vocabulary stands beside its tokens")
    check(sizes[1] < 0.6 * sizes[0], f"another vocabulary under the same name: {sizes}")
    encoded("bytes")
    with open(out, "r+") as f:
        lines = f.read().replace("00007 ", "99999 ")
        f.seek(0)
        f.write(lines)
    got = decode_tokens(encoded("bytes"))
    check(sorted(got)[-1].startswith("99999 ") and len(got) == 2000, "what a step wrote, and somebody edited")


def test_damaged_frames(work):
    """Behind damage, the next zstd frame is read; what is lost is said."""
    if not shutil.which("zstd"):
        return
    lines = {i: [f"frame {i} line {n} " + "word " * 20 for n in range(50)] for i in "ab"}
    parts = [write(f"{work}/{i}.jsonl", lines[i]) for i in lines]
    frames = [subprocess.run(["zstd", "-c", p], capture_output=True, check=True).stdout for p in parts]
    for name, data, kept in (
        ("whole", frames[0] + frames[1], 100),
        ("skippable", b"\x50\x2a\x4d\x18\4\0\0\0abcd" + frames[0] + frames[1], 100),
        ("junk", frames[0] + b"junk" * 10 + frames[1], 100),
        ("cut", frames[0][:-40] + frames[1], 50),
        ("truncated", frames[0] + frames[1][:-40], 50),
    ):
        with open(f"{work}/{name}.jsonl.zst", "wb") as f:
            f.write(data)
        words = f"clean --output {work}/{name} --compress none --language any s={work}/{name}.jsonl.zst"
        done = subprocess.run([CORPUS, *words.split()], env=ENVIRONMENT, capture_output=True, text=True)
        got = len(read(f"{work}/{name}/s/{name}.jsonl"))
        warned = "damaged or truncated parts" in done.stderr
        right = done.returncode == 0 and kept <= got and warned == (name not in ("whole", "skippable"))
        check(right, f"{name}: {got} {done.stderr}")


def test_published_blend(_work):
    """What scripts/corpus.conf writes is what scripts/mtnlg-530b.blend reads, with the same weights."""
    scripts = os.path.dirname(os.path.abspath(__file__))
    conf, blend = open(f"{scripts}/corpus.conf").read(), open(f"{scripts}/mtnlg-530b.blend").read()
    validation = float(re.search(r"^validation\s+(\S+)", conf, re.M).group(1))
    ending = ".train.bin" if validation > 0 else ".bin"
    sets = re.findall(r"^set (\S+) .* weight (\S+)$", conf, re.M)
    written = {name + ending: weight for name, weight in sets}
    read = {name: weight for weight, name in re.findall(r"^([\d.]+) (\S+)$", blend, re.M)}
    check(len(written) == 15 and written == read, f"corpus.conf writes {written}, the blend reads {read}")


def test_run(work):
    make_inputs(f"{work}/in")
    home = os.getcwd()
    os.chdir(f"{work}/in")
    out = run("run", "corpus.conf")
    whole = tree("out")
    check(
        "train.blend" in " ".join(whole) and "| wikipedia | tokens |" in out,
        "what a run leaves",
    )
    drawn = subprocess.run([sys.executable, Path(__file__).parent / "draw.py", "funnel", "out"])
    check(drawn.returncode == 0 and open("out/report.svg").read().count("<rect") > 15, "the funnel")
    os.remove("out/report.svg")  # no step's output
    c = counts("out/decontaminate", "decontaminate")
    removed = json.load(open("out/dedup/components.json"))["removed"]
    check(
        removed > 20
        and sum(s["duplicates"] for s in counts("out/dedup", "dedup").values() if "duplicates" in s)
        == removed
        and sum(s.get("split", 0) + s.get("trimmed", 0) + s.get("nothing left", 0) for s in c.values()) > 20,
        f"{removed} duplicates, {c}",
    )

    told, blend = open("out/report.md").read(), open("out/tokens/train.blend").read()
    for name, s in counts("out/clean", "clean").items():
        share = f"{100 * s['kept'] / s['documents']:.1f} %"
        row = f"{s['documents']} | {s['kept']} | {share} | {s['characters']:,} | {s['kept characters']:,} |"
        check(f"| {name} | clean | {row}" in told, f"the report has no {row}: {told}")
    for name, s in counts("out/tokens", "tokens").items():
        documents, n = (s[k] + s[f"validation {k}"] for k in ("documents", "tokens"))
        row = f"| {name} | tokens | {documents} | | | | | {n:,} tokens |"
        check(row in told, f"the report has no {row}: {told}")
    weights = re.findall(r"^(\S+) (\S+)\.train\.bin$", blend, re.M)
    check(weights == [("0.6", "wikipedia"), ("0.3", "cc-2021-04"), ("0.1", "own")], f"weights: {blend}")

    for step in ("clean", "filter", "dedup"):  # all that goes in comes out or is counted
        for name, s in counts(f"out/{step}", step).items():
            other = sum(
                n
                for k, n in s.items()
                if k not in ("documents", "kept", "characters", "kept characters", "Unicode repaired")
            )
            check(s["documents"] == s["kept"] + other, f"{step} {name}: {s}")

    before = {
        p: os.stat(f"out/{p}").st_mtime_ns for p in whole if p.endswith((".jsonl.zst", ".signatures", ".bin"))
    }
    run("run", "corpus.conf")
    check(
        tree("out") == whole and all(os.stat(f"out/{p}").st_mtime_ns == t for p, t in before.items()),
        "finished steps are not done again",
    )

    for ranks in (1, 2, 5):
        shutil.rmtree("out")
        run("run", "corpus.conf", ranks=ranks)
        check(
            tree("out") == whole, f"{ranks} ranks: {[p for p in whole if tree('out').get(p) != whole[p]][:5]}"
        )

    # another setting, and back
    run("run", "corpus.conf", "--margin", 50)
    check(
        tree("out/dedup") == {p[6:]: h for p, h in whole.items() if p.startswith("dedup/")}
        and tree("out") != whole,
        "another setting",
    )
    run("run", "corpus.conf")
    check(tree("out") == whole, "the first setting again")
    text = open("own.jsonl").read()
    middle = text.replace('"id": "d40"', '"id": "e40"')
    open("own.jsonl", "w").write(middle)
    run("run", "corpus.conf")
    check(len(middle) == len(text) and tree("out") != whole, "an input that changed in its middle")

    with open("own.jsonl", "a") as f:
        f.write(json.dumps({"text": prose(random.Random(99), 500), "id": "late"}) + "\n")
    run("run", "corpus.conf")
    check(
        counts("out/clean", "clean")["own"]["documents"] == 82 and tree("out") != whole,
        "an input that has grown",
    )
    shutil.rmtree("out")
    run("run", "corpus.conf")
    whole = tree("out")

    # kill -9 at random moments, on one rank or two; a run that finishes first is started anew
    r = random.Random(19)
    for ranks in (0, 2):
        kills = 0
        shutil.rmtree("out")
        start = time.time()
        run("run", "corpus.conf", ranks=ranks)
        length = time.time() - start
        shutil.rmtree("out")

        for _ in range(100):
            if kills == 6:
                break
            command = (["mpirun", "-n", "2"] if ranks else []) + [CORPUS, "run", "corpus.conf"]
            process = subprocess.Popen(
                command,
                env=ENVIRONMENT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

            try:
                process.wait(r.random() * length)
                shutil.rmtree("out")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                subprocess.run(["pkill", "-9", "-f", f"^{CORPUS} run corpus.conf"])
                process.wait()
                kills += 1

        check(kills == 6, f"six runs could not be killed over {ranks} ranks")
        run("run", "corpus.conf", ranks=ranks)
        left = {p: h for p, h in tree("out").items() if not p.endswith(".partial")}
        check(
            left == whole,
            f"after kill -9: {[p for p in set(left) | set(whole) if left.get(p) != whole.get(p)][:5]}",
        )

    # with a classifier that was trained before, and no crawl; one that was damaged is trained again
    open("b.conf", "w").write("output two\nset own jsonl own.jsonl\nmodel out/classifier/model.bin\n")
    run("run", "b.conf")
    check(os.path.exists("two/tokens/own.bin") and not os.path.exists("two/score"), "a run without a crawl")
    run("run", "corpus.conf", "--output", "two")
    run("run", "b.conf")
    told = re.findall(r"^\| (?!set)\S+ \| (\w+) \|", open("two/report.md").read(), re.M)
    check(told == ["clean", "dedup", "tokens"], f"what other settings left is not reported: {told}")
    with open("out/classifier/model.bin", "r+b") as f:
        f.truncate(1000)
    run("run", "corpus.conf")
    check(tree("out") == whole, "a damaged classifier is trained again")

    # a change in the middle of a large file that keeps its length and its number of tokens is noticed
    large = [{"text": f"{i:06} " + "x" * 100, "id": str(i)} for i in range(4000)]
    for name in ("first", "changed"):
        write("large.jsonl", large)
        run("clean", "--compress", "none", "--language", "any", "--output", "l1", "s=large.jsonl")
        run("tokens", "--output", "l2", "s=l1/s/large.jsonl")
        check(
            sorted(decode_tokens("l2/s.bin")) == sorted(d["text"] for d in large),
            f"{name}: what is there is trained on",
        )
        large[2000]["text"] = "changed" + large[2000]["text"][7:]

    trained = subprocess.run(
        [
            TRAINER,
            *"--train out/tokens/train.blend --validation out/tokens/wikipedia.validation.bin".split(),
            *"--layers 1 --hidden 32 --heads 2 --sequence 64 --batch 8 --steps 20 --metrics m.jsonl".split(),
        ],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    losses = [m["loss"] for m in read("m.jsonl")] if trained.returncode == 0 else []
    check(
        len(losses) == 20 and losses[-1] < losses[0],
        f"WARC in, training out: {trained.stderr[-300:]} {losses[-1:]}",
    )
    os.chdir(home)


def test_bad_input(work):
    foreign = ("clean", "--output", f"{work}/o", "--bands", 3, f"s={work}/a.jsonl")  # another step's option
    write(f"{work}/a.jsonl", ["x"])
    run(fails="expected a step")
    run("extrakt", fails="did you mean extract")
    run("clean", "--outptu", "x", f"s={work}/a.jsonl", fails="did you mean --output")
    run("clean", f"s={work}/a.jsonl", fails="missing --output")
    run("clean", "--output", f"{work}/o", fails="missing files")
    run("clean", "--output", f"{work}/o", f"s={work}/none*.jsonl", fails="there is no such file")
    run(*foreign, fails="is for dedup, not for clean")
    run("dedup", "--output", f"{work}/o", "--rows", "many", f"s={work}/a.jsonl", fails="rows many: expected")
    run("dedup", "--output", f"{work}/o", "--fast", "maybe", f"s={work}/a.jsonl", fails="expected yes or no")
    run(
        *f"quality score --output {work}/o --model {work}/a.jsonl s={work}/a.jsonl".split(),
        fails="was not made by ./corpus quality train"
    )
    run("report", f"{work}/nowhere", fails="holds no step's counts")
    run(f"clean --output {work}/o minhash={work}/a.jsonl", fails="this name is reserved")
    # of two sets one has a weight; an option of the command line counts; what is being written is no input
    os.makedirs(f"{work}/some")
    for name in ("a.jsonl", "b.jsonl", "c.jsonl.partial"):
        write(f"{work}/some/{name}", [f"a text of {name}"])
    with open(f"{work}/some.conf", "w") as f:
        f.write(f"bands 1000\nrows 1000\nset a jsonl {work}/a.jsonl weight 1\nset b jsonl {work}/some/*\n")
    run(f"run {work}/some.conf --output {work}/t", fails="at most 65536 min-hashes")
    run(f"run {work}/some.conf --output {work}/t --bands 3", fails="1 of 2 sets have a weight")
    run(f"clean --language any --output {work}/c --compress none b={work}/some/*")
    found = sorted(name for name in os.listdir(f"{work}/c/b") if not name.endswith(".counts"))
    check(found == ["a.jsonl", "b.jsonl"], f"files of a set: {found}")
    with open(f"{work}/some.conf", "w") as f:  # a set of two patterns, of which one says the weight
        f.write(f"language any\nset a jsonl {work}/a.jsonl weight 1\nset b jsonl {work}/some/a*\n")
        f.write(f"set b jsonl {work}/some/b* weight 2\n")
    run(f"run {work}/some.conf --output {work}/t")
    blend = open(f"{work}/t/tokens/train.blend").read().splitlines()[1:]
    check(blend == ["1 a.bin", "2 b.bin"], f"weights: {blend}")
    os.makedirs(f"{work}/two")
    write(f"{work}/two/a.jsonl", ["y"])
    run(f"clean --output {work}/o s={work}/a.jsonl s={work}/two/a.jsonl", fails="the same name in one set")

    # nothing that is read is written onto: --pairs, --model, another set's file
    os.makedirs(f"{work}/out/s")
    write(f"{work}/out/s/a.jsonl", ["z"])
    before = tree(work)
    for words in (
        f"dedup --output {work}/p --compress none --pairs {work}/a.jsonl s={work}/a.jsonl",
        f"quality train --positives {work}/two/a.jsonl --model {work}/a.jsonl s={work}/a.jsonl",
        f"clean --output {work}/out --compress none s={work}/a.jsonl t={work}/out/s/a.jsonl",
    ):
        run(words, fails="would ")
    after = tree(work)
    check(all(after[path] == before[path] for path in before), "no input is written onto")

    write(f"{work}/b[1].jsonl", ["a name with brackets " * 20])
    run(f"clean --output {work}/o --compress none --language any s={work}/b[1].jsonl")

    os.makedirs(f"{work}/n=1")
    write(f"{work}/n=1/a.jsonl", ["a folder with ="])
    run(f"clean --output {work}/o --compress none --language any {work}/n=1/a.jsonl")
    check(len(read(f"{work}/o/all/a.jsonl")) == 1, "a path with = names no set")

    for text, says in (
        (f"set a jsonl {work}/a.jsonl weight 0", "weight 0: expected one above 0"),
        ("set a jsonl", "line 1: expected set NAME"),
        ("colour red", "unknown option --colour"),
        ("seed 1\nseed 2", "a second time"),
        ("output x", "names no set"),
        (f"set a jsonl {work}/a.jsonl", "missing --output"),
    ):
        open(f"{work}/c.conf", "w").write(text)
        run("run", f"{work}/c.conf", fails=says)

    run(*foreign, ranks=2, fails="[all 2 ranks] corpus: --bands: is for dedup, not for clean")
