"""Pages to documents: WARC in all its states, main text, and what clean repairs and drops."""

import gzip
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import time
import unicodedata
import zlib

from corpus_checks import CORPUS, SHARED, counts, read, run, write
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


def extracted(work, data, *words, name="a.warc"):
    """The documents that extract makes of a file's bytes, and what it counted."""
    with open(f"{work}/{name}", "wb") as f:
        f.write(data)
    run(f"extract --output {work}/x --compress none", *words, f"s={work}/{name}")
    return read(f"{work}/x/s/a.jsonl"), counts(f"{work}/x", "extract")["s"]


def brotli(data):
    """As RFC 7932 stores what is not compressed: one piece of up to 64 KiB, and an empty last one."""
    return ((len(data) - 1) << 4 | 1 << 20).to_bytes(3, "little") + data + b"\x03"


ATTRIBUTES = b" ".join(b"a%d=1" % i for i in range(100000))


def test_no_record(work):
    """Files of another kind, and a corpus of which nothing is left"""
    with open(f"{work}/lines.jsonl", "w") as f:
        f.write('{"text": "a text"}\n' * 99)
    wants = "extract: s: 1880 bytes without a record: expected WARC files"
    run(f"extract --output {work}/x --compress none s={work}/lines.jsonl", fails=wants)
    open(f"{work}/empty.jsonl", "w").close()
    wants = "no set has a document left"
    run(f"tokens --output {work}/t --vocabulary bytes s={work}/empty.jsonl", fails=wants)


def test_extract(work):
    text = ENGLISH * 2
    want = "A heading\n\n" + text.strip()
    html = "Content-Type: text/html\r\n"

    def encoded(body, encoding, more=""):
        return response(body, f"{html}{more}Content-Encoding: {encoding}\r\n")

    halves = page(text)[:100], page(text)[100:]
    good = {
        "plain": response(page(text)),
        "chunked": response(chunked(page(text)), html + "Transfer-Encoding: chunked\r\n"),
        "chunk sizes with zeros and blanks": response(
            b"".join(b"0000000000%x \t;x\r\n%s\r\n" % (len(h), h) for h in halves) + b" 0\r\n\r\n",
            html + "Transfer-Encoding: chunked\r\n",
        ),
        "chunk sizes in capitals": response(
            chunked(page(text), 0xAB).replace(b"ab\r\n", b"AB\r\n"),
            html + "Transfer-Encoding: identity, chunked\r\n",
        ),
        "chunks cut short": response(
            chunked(page(text) + b"<!-- " + b"x" * 5000)[:-2000], html + "Transfer-Encoding: chunked\r\n"
        ),
        "a chunk without its size, cut short": response(
            b"%x\r\n%s\r\nsize\r\n%s" % (len(page(text)), page(text), page(text)),
            html + "Transfer-Encoding: chunked\r\n",
        ),
        "declared chunked, and not": response(page(text), html + "Transfer-Encoding: chunked\r\n"),
        "gzip": encoded(gzip.compress(page(text)), "gzip"),
        "x-gzip": encoded(gzip.compress(page(text)), "x-gzip"),
        "three encodings": encoded(gzip.compress(zlib.compress(page(text))), "deflate, identity, gzip"),
        "brotli": encoded(brotli(page(text)), "br"),
        "brotli cut short": encoded(brotli(page(text) + b"<!-- " + b"x" * 5000)[:-2000], "br"),
        "other blanks": response(page(text.replace("of the town", "of\u205fthe\u3000town"))),
        "two types": response(page(text), html + "Content-Type: image/png\r\n"),  # the first counts
        "zlib": encoded(zlib.compress(page(text)), "deflate"),
        "raw deflate": encoded(zlib.compress(page(text))[2:-4], "deflate"),
        "declared gzip, and not": encoded(page(text), "gzip"),
        "two gzip members": encoded(b"".join(map(gzip.compress, halves)), "gzip"),
        "many gzip members": encoded(gzip.compress(page(text)) + gzip.compress(b"") * 3000, "gzip"),
        # libxml2 ends a script at </script alone
        "a script with tags and quotes": response(
            page(text, "<script>d.write('<b>x</b>');for(i=0;i<n;i++);s={" + '"k":"v",' * 600 + "}</script>")
        ),
        "gzip in chunks": encoded(
            chunked(gzip.compress(page(text))), "gzip", "Transfer-Encoding: chunked\r\n"
        ),
        "gzip cut short": encoded(
            gzip.compress(page(text) + b"<!-- " + random.Random(1).randbytes(5000).hex().encode())[:-2000],
            "gzip",
        ),
        "without a type": response(page(text), ""),
        "XHTML": response(page(text), "Content-Type: application/xhtml+xml; charset=utf-8\r\n"),
    }
    if shutil.which("zstd"):
        frames = [subprocess.run(["zstd", "-c"], input=h, capture_output=True, check=True) for h in halves]
        good["two zstd frames"] = encoded(b"".join(frame.stdout for frame in frames), "zstd")
    for name, content in good.items():
        got, counted = extracted(work, record(content))
        check(len(got) == 1 and got[0]["text"] == want, f"extract, {name}: {got}")
        cut = counted.get("pages whose encoded body is cut short", 0)
        cut += counted.get("pages whose chunks are cut short", 0)
        check(cut == ("cut short" in name), f"extract, {name}: {cut} cut short")
        check(
            got and got[0]["meta"]["language"] == "en" and got[0]["meta"]["url"].startswith("http://a.b/"),
            f"meta, {name}",
        )

    # jusText's limits: a paragraph of more than 200 characters, a heading at most 200 before a good one
    for length in (200, 201):
        words, other = ("it was of the " * 20)[:length], ("qwert zuiop " * 20)[:length]
        html_of = f"<html><body><p>{words}</p></body></html>".encode()
        got, _ = extracted(work, record(response(html_of)), "--language", "any")
        check(len(got) == (length > 200), f"a paragraph of {length} characters: {got}")
        html_of = f"<html><body><h1>A title</h1><p>{other}</p><p>{words * 2}</p></body></html>".encode()
        got, _ = extracted(work, record(response(html_of)), "--language", "any")
        near = length <= 200
        check(got[0]["text"].startswith("A title") == near, f"a heading {length} characters before: {got}")

    for inner, kept in (  # what is no text, though it has the words of one
        (f"<p>{words}</p>", True),
        (f"<p>© {words}</p>", False),
        (f"<p>&amp;copy; {words}</p>", False),
        (f"<selectlist><p>{words}</p></selectlist>", False),
        (f"<textarea>{words}</textarea>", False),
        (f"<button>{words}</button>", False),
    ):
        got, _ = extracted(work, record(response(f"<body>{inner}</body>".encode())), "--language any")
        check(bool(got) == kept, f"{inner[:20]}: {got}")
    larger = record(encoded(gzip.compress(page(text * 9)), "gzip"))
    got, counted = extracted(work, larger, "--longest-page 2000")
    check(not got and counted["pages longer than --longest-page"] == 1, f"a page of 4 KB: {counted}")
    got, _ = extracted(work, re.sub(rb"(http://a.b/\d+)", rb"<\1>", record(response(page(text)))))
    check(got[0]["meta"]["url"].startswith("http://a.b/"), f"an address as wget writes it: {got}")

    # CLD2 refuses control characters: they do not cost a page its language
    got, _ = extracted(work, record(response(page("It\u0092s so. " + text))))
    check(len(got) == 1, "a page with a control character")

    # charsets: declared by a header or the page, or detected
    accents, greeting, japanese = "Zoë’s café in the naïve façade — “quoted” ", "Привет, ", "日本語 "
    equiv = "<META content='text/html; Charset = \"koi8-r\"' http-equiv=Content-Type>"
    behind = '<!-- <meta charset="iso-8859-2"> --><meta charset=windows-1252>'
    inside = "<a title='<meta charset=koi8-r>'></a><meta charset=x-cp1252>"
    declared = b'<?xml version="1.0" encoding="koi8-r"?>'

    far = "<!--" + "-" * 2000 + "--><meta charset=macintosh>"
    no_pragma = "<meta content='text/html; charset=koi8-r'>"
    other = "<meta charset=windows-1251>"

    def begun(first, charset="utf-8", head=""):  # a page whose text begins with this
        return page(first + text, head, charset)

    for name, first, body, header in (
        ("UTF-8", accents, begun(accents), ""),
        ("windows-1252", accents, begun(accents, "cp1252"), "; charset=iso-8859-1"),
        ("in a meta tag", accents, begun(accents, "cp1252", '<meta charset="windows-1252">'), ""),
        ("UTF-8 that says latin1", accents, begun(accents), "; charset=iso-8859-1"),
        ("UTF-16", accents, ("\ufeff" + begun(accents).decode()).encode("utf-16-le"), ""),
        ("UTF-8 with a mark", accents, b"\xef\xbb\xbf" + begun(accents), ""),
        ("KOI8-R", greeting, begun(greeting, "koi8-r"), "; charset=koi8-r"),
        ("Shift_JIS", japanese, begun(japanese, "shift_jis"), "; charset=shift_jis"),
        ("ISO-2022-JP", japanese, begun(japanese, "iso2022_jp"), "; charset=iso-2022-jp"),
        ("an unknown name", accents, begun(accents, "cp1252"), "; charset=x-nobody-knows"),
        *(
            (f"{label} in a page of bytes", accents, begun(accents, head=f'<meta charset="{label}">'), "")
            for label in "utf-16 utf-16le utf-16be unicode ucs-2 csunicode utf-7".split()
        ),
        ("utf-16 in a header", accents, begun(accents), "; charset=utf-16"),
        ("UTF-16 without a mark", accents, begun(accents, "utf-16-le"), "; charset=utf-16"),
        ("in a comment", accents, begun(accents, "cp1252", behind), ""),
        ("an XML declaration", greeting, declared + begun(greeting, "koi8-r"), ""),
        ("an attribute's value", accents, begun(accents, "cp1252", inside), ""),
        ("http-equiv", greeting, begun(greeting, "koi8-r", equiv), ""),
        ("content without it", accents, begun(accents, "cp1252", no_pragma), ""),
        ("behind 2,000 bytes", accents, begun(accents, "mac_roman", far), ""),
        ("a header and a meta tag", greeting, begun(greeting, "koi8-r", other), "; charset=koi8-r"),
        *(
            (f"label {label}", accents, begun(accents, "cp1252", f"<meta charset={label}>"), "")
            for label in "iso8859-1 l1 cp819 ibm819 iso-ir-100 csisolatin1 x-cp1252 ansi_x3.4-1968".split()
        ),
        ("stray bytes", accents, begun(accents, head="<!--" + "-" * 70000 + "-->") + "é".encode()[:1], ""),
        ("windows-1258", accents, begun(accents, "cp1258") + b"<p>e", "; charset=windows-1258"),
        (
            "an unused byte",
            "\x9d\x81 ",
            begun("", "cp1252").replace(b"<p>", b"<p>\x9d\x81 ", 1),
            "; charset=latin1",
        ),
        ("GBK's euro", "€ ", begun("", "gbk").replace(b"<p>", b"<p>\x80 ", 1), "; charset=gbk"),
        ("detected", greeting * 20, begun(greeting * 20, "koi8-r"), ""),
        ("not what it says", accents * 5, begun(accents * 5, "cp1252"), "; charset=euc-jp"),
        ("an unused byte of Thai", "\x81 ", begun("").replace(b"<p>", b"<p>\x81 ", 1), "; charset=tis-620"),
        ("UTF-16BE with a mark", accents, ("\ufeff" + begun(accents).decode()).encode("utf-16-be"), ""),
        ("UTF-16BE without a mark", accents, begun(accents, "utf-16-be"), "; charset=utf-16"),
        *(
            (head, accents, begun(accents, "mac_roman", head), "")
            for head in (
                "<meta http-equiv=content-type content=\"text/html; charset='macintosh'\">",
                "<meta charset=macintosh charset=koi8-r>",  # the first of two
                "<!--><meta charset=macintosh>-->",  # the comment ends where it begins
                "<meta charset=macintosh http-equiv=content-type content='text/html; charset=koi8-r'>",
            )
        ),
        ("a label with a blank", accents, declared.replace(b"koi8", b" koi8") + begun(accents, "cp1252"), ""),
        ("label ms_kanji", japanese, begun(japanese, "shift_jis"), "; charset=MS_Kanji"),
    ):
        typed = response(body, f"Content-Type: text/html{header}\r\n")
        got, _ = extracted(work, record(typed), "--language any")
        good = len(got) == 1 and got[0]["text"] == "A heading\n\n" + first + text.strip()
        check(good, f"charset {name}: {got}")
        told = got[0]["meta"]["charset"] if got else None
        check(told == name or name not in ("KOI8-R", "UTF-8"), f"meta, charset {name}: {told}")

    # records in all states, each gzip member a record; nothing stops the reading, all is counted
    r = [record(response(page(text))) for _ in range(6)]
    whole = [gzip.compress(x) for x in r]
    broken = bytearray(whole[1])
    broken[len(broken) // 2 : len(broken) // 2 + 8] = b"\xff" * 8

    plain, members = b"".join(r), b"".join(whole)
    other_records, other_members = b"".join(r[1:]), b"".join(whole[1:])
    huge = r[0].replace(b"Length: ", b"Length: 99999999999999", 1)
    long = record(b"x" * 20_000_000)
    german = "Der Fluss wurde von den meisten benutzt, um auf den Markt und in die Kirche zu gehen, die auf"
    others = (
        record(b"x", "warcinfo")
        + record(response(page(text), "Content-Type: image/png\r\n"))
        + record(response(b"%PDF-1.4 " + page(text)))
        + record(response(b"no tag at all " * 40, ""))
        + record(response(page(text), status="404 Not Found"))
        + record(b"no http")
        + record(response(b""))
    )
    damaged, wrong = {"damaged gzip members": 1}, {"records of wrong length": 1}
    too_long = {"records longer than --longest-page": 1}
    skipped = {
        "records that are no response": 1,
        "pages that are not HTML": 3,
        "responses of another status than 2xx": 1,
        "responses without an HTTP header": 1,
        "empty pages": 1,
    }
    blocks = (gzip.compress(plain[i : i + 500]) for i in range(0, len(plain), 500))
    # what the next record begins with stands across the end of the first 128 KiB
    across = record(b"", length=99999999)[:-4].ljust((128 << 10) - 5, b"x") + b"\r\n\r\n" + plain
    too_large = r[0].replace(b"Length: ", b"Length: 99999999", 1) + other_records

    for name, data, kept, said in (
        ("whole", members, 6, {}),
        ("plain", plain, 6, {}),
        ("one member", gzip.compress(plain), 6, {}),
        ("blocks of gzip", b"".join(blocks), 6, {}),
        ("garbage between members", whole[0] + b"garbage" * 9 + other_members, 6, damaged),
        ("a damaged member", whole[0] + bytes(broken) + b"".join(whole[2:]), None, damaged),
        ("cut at the end", members[:-100], None, damaged),
        ("zeros at the end", members + b"\0" * 512, 6, {"damaged gzip members": 0}),
        ("a record cut in its member", gzip.compress(r[0][:-200]) + other_members, None,
         {"records cut short": 1}),
        ("too long a length", r[0].replace(b"Length: ", b"Length: 9", 1) + other_records, None, wrong),
        ("no length", r[0].replace(b"Content-Length", b"Content-Depth", 1) + other_records, 5, {}),
        ("a huge length", huge + other_records, 5, wrong),
        ("a huge length in a member", gzip.compress(huge) + other_members, 5, too_long),
        ("a long record in a member", gzip.compress(long) + members, 6, too_long),
        ("a long record", long + plain, 6, too_long),
        ("lines without a return", plain.replace(b"\r\n", b"\n"), 6, {}),
        ("a wrong length in one member", gzip.compress(too_large), 5, wrong),
        ("junk up to a border", b"junk".ljust((128 << 10) - 3, b"x") + b"\n" + plain, 6, {}),
        ("a wrong length, a border", gzip.compress(across), 6, wrong),
        ("drafts of the format", plain.replace(b"WARC/1.0", b"WARC/0.18"), 6, {}),
        ("a damaged beginning", b"\0" + whole[0][1:] + other_members, 5, damaged),
        ("junk before", b"junk\r\n" * 100 + plain, 6, {"bytes that are no record": None}),
        ("other types", others + r[0], 1, skipped),
        ("another language", record(response(page(f"{german} der anderen Seite lag. " * 5))), 0,
         {"in another language": 1}),
        ("nothing", b"", 0, {}),
        ("an empty gzip", gzip.compress(b""), 0, {}),
    ):  # fmt: skip
        got, c = extracted(work, data, name="a.warc.gz")
        good = len(got) == kept if kept is not None else len(got) >= 4
        check(good, f"records, {name}: {len(got)} documents, {c}")
        told = all(k in c if n is None else c.get(k, 0) == n for k, n in said.items())
        check(told, f"counts, {name}: {c}")

    for share, kept in ((0.5, 1), (0.95, 0)):  # of two languages, English is the larger
        data = record(response(page(f"{text}{german} der anderen Seite lag.")))
        got, c = extracted(work, data, "--share", share)
        check(len(got) == kept == 1 - c.get("in another language", 0), f"a share of {share}: {c}")

    # what a hostile page could hang on: each must be done within seconds
    for name, body in (
        ("nesting", b"<div>" * 200000),
        ("end tags", b"<div>" * 250 + b"</b>" * 300000),
        ("attributes", b"<p " + ATTRIBUTES + b">" + ENGLISH.encode() * 3),
        # attributes after constructs in which tags would seem not to count
        *(
            (f"attributes behind {before.decode()}", before + ATTRIBUTES + b">")
            for before in (b"<!-- --!><p ", b"<script/><p ", b"<stylex><p ", b"<script a=b/></b></script><p ")
        ),
        ("comments", b"<!----!>" * 500000),
        ("headings", b"<h1><br>x</h1>" * 100000),
        ("paragraphs", b"<p>x</p>" * 200000),
        ("a stray quote", b"<div ' " + b" ".join(b"x%d=1" % i for i in range(100000)) + b">"),
        ("marks", b"<p>a" + "\u0301".encode() * 40000 + "\u0316".encode() * 40000),
        ("tiny paragraphs", None),
        ("entities", b"&lt;&#x41;&" * 200000),
        ("a word", b"<p>" + b"x" * 10_000_000 + b"</p>"),
        ("a bomb", None),
        ("headers", b"<p>a</p>"),
    ):
        unpacked = b"<p>a" * 50_000_000 if name == "tiny paragraphs" else b"\0" * 300_000_000
        content = response(body) if body else encoded(gzip.compress(unpacked), "gzip")
        start = time.time()
        data = record(content)
        if name == "headers":
            data += b"WARC/1.0\n" * 300000
        _, counted = extracted(work, data, "--language any")
        check(time.time() - start < 60, f"a page of {name} took {time.time() - start:.0f} s")
        guarded = counted.get("tags with too many attributes", 0)
        expected = name.startswith(("attributes", "a stray quote"))
        check(guarded == expected, f"a page of {name}: {guarded} tags blanked out")
        deep = counted.get("pages nested too deep, cut there", 0)
        check(deep == (name == "nesting"), f"a page of {name}: {deep} cut")
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
        "a\x00b\x07c\ufeffd\x7fe": "abcde",
        "a\u206ab\u206fc\ufff9d\ufffbe\ufffcf": "abcdef",  # deprecated, for annotations, an object
        "one\ftwo": "one\ntwo",
        "\U0001f3f4\U000e0067\U000e007f": "\U0001f3f4\U000e0067\U000e007f",  # of a flag
        "a\U000e0001b": "ab",
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
        check(got["text"] == want + filler, f"Unicode {given!r}: {got['text'][:40]!r}, expected {want!r}")
        check(got["text"] == unicodedata.normalize("NFC", got["text"]), f"not NFC: {given!r}")
    c, kept = counts(f"{work}/c", "clean")["s"], sum(len(text + filler) for text in cases.values())
    check(c["kept characters"] == kept < c["characters"], f"characters, before and after: {c}")

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
    # limits: shorter than that, not as short
    at = [text[:n] for text, n in ((german * 9, 512), ("use javascript now " * 20, 256)) for n in (n, n - 1)]
    write(f"{work}/at.jsonl", at)
    run(f"clean --output {work}/at --compress none --short-javascript 0 s={work}/at.jsonl")
    check([d["id"] for d in read(f"{work}/at/s/at.jsonl")][:1] == ["d0"], "another language, 512 characters")
    check("d1" not in [d["id"] for d in read(f"{work}/at/s/at.jsonl")], "another language, 511 characters")
    run(f"clean --output {work}/at --compress none --language any --shortest 256 s={work}/at.jsonl")
    c = counts(f"{work}/at", "clean")["s"]
    check([d["id"] for d in read(f"{work}/at/s/at.jsonl")] == ["d0", "d1", "d2"], f"256 characters: {c}")
    run(f"clean --output {work}/at --compress none --language any s={work}/at.jsonl")
    check([d["id"] for d in read(f"{work}/at/s/at.jsonl")] == ["d0", "d1", "d2"], "256, about javascript")
    bad = [
        '{"text": 5}',
        "nonsense",
        '{"id": "x"}',
        '["text"]',
        '{"text": "\ud800"}',
        '{"text": "a", "id": 7, "meta": 3}',
    ]

    lines = [f"{line}\n" for line in bad[:4] + bad[5:]]
    lines += ["\n", b'{"text": "\xff"}\n', json.dumps({"text": "y" * 3000})]
    clean(work, lines, "--longest 2000 --unreadable 1")
    c = counts(f"{work}/c", "clean")["s"]
    check(
        c["not JSON"] == 2
        and c['without "text"'] == 3
        and c["longer than --longest"] == 1
        and c["kept"] == 1
        and c["documents"] == 7,
        f"what is no document: {c}",
    )
    # lines of other systems, blank ones too; as long as --longest; an id that is a number
    row = '{"text": "a text", "id": 7}'
    got = clean(work, [f"{row}\r\n", "\r\n", f"{row} \n", "\n"], "--longest", len(row) + 1)
    c = counts(f"{work}/c", "clean")["s"]
    check(got == [{"text": "a text", "id": "7"}] * 2 and c["documents"] == 2, f"line ends: {got} {c}")
    alone = ['{"text": "b"}\n', r'{"text": "b", "x": "\ud800"}' + "\n"]
    got = clean(work, [f"{row[:-1]}, \"meta\": {{\"a\": 1}}}}\n", *alone])
    check(got[1:] == [{"text": "b"}] * 2, f"an id and meta of the document before: {got}")
    check_lines_that_are_json(work)
    check_correct_text_is_kept(work)
    check_damage_between_lines(work)


def clean(work, lines, *words, **more):
    """What clean makes of lines, each text or bytes"""
    with open(f"{work}/a.jsonl", "wb") as f:
        f.write(b"".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    out = run(f"clean --output {work}/c --compress none --language any", *words, f"s={work}/a.jsonl", **more)
    return out if more else read(f"{work}/c/s/a.jsonl")


def check_lines_that_are_json(work):
    """What no field needs is not checked; numbers that are kept keep their digits."""
    odd = [
        '18446744073709551616', '-9223372036854775809', '1e400', '123456789012345678901234567890.5e-7',
        r'"\ud800"', r'"\udc00 and \ud83d"', "[" * 600 + "]" * 600,
    ]  # fmt: skip
    lines = [f'{{"simhash": {x}, "text": "a text", "id": "{i}"}}\n' for i, x in enumerate(odd)]
    lines += [
        f'{{"text": "a text", "meta": {{"hash": {x}, "b": [1, null, true]}}}}\n'
        for x in odd
        if not x.endswith("e-7")  # which is read as a double, and written as one
    ]
    got = clean(work, lines)
    check([d["text"] for d in got] == ["a text"] * len(lines), f"odd values elsewhere: {len(got)}")
    check([d.get("id", "") for d in got[: len(odd)]] == [str(i) for i in range(len(odd))], "their ids")
    kept = open(f"{work}/c/s/a.jsonl").read().splitlines()[len(odd) :]
    want = [*odd[:3], '"\ufffd"', '"\ufffd and \ufffd"', odd[6]]
    check(all(f'"hash":{x},"b":[1,null,true]' in line for x, line in zip(want, kept)), f"meta: {kept}")
    got = clean(work, [r'{"text": "a\ud800b", "id": 18446744073709551616}' + "\n"])
    check(got == [{"text": "a\ufffdb", "id": "18446744073709551616"}], f"a lone surrogate: {got}")
    for depth, good in ((1000, True), (1100, False)):
        deep = '{"text": "a text", "x": ' + "[" * depth + "]" * depth + "}\n"
        got = clean(work, [deep, '{"text": "b"}\n'], "--unreadable", 0.5)
        check(len(got) == 1 + good, f"{depth} levels: {got}")

    # more than a tenth of lines that are no documents ends the step; fewer are reported
    lines = ['{"text": "a text"}\n'] * 95
    clean(
        work,
        lines + ["not\n"] * 20,
        fails="clean: 20 of 115 lines of s are not documents (not JSON 20): expected",
    )
    long = json.dumps({"text": "y" * 200}) + "\n"
    clean(work, lines + [long] * 20, "--longest 100", fails="(longer than --longest 20)")
    clean(work, lines + ['{"Text": "x"}\n'] * 20, fails='(without "text" 20)')
    done = subprocess.run(
        [CORPUS, "clean", "--output", f"{work}/c", "--language", "any", "--unreadable", ".2",
         f"s={work}/a.jsonl"],
        capture_output=True, text=True,
    )  # fmt: skip
    told = "WARNING: clean: 20 of 115 lines of s are not documents: left out"
    check(done.returncode == 0 and told in done.stderr, f"a warning: {done.stderr}")


def check_damage_between_lines(work):
    """Gzip members that end anywhere, one of them damaged: no document is made of the halves of two."""
    lines = [json.dumps({"text": f"<{i}>" + "x y z " * 150 + f"</{i}>", "id": str(i)}) for i in range(200)]
    data = "\n".join(lines).encode() + b"\n"
    for cut in range(19000, 21000, 499):
        members = [gzip.compress(data[i : i + cut]) for i in range(0, len(data), cut)]
        members[3] = b"\xff" * 40 + members[3][40:]
        got = clean(work, members, "--unreadable", 0.5)
        halves = [re.fullmatch(r"<(\d+)>[x-z ]*</(\d+)>", d["text"]) for d in got]
        glued = [d["id"] for d, of in zip(got, halves) if not of or {of[1], of[2]} != {d["id"]}]
        check(not glued and len(got) > 150, f"members of {cut} bytes: {len(got)} kept, glued {glued}")


def test_stopwords(work):
    """A language's own list: letters of any alphabet are lower-cased, as Python does."""
    text = "И солнце взошло. В городе тихо. На улице пусто. Не слышно голосов. " * 8
    open(f"{work}/ru.txt", "w").write("и\nв\nна\nне\n")
    data = record(response(f"<p>{text}</p>".encode()))
    documents, _ = extracted(work, data, f"--stopwords {work}/ru.txt --language any")
    got = [d["text"] for d in documents]
    check(got == [text.strip()], f"capitals among stop words: {got}")
    text = "Пожалуйста тихо голосов " * 20
    open(f"{work}/ru.txt", "w").write("пожалуйста\n")
    data = record(response(f"<p>{text}</p>".encode()))
    documents, _ = extracted(work, data, f"--stopwords {work}/ru.txt --language any")
    check(len(documents) == 1, "a stop word of 20 bytes")


def check_correct_text_is_kept(work):
    """A capital before a sign, a small letter before two: correct text, whatever cp1252 would make of it."""
    signs = [chr(c) for c in range(0xA0, 0xC0)] + list("‚„…†‡‰‹‘’“”•–—™›€")
    signs = [sign for sign in signs if sign not in "¤¦¨¬¯±µ¶¸¼½¾¢£¥§"]  # which never follow a word
    capitals = [chr(c) for c in range(0xC0, 0xE0)]
    texts = [f"A CUP OF NESCAF{c}{sign} COSTS" for c in capitals for sign in signs]
    texts += [f"«{c}{sign}" for c in capitals for sign in "»”’…"] + [
        f"2{x}{y}" for x in "×ß" for y in "½¼£¹²³°"
    ]
    texts += [f"caf{c}{a}{b} and" for c in "àáâãäçèéêëìíîïñòóôõöùúûü" for a in "®™»”’…" for b in "”…’—–»"]
    texts += ["A cup of NESCAFÉ® costs 2×£1; 2×½ cups; the letter ‘Ñ’", "POKÉ™", "BEAUTÉ·MODE", "¡QUÉ¿"]
    texts += ["AMANHÃ…", "CAFÉ\u00a0NOIR", "SOCIÉ\u00adTÉ", "l’Ô’x", "der Spaß”", "C O N C L U S Ã O", "AHÅ™"]
    texts += ["BANGLADÉŠ a Bangladéš» and ÖŠTRIČ", "SÃO PAULO — MAÇÃ® e AMANHÃ hoje"]
    got = [d["text"] for d in clean(work, [json.dumps({"text": t}) + "\n" for t in texts])]
    wrong = [(a, b) for a, b in zip(texts, got, strict=True) if a != b]
    check(not wrong, f"{len(wrong)} of {len(texts)} correct texts are changed: {wrong[:5]}")

    # and damage is repaired: words, capitals, quotes, other scripts, twice over, a lost no-break space
    right = [
        "café", "MÜNCHEN", "Köln und München, 20°C, für 5 £ — “naïve”", "PÊCHE À LA LIGNE, CAFÉ", "DOS AÑOS",
        "Ὀδυσσεύς", "русский язык и литература", "日本語の文章", "👍 it’s 10×20 ½", "México", "Hôtel", "über", "été",
    ]  # fmt: skip
    cp1252 = {b: bytes([b]).decode("cp1252", "ignore") or chr(b) for b in range(256)}
    misread = lambda t: "".join(cp1252[b] for b in t.encode())  # noqa: E731
    damaged = [misread(t) for t in right] + [misread(misread(t)) for t in right]
    damaged += ["voilÃ le travail", "il reste Ã faire", misread(misread(misread("café")))]
    got = [d["text"] for d in clean(work, [json.dumps({"text": t}) + "\n" for t in damaged])]
    want = right * 2 + ["voilà le travail", "il reste à faire", "café"]
    wrong = [(a, b) for a, b in zip(want, got, strict=True) if a != unicodedata.normalize("NFC", b)]
    check(not wrong, f"not repaired: {wrong}")
