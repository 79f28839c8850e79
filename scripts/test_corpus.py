#!/usr/bin/env python3
"""Checks ./corpus against literal, slow programs: python3 scripts/test_corpus.py ./corpus ./train_gpt

The last line is `N passed, N failed`. What is compared with is written here from the papers and from the
rules, not from the program: min-hash buckets, components, decontamination, the Pareto rule, WARC in all its
states.
"""

import gzip
import hashlib
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
import tempfile
import time
import unicodedata
import zlib

from over_ranks import check, environment as ENVIRONMENT, finish

CORPUS, TRAINER = (os.path.abspath(p) for p in sys.argv[1:3])
SHARED = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "shared", "data"))


def run(*words, ranks=0, fails=None):
    """The program's output; fails: what it must say, ending with 1."""
    command = (["mpirun", "-n", str(ranks)] if ranks else []) + [CORPUS] + [str(w) for w in words]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    if fails is None:
        check(done.returncode == 0, f"{words}: {done.stderr[-500:]}")
    else:
        check(
            done.returncode == 1 and done.stderr.count(fails) == 1,
            f"{words} does not say {fails}: {done.stderr[-300:]}",
        )
    return done.stdout


def write(path, documents):
    with open(path, "w") as f:
        for i, d in enumerate(documents):
            f.write(json.dumps(d if isinstance(d, dict) else {"text": d, "id": f"d{i}"}) + "\n")
    return path


def read(path):
    with open(path, encoding="utf8") as f:
        return [json.loads(line) for line in f]


def counts(folder, step):
    return json.load(open(f"{folder}/{step}.json"))


def tree(folder):
    """Every file below a folder, by its bytes."""
    out = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            out[os.path.relpath(path, folder)] = hashlib.sha256(open(path, "rb").read()).hexdigest()
    return out


WORDS = [w for w in re.findall(r"[a-z]{2,9}", open(__file__).read().lower())]


def sentence(r, n=12):
    return " ".join(r.choice(WORDS) for _ in range(n)).capitalize() + ". "


def prose(r, characters):
    out = ""
    while len(out) < characters:
        out += sentence(r, r.randint(5, 20))
    return out.strip()


# ---- extract
# ---------------------------------------------------------------------------------------------------

ENGLISH = (
    "The history of the town is known from letters that were written by its people in the first years of the"
    " century, when the river was used by most of them to go to the market and to the church on the other"
    " side. "
)


def page(text, head="", charset="utf-8"):
    return (
        f"<html><head>{head}<title>t</title></head><body><ul><li><a href='/'>Home</a></li></ul><script>var x"
        f" = 1 < 2;</script><h1>A heading</h1><p>{text}</p><!-- no --><p>Share this</p></body></html>"
    ).encode(charset)


def response(body, headers="Content-Type: text/html\r\n", status="200 OK"):
    return f"HTTP/1.1 {status}\r\n{headers}\r\n".encode() + body


def record(content, kind="response", length=None, number=[0]):
    number[0] += 1
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{number[0]}>\r\nWARC-Target-URI:"
        f" http://a.b/{number[0]}\r\nWARC-Date: 2021-04-10T00:00:00Z\r\nContent-Length:"
        f" {len(content) if length is None else length}\r\n\r\n"
    )
    return head.encode() + content + b"\r\n\r\n"


def chunked(body, size=100):
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


def test_extract(work):
    text = ENGLISH * 2
    want = "A heading\n\n" + text.strip()
    html = "Content-Type: text/html\r\n"
    good = {
        "plain": response(page(text)),
        "chunked": response(chunked(page(text)), html + "Transfer-Encoding: chunked\r\n"),
        "declared chunked, and not": response(page(text), html + "Transfer-Encoding: chunked\r\n"),
        "gzip": response(gzip.compress(page(text)), html + "Content-Encoding: gzip\r\n"),
        "zlib": response(zlib.compress(page(text)), html + "Content-Encoding: deflate\r\n"),
        "raw deflate": response(zlib.compress(page(text))[2:-4], html + "Content-Encoding: deflate\r\n"),
        "declared gzip, and not": response(page(text), html + "Content-Encoding: gzip\r\n"),
        "gzip in chunks": response(
            chunked(gzip.compress(page(text))),
            html + "Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n",
        ),
        "gzip cut short": response(
            gzip.compress(page(text) + b"<!-- " + random.Random(1).randbytes(5000).hex().encode())[:-2000],
            html + "Content-Encoding: gzip\r\n",
        ),
        "without a type": response(page(text), ""),
        "XHTML": response(page(text), "Content-Type: application/xhtml+xml; charset=utf-8\r\n"),
    }
    for name, content in good.items():
        path = f"{work}/a.warc"
        open(path, "wb").write(record(content))
        run("extract", "--output", f"{work}/x", "--compress", "none", f"s={path}")
        got = read(f"{work}/x/s/a.jsonl")
        check(len(got) == 1 and got[0]["text"] == want, f"extract, {name}: {got}")
        check(
            got and got[0]["meta"]["language"] == "en" and got[0]["meta"]["url"].startswith("http://a.b/"),
            f"meta, {name}",
        )
    # CLD2 refuses control characters: they do not cost a page its language
    open(f"{work}/a.warc", "wb").write(record(response(page("It\u0092s so. " + text))))
    run("extract", "--output", f"{work}/x", "--compress", "none", f"s={work}/a.warc")
    check(len(read(f"{work}/x/s/a.jsonl")) == 1, "a page with a control character")
    # charsets: what a header or the page declares, and what is found out
    accents = "Zoë’s café in the naïve façade — “quoted” "
    for name, body, header in (
        ("UTF-8", page(accents + text), ""),
        ("windows-1252", page(accents + text, charset="cp1252"), "; charset=iso-8859-1"),
        ("in a meta tag", page(accents + text, '<meta charset="windows-1252">', "cp1252"), ""),
        ("UTF-8 that says latin1", page(accents + text), "; charset=iso-8859-1"),
        ("UTF-16", "\ufeff".encode("utf-16-le") + page(accents + text).decode().encode("utf-16-le"), ""),
        ("UTF-8 with a mark", b"\xef\xbb\xbf" + page(accents + text), ""),
        ("KOI8-R", page("Привет, " + text, charset="koi8-r"), "; charset=koi8-r"),
        ("Shift_JIS", page("日本語 " + text, charset="shift_jis"), "; charset=shift_jis"),
        ("an unknown name", page(accents + text, charset="cp1252"), "; charset=x-nobody-knows"),
    ):
        open(f"{work}/a.warc", "wb").write(record(response(body, f"Content-Type: text/html{header}\r\n")))
        run("extract", "--output", f"{work}/x", "--compress", "none", "--language", "any", f"s={work}/a.warc")
        got = read(f"{work}/x/s/a.jsonl")
        first = {"KOI8-R": "Привет, ", "Shift_JIS": "日本語 "}.get(name, accents)
        check(
            len(got) == 1 and got[0]["text"] == "A heading\n\n" + first + text.strip(),
            f"charset {name}: {got}",
        )
    # records in all states, each gzip member a record; nothing stops the reading, all is counted
    r = [record(response(page(text))) for _ in range(6)]
    whole = [gzip.compress(x) for x in r]
    broken = bytearray(whole[1])
    broken[len(broken) // 2 : len(broken) // 2 + 8] = b"\xff" * 8
    for name, data, kept, said in (
        ("whole", b"".join(whole), 6, {}),
        ("plain", b"".join(r), 6, {}),
        ("one member", gzip.compress(b"".join(r)), 6, {}),
        (
            "blocks of gzip",
            b"".join(gzip.compress(b"".join(r)[i : i + 500]) for i in range(0, sum(map(len, r)), 500)),
            6,
            {},
        ),
        (
            "garbage between members",
            whole[0] + b"garbage" * 9 + b"".join(whole[1:]),
            6,
            {"damaged gzip members": 1},
        ),
        (
            "a damaged member",
            whole[0] + bytes(broken) + b"".join(whole[2:]),
            None,
            {"damaged gzip members": 1},
        ),
        ("cut at the end", b"".join(whole)[:-100], None, {"damaged gzip members": 1}),
        (
            "a record cut in its member",
            gzip.compress(r[0][:-200]) + b"".join(whole[1:]),
            None,
            {"records cut short": 1},
        ),
        (
            "too long a length",
            r[0].replace(b"Length: ", b"Length: 9", 1) + b"".join(r[1:]),
            None,
            {"records of wrong length": 1},
        ),
        ("no length", r[0].replace(b"Content-Length", b"Content-Depth", 1) + b"".join(r[1:]), 5, {}),
        (
            "a huge length",
            r[0].replace(b"Length: ", b"Length: 99999999999999", 1) + b"".join(r[1:]),
            5,
            {"records of wrong length": 1},
        ),
        (
            "a huge length in a member",
            gzip.compress(r[0].replace(b"Length: ", b"Length: 99999999999999", 1)) + b"".join(whole[1:]),
            5,
            {"records longer than --longest-page": 1},
        ),
        (
            "a long record in a member",
            gzip.compress(record(b"x" * 20_000_000)) + b"".join(whole),
            6,
            {"records longer than --longest-page": 1},
        ),
        (
            "a long record",
            record(b"x" * 20_000_000) + b"".join(r),
            6,
            {"records longer than --longest-page": 1},
        ),
        ("lines without a return", b"".join(r).replace(b"\r\n", b"\n"), 6, {}),
        ("a damaged beginning", b"\0" + whole[0][1:] + b"".join(whole[1:]), 5, {"damaged gzip members": 1}),
        ("junk before", b"junk\r\n" * 100 + b"".join(r), 6, {"bytes that are no record": None}),
        (
            "other types",
            record(b"x", "warcinfo")
            + record(response(page(text), "Content-Type: image/png\r\n"))
            + record(response(page(text), status="404 Not Found"))
            + record(b"no http")
            + record(response(b""))
            + r[0],
            1,
            {
                "records that are no response": 1,
                "pages that are not HTML": 1,
                "responses of another status than 2xx": 1,
                "responses without an HTTP header": 1,
                "empty pages": 1,
            },
        ),
        (
            "another language",
            record(
                response(
                    page(
                        "Der Fluss wurde von den meisten benutzt, um auf den Markt und in die "
                        "Kirche zu gehen, die auf der anderen Seite lag. " * 5
                    )
                )
            ),
            0,
            {"in another language": 1},
        ),
        ("nothing", b"", 0, {}),
        ("an empty gzip", gzip.compress(b""), 0, {}),
    ):
        open(f"{work}/a.warc.gz", "wb").write(data)
        run("extract", "--output", f"{work}/x", "--compress", "none", f"s={work}/a.warc.gz")
        c = counts(f"{work}/x", "extract")["s"]
        got = len(read(f"{work}/x/s/a.jsonl"))
        check(got == kept if kept is not None else got >= 4, f"records, {name}: {got} documents, {c}")
        check(all(k in c and (n is None or c[k] == n) for k, n in said.items()), f"counts, {name}: {c}")
    # what a hostile page could hang on: each must be done within seconds
    for name, body in (
        ("nesting", b"<div>" * 200000),
        ("end tags", b"<div>" * 250 + b"</b>" * 300000),
        ("attributes", b"<p " + b" ".join(b"a%d=1" % i for i in range(100000)) + b">" + ENGLISH.encode() * 3),
        ("headings", b"<h1><br>x</h1>" * 100000),
        ("paragraphs", b"<p>x</p>" * 200000),
        ("a stray quote", b"<div ' " + b" ".join(b"x%d=1" % i for i in range(100000)) + b">"),
        ("marks", b"<p>a" + "\u0301".encode() * 40000 + "\u0316".encode() * 40000),
        ("tiny paragraphs", None),
        ("entities", b"&lt;&#x41;&" * 200000),
        ("a word", b"<p>" + b"x" * 10_000_000 + b"</p>"),
        ("a bomb", None),
        ("headers", b""),
    ):
        unpacked = b"<p>a" * 50_000_000 if name == "tiny paragraphs" else b"\0" * 300_000_000
        content = (
            response(body) if body else response(gzip.compress(unpacked), html + "Content-Encoding: gzip\r\n")
        )
        open(f"{work}/a.warc", "wb").write(record(content) if name != "headers" else b"WARC/1.0\n" * 300000)
        start = time.time()
        run("extract", "--output", f"{work}/x", "--compress", "none", "--language", "any", f"s={work}/a.warc")
        check(time.time() - start < 60, f"a page of {name} took {time.time() - start:.0f} s")
        documents = f"{work}/x/s/a.jsonl"
        run("clean", "--output", f"{work}/y", "--language", "any", f"s={documents}")
        check(time.time() - start < 60, f"cleaning a page of {name} took {time.time() - start:.0f} s")
    sample = f"{SHARED}/warc/sample-0000.warc.gz"
    if os.path.exists(
        sample
    ):  # frozen where all 22 pages' texts were those of jusText 3.0.2 with its English stop words
        run("extract", "--output", f"{work}/real", "--compress", "none", "--language", "any", f"s={sample}")
        texts = [d["text"] for d in read(f"{work}/real/s/sample-0000.jsonl")]
        sum_of_all = hashlib.sha256("\0".join(texts).encode()).hexdigest()
        check(
            len(texts) == 19 and sum_of_all == JUSTEXT_OF_SAMPLE,
            f"the sample's text: {len(texts)} {sum_of_all}",
        )


JUSTEXT_OF_SAMPLE = "03ee3b4aefa4bf18051308f95662ea27b6ebd0524add6a19b2612d631d0feef5"


# ---- clean, quality
# ----------------------------------------------------------------------------------------------


def test_clean(work):
    cases = {  # given, wanted
        "café": "café",
        "cafÃ©": "café",
        "cafÃƒÂ©": "café",
        "â€œquotedâ€\x9d it isnâ€™t": "“quoted” it isn’t",
        "Â©2020 Â£5 â€” Â«xÂ»": "©2020 £5 — «x»",
        "Ð¿Ñ€Ð¸Ð²ÐµÑ‚": "привет",
        "æ—¥æœ¬èªž": "日本語",
        "ðŸ˜€": "😀",
        "ï»¿start": "start",
        "l’été où ça naît — “Été” à Œuvre": "l’été où ça naît — “Été” à Œuvre",
        "Größe überall Äpfel": "Größe überall Äpfel",
        "e\u0301": "é",
        "a\r\nb\rc\u2028d": "a\nb\nc\nd",
        "a\x00b\x07c\ufeffd": "abcd",
        "\x85" + "x": "\nx",
        "don\x92t": "don’t",
        "«é» “à” CAFÉ” ÀÉ…": "«é» “à” CAFÉ” ÀÉ…",
        "Привет, мир": "Привет, мир",
        "\u212b": "Å",
        "日本語のテキスト": "日本語のテキスト",
    }
    filler = " " + ENGLISH * 3
    write(f"{work}/a.jsonl", [given + filler for given in cases])
    run("clean", "--output", f"{work}/c", "--compress", "none", f"s={work}/a.jsonl")
    for (given, want), got in zip(cases.items(), read(f"{work}/c/s/a.jsonl"), strict=True):
        check(got["text"] == want + filler, f"Unicode {given!r}: {got['text'][:40]!r}, wants {want!r}")
        check(got["text"] == unicodedata.normalize("NFC", got["text"]), f"not NFC: {given!r}")
    german = "Der Fluss wurde von den meisten benutzt, um auf den Markt zu gehen. "
    documents = [
        ENGLISH,
        german * 3,
        german * 9,
        "Please enable JavaScript to see this page",
        "",
        "   ",
        ENGLISH + "javascript " + ENGLISH,
    ]
    write(f"{work}/a.jsonl", documents)
    run("clean", "--output", f"{work}/c", "--compress", "none", f"s={work}/a.jsonl")
    c = counts(f"{work}/c", "clean")["s"]
    check([d["id"] for d in read(f"{work}/c/s/a.jsonl")] == ["d0", "d2", "d6"], f"rules: {c}")
    check(
        c["short and about javascript"] == 1 and c["short and in another language"] + c["empty"] == 3,
        f"rules: {c}",
    )
    bad = [
        '{"text": 5}',
        "nonsense",
        '{"id": "x"}',
        '["text"]',
        '{"text": "\ud800"}',
        '{"text": "a", "id": 7, "meta": 3}',
    ]
    with open(f"{work}/a.jsonl", "wb") as f:
        f.write(
            "\n".join(bad[:4] + bad[5:]).encode()
            + b'\n\n{"text": "\xff"}\n'
            + json.dumps({"text": "y" * 3000}).encode()
        )
    run(
        "clean",
        "--output",
        f"{work}/c",
        "--compress",
        "none",
        "--longest",
        2000,
        "--language",
        "any",
        f"s={work}/a.jsonl",
    )
    c = counts(f"{work}/c", "clean")["s"]
    check(
        c["not JSON"] == 2
        and c['without "text"'] == 3
        and c["longer than --longest"] == 1
        and c["kept"] == 1
        and c["documents"] == 7,
        f"what is no document: {c}",
    )


def test_quality(work):
    r = random.Random(3)
    fine, coarse = WORDS[: len(WORDS) // 2], WORDS[len(WORDS) // 3 :]
    texts = lambda words, n: [" ".join(r.choice(words) for _ in range(60)) for _ in range(n)]
    write(f"{work}/good.jsonl", texts(fine, 300))
    write(f"{work}/web.jsonl", [{"text": t, "id": f"w{i}"} for i, t in enumerate(texts(coarse, 3000))])
    train = [
        "quality",
        "train",
        "--buckets",
        10000,
        "--dimensions",
        10,
        "--epochs",
        50,
        "--positives",
        f"{work}/good.jsonl",
        "--model",
    ]
    out = run(*train, f"{work}/model.bin", f"s={work}/web.jsonl")
    accuracy = float(re.search(r"accuracy ([\d.]+) %", out).group(1))
    check(60 < accuracy <= 100, out)  # half is chance; the vocabularies differ in much
    run(*train, f"{work}/again.bin", f"s={work}/web.jsonl", ranks=2)
    check(
        open(f"{work}/model.bin", "rb").read() == open(f"{work}/again.bin", "rb").read(),
        "the same model twice",
    )
    run(
        "quality",
        "score",
        "--model",
        f"{work}/model.bin",
        "--output",
        f"{work}/s",
        "--compress",
        "none",
        f"good={work}/good.jsonl",
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
            run(
                "quality",
                "filter",
                "--output",
                f"{work}/f",
                "--compress",
                "none",
                "--pareto",
                alpha,
                f"s={work}/p.jsonl",
            )
            kept, want = len(read(f"{work}/f/s/p.jsonl")) / 4000, (2 - p) ** -alpha
            check(
                abs(kept - want) <= 4.5 * math.sqrt(want * (1 - want) / 4000),
                f"alpha {alpha}, p {p}: {kept}, wants {want}",
            )
    # what is drawn for a document does not depend on the files it is in
    half = read(f"{work}/p.jsonl")
    for d in half:
        d["meta"]["quality"] = 0.3
    write(f"{work}/all.jsonl", half)
    write(f"{work}/h1.jsonl", half[2000:])
    write(f"{work}/h2.jsonl", half[:2000])
    run(
        "quality",
        "filter",
        "--output",
        f"{work}/f",
        "--compress",
        "none",
        f"a={work}/all.jsonl",
        f"b={work}/h?.jsonl",
    )
    ids = lambda *names: sorted(d["id"] for n in names for d in read(f"{work}/f/{n}.jsonl"))
    check(ids("a/all") == ids("b/h1", "b/h2") and len(ids("a/all")) > 400, "the filter depends on the files")
    # a second score replaces the first; words that mean something to fastText mean nothing in a text
    run(
        "quality",
        "score",
        "--model",
        f"{work}/again.bin",
        "--output",
        f"{work}/s2",
        "--compress",
        "none",
        f"s={work}/s/s/web.jsonl",
    )
    twice = open(f"{work}/s2/s/web.jsonl").readline()
    check(twice.count('"quality"') == 1, f"scored twice: {twice[-100:]}")
    good = read(f"{work}/good.jsonl")[0]["text"]
    tricks = [{"text": t, "id": t[:3]} for t in ("a b </s> " + good, "b __label__positive c", "c __label__x")]
    tricks += [{"text": "a b < s > " + good, "id": "end"}, {"text": "a b", "id": "cut"}]
    write(f"{work}/t.jsonl", tricks)
    run(
        "quality",
        "score",
        "--model",
        f"{work}/model.bin",
        "--output",
        f"{work}/t",
        "--compress",
        "none",
        f"s={work}/t.jsonl",
    )
    told = {d["id"]: d["meta"]["quality"] for d in read(f"{work}/t/s/t.jsonl")}
    check(
        all(0 < q < 1 for q in told.values()) and told["a b"] == told["end"] != told["cut"],
        f"tricks in a text: {told}",
    )
    for damage in (100, -4):
        data = open(f"{work}/model.bin", "rb").read()
        open(f"{work}/bad.bin", "wb").write(data[:damage])
        shutil.copy(f"{work}/model.bin.about.json", f"{work}/bad.bin.about.json")
        run(
            "quality",
            "score",
            "--model",
            f"{work}/bad.bin",
            "--output",
            f"{work}/t",
            f"s={work}/t.jsonl",
            fails="damaged",
        )
    write(
        f"{work}/n.jsonl", [{"text": f"text {i}", "id": None, "meta": {"quality": 0.5}} for i in range(400)]
    )
    run("quality", "filter", "--output", f"{work}/f", "--compress", "none", f"s={work}/n.jsonl")
    check(
        80 < len(read(f"{work}/f/s/n.jsonl")) < 160, "documents whose id is null are drawn each"
    )  # 118 +- 9
    run("quality", "filter", "--output", f"{work}/f", f"s={work}/good.jsonl")
    check(
        counts(f"{work}/f", "filter")["s"]["without a quality from 0 to 1"] == 300,
        "documents without a score",
    )


# ---- dedup
# -------------------------------------------------------------------------------------------------------


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
            "dedup",
            "--fast",
            fast,
            "--jaccard",
            0,
            "--pairs",
            f"{work}/pairs-{fast}",
            "--output",
            f"{work}/{fast}",
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
        group = list(range(len(documents)))  # each document's least relative

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
    # pairs follow the settings; a damaged list of what goes is refused; an output that was emptied is made
    # again
    one = args[:1]
    for jaccard in (0.99, 0.5):
        run(
            "dedup",
            "--compress",
            "none",
            "--output",
            f"{work}/p",
            "--pairs",
            f"{work}/pairs",
            "--jaccard",
            jaccard,
            *one,
        )
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
            "dedup",
            "--output",
            f"{work}/narrow{ranks}",
            "--memory",
            1e6,
            "--pairs",
            f"{work}/narrow.pairs",
            *wide,
            ranks=ranks,
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
    run("dedup", "--output", f"{work}/o", "--priority", "nobody", *args, fails="there is no such set")


# ---- decontaminate
# -------------------------------------------------------------------------------------------------


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
            "decontaminate",
            "--against",
            f"requests={work}/questions.jsonl",
            "--output",
            f"{work}/d",
            "--compress",
            "none",
            *words,
            f"s={work}/?.jsonl",
            ranks=2 if options else 0,
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
        run(
            "decontaminate",
            "--against",
            against,
            "--output",
            f"{work}/t",
            "--compress",
            "none",
            f"s={work}/t.jsonl",
        )
        pieces = read(f"{work}/t/s/t.jsonl")
        check(
            [d["id"] for d in pieces] == ["d0#1", "d0#2"] and all(goal not in d["text"] for d in pieces),
            "a task's question is cut out",
        )
    run(
        "decontaminate",
        "--against",
        "piqa=/nowhere",
        "--output",
        f"{work}/n",
        f"s={work}/a.jsonl",
        fails="/nowhere",
    )
    run(
        "decontaminate",
        "--against",
        "pica=/nowhere",
        "--output",
        f"{work}/n",
        f"s={work}/a.jsonl",
        fails="did you mean piqa",
    )


# ---- tokens, and the whole run
# ---------------------------------------------------------------------------------------


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
        "tokens",
        "--vocabulary",
        "bytes",
        "--output",
        f"{work}/v",
        "--validation",
        0.2,
        "--memory",
        1000000,
        f"s={work}/?.jsonl",
        ranks=2,
    )
    train, held = decode_tokens(f"{work}/v/s.train.bin"), decode_tokens(f"{work}/v/s.validation.bin")
    check(
        sorted(train + held) == sorted(texts) and abs(len(held) - 400) < 4.5 * math.sqrt(320),
        f"{len(held)} are held out",
    )
    check([t for t in got if t in set(train)] == train, "the same order, but for those held out")
    check(open(f"{work}/v/train.blend").read().split("\n")[1].split()[1] == "s.train.bin", "the blend")
    run("tokens", "--output", f"{work}/n", "--validation", 1, f"s={work}/a.jsonl", fails="wants at most 0.99")
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
        "train.blend" in " ".join(whole) and "report.svg" in whole and "| wikipedia | tokens |" in out,
        "what a run leaves",
    )
    check(open("out/report.svg").read().count("<rect") > 15, "the funnel")
    c = counts("out/decontaminate", "decontaminate")
    removed = json.load(open("out/dedup/components.json"))["removed"]
    check(
        removed > 20
        and sum(s["duplicates"] for s in counts("out/dedup", "dedup").values() if "duplicates" in s)
        == removed
        and sum(s.get("split", 0) + s.get("trimmed", 0) + s.get("nothing left", 0) for s in c.values()) > 20,
        f"{removed} duplicates, {c}",
    )
    for step in ("clean", "filter", "dedup"):  # what goes in is what comes out or is counted
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
    # kill -9 at random moments, on one rank or two, until a run comes through
    r, kills = random.Random(19), 0
    for ranks in (0, 2):
        shutil.rmtree("out")
        start = time.time()
        run("run", "corpus.conf", ranks=ranks)
        length = time.time() - start
        shutil.rmtree("out")
        for _ in range(12):
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
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                subprocess.run(["pkill", "-9", "-f", f"^{CORPUS} run corpus.conf"])
                process.wait()
                kills += 1
        run("run", "corpus.conf", ranks=ranks)
        left = {p: h for p, h in tree("out").items() if not p.endswith(".partial")}
        check(
            left == whole,
            f"after kill -9: {[p for p in set(left) | set(whole) if left.get(p) != whole.get(p)][:5]}",
        )
    check(kills > 8, f"only {kills} runs were killed")
    # with a classifier that was trained before, and no crawl; one that was damaged is trained again
    open("b.conf", "w").write("output two\nset own jsonl own.jsonl\nmodel out/classifier/model.bin\n")
    run("run", "b.conf")
    check(os.path.exists("two/tokens/own.bin") and not os.path.exists("two/score"), "a run without a crawl")
    with open("out/classifier/model.bin", "r+b") as f:
        f.truncate(1000)
    run("run", "corpus.conf")
    check(tree("out") == whole, "a damaged classifier is trained again")
    # the same length, the same number of tokens, in the middle of a large file: seen all the same
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
            "--train",
            "out/tokens/train.blend",
            "--validation",
            "out/tokens/wikipedia.validation.bin",
            "--layers",
            "1",
            "--hidden",
            "32",
            "--heads",
            "2",
            "--sequence",
            "64",
            "--batch",
            "8",
            "--steps",
            "20",
            "--metrics",
            "m.jsonl",
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
    write(f"{work}/a.jsonl", ["x"])
    run(fails="wants a step")
    run("extrakt", fails="did you mean extract")
    run("clean", "--outptu", "x", f"s={work}/a.jsonl", fails="did you mean --output")
    run("clean", f"s={work}/a.jsonl", fails="wants --output")
    run("clean", "--output", f"{work}/o", fails="wants files")
    run("clean", "--output", f"{work}/o", f"s={work}/none*.jsonl", fails="there is no such file")
    run(
        "clean",
        "--output",
        f"{work}/o",
        "--bands",
        3,
        f"s={work}/a.jsonl",
        fails="is for dedup, not for clean",
    )
    run("dedup", "--output", f"{work}/o", "--rows", "many", f"s={work}/a.jsonl", fails="want")
    run("dedup", "--output", f"{work}/o", "--fast", "maybe", f"s={work}/a.jsonl", fails="wants yes or no")
    run(
        "quality",
        "score",
        "--output",
        f"{work}/o",
        "--model",
        f"{work}/a.jsonl",
        f"s={work}/a.jsonl",
        fails="is no classifier of ours",
    )
    run("report", f"{work}/nowhere", fails="holds no step's counts")
    os.makedirs(f"{work}/two")
    write(f"{work}/two/a.jsonl", ["y"])
    run(
        "clean",
        "--output",
        f"{work}/o",
        f"s={work}/a.jsonl",
        f"s={work}/two/a.jsonl",
        fails="have one name in one set",
    )
    for text, says in (
        ("set a jsonl", "line 1: wants set NAME"),
        ("colour red", "unknown option --colour"),
        ("seed 1\nseed 2", "a second time"),
        ("output x", "names no set"),
        (f"set a jsonl {work}/a.jsonl", "wants --output"),
    ):
        open(f"{work}/c.conf", "w").write(text)
        run("run", f"{work}/c.conf", fails=says)
    run(
        "clean",
        "--output",
        f"{work}/o",
        "--bands",
        3,
        f"s={work}/a.jsonl",
        ranks=2,
        fails="[all 2 ranks] corpus: --bands: is for dedup, not for clean",
    )


def main():
    chapters = {name[5:]: f for name, f in globals().items() if name.startswith("test_")}
    for name in sys.argv[3:] or chapters:
        print("==", name, flush=True)
        with tempfile.TemporaryDirectory() as work:
            chapters[name](work)
    finish()


main()
