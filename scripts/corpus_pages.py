"""Pages to documents: WARC in all its states, main text, and what clean mends and drops."""

import gzip
import hashlib
import json
import os
import random
import time
import unicodedata
import zlib

from corpus_checks import SHARED, counts, read, run, write
from over_ranks import check

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
        ("ISO-2022-JP", page("日本語 " + text, charset="iso2022_jp"), "; charset=iso-2022-jp"),
        ("an unknown name", page(accents + text, charset="cp1252"), "; charset=x-nobody-knows"),
    ):
        open(f"{work}/a.warc", "wb").write(record(response(body, f"Content-Type: text/html{header}\r\n")))
        run("extract", "--output", f"{work}/x", "--compress", "none", "--language", "any", f"s={work}/a.warc")
        got = read(f"{work}/x/s/a.jsonl")
        first = {"KOI8-R": "Привет, ", "Shift_JIS": "日本語 ", "ISO-2022-JP": "日本語 "}.get(name, accents)
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
        "a\u20d0\u20d8": "a\u20d8\u20d0",  # marks of two classes, in the wrong order
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
