#!/usr/bin/env python3
"""Checks ./corpus fetch against a server that breaks off, lies and slows down: test_fetch.py ./corpus"""

import hashlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

from hostile_server import BREAK, DAMAGED, LIED, OTHER, WARC, Server
from over_ranks import check, environment, finish

CORPUS = os.path.abspath(sys.argv[1])
QUICK = ["--pause", "0.01", "--stall", "1", "--attempts", "4"]
ENVIRONMENT = dict(environment, no_proxy="*")


def fetch(work, lines, *options, ranks=1, server=None, **more):
    """Exit code, what was said, and the files that are there."""
    with open(f"{work}/list", "w") as f:
        f.writelines(line + "\n" for line in lines)
    command = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command += [CORPUS, "fetch", "--output", f"{work}/crawl", "--base-url", server.url, *QUICK]
    words = list(map(str, options)) or [f"{work}/list"]
    if words[0].startswith("--"):
        words.append(f"{work}/list")
    done = subprocess.run(
        command + words, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, **more
    )
    return done.returncode, done.stdout + done.stderr, listing(f"{work}/crawl")


def listing(folder):
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return {name: open(f"{folder}/{name}", "rb").read() for name in names}


def test_arrives(server):
    """Whatever happens on the way, the file is the file, and how it came is what was meant."""
    rest = f"bytes={BREAK}-"
    for kind, ranges in {
        "good": [None],
        "breaks": [None, rest, f"bytes={2 * BREAK}-"],
        "dated": [None, rest],
        "no_ranges": [None, rest],
        "wrong_offset": [None, rest, None],
        "unsaid_offset": [None, rest, None],
        "changes": [None, rest],
        "changes_unsaid": [None, rest, None],
        "unknown_length": [None, None],
        "busy": [None] * 4,
        "stalls": [None, rest],
        "resets": [None, None],
        "flips": [None, None],
        "stated": [None],
        "moved": [None],
    }.items():
        with tempfile.TemporaryDirectory() as work:
            path = f"{kind}/a.warc.gz"
            began = time.monotonic()
            code, said, files = fetch(work, [path], server=server)
            check(code == 0, f"{kind}: exit {code}: {said[-400:]}")
            check(files.get("a.warc.gz") == WARC, f"{kind}: other bytes than the server's")
            check(
                set(files) == {"a.warc.gz", "a.warc.gz.counts", "fetch.json"},
                f"{kind}: leaves {sorted(files)}",
            )
            asked = server.times("/" + path)
            if kind == "breaks":  # the fourth attempt brings what three have left, if there is any
                asked = asked[: len(ranges)]
            check(asked == ranges, f"{kind}: asked for {asked}, not {ranges}")
            check(f"records {60}" in said and "records with a digest 60" in said, f"{kind}: counts {said}")
            if kind == "busy":
                check(time.monotonic() - began >= 1, "busy: Retry-After was not waited for")

            before = len(server.asked)
            code, said, again = fetch(work, [path], server=server)
            check(
                code == 0 and again == files and len(server.asked) == before,
                f"{kind}: a second run asks again: {said[-200:]}",
            )


def test_refused(server):
    """What no attempt mends is named, the other files come all the same, and the exit code is 1."""
    for kind, says, most in (
        ("missing", "HTTP status 404", 1),
        ("down", "HTTP status 500, after 4 attempts in a row", 4),
        ("nothing", "HTTP status 204, after 4 attempts in a row", 4),
        ("short", "after 4 attempts in a row", 4),
        ("page", "holds no WARC record, twice", 2),
        ("empty", "holds no WARC record, twice", 2),
        ("misstated", "the server wants md5 " + hashlib.md5(OTHER).hexdigest() + ", twice", 2),
        ("loops", "redirects", 6),
        ("local", "file", 1),
    ):
        with tempfile.TemporaryDirectory() as work:
            path = f"{kind}/a.warc.gz"
            code, said, files = fetch(work, ["good/first.warc.gz", path, "good/z.warc.gz"], server=server)
            check(code == 1, f"{kind}: exit {code}")
            check(
                says in said and server.url + "/" + path in said, f"{kind} does not say {says}: {said[-400:]}"
            )
            check("1 of 3 files are not here" in said, f"{kind}: {said[-300:]}")
            check("a.warc.gz" not in files, f"{kind}: there is a file")
            check(
                files.get("z.warc.gz") == WARC and files.get("first.warc.gz") == WARC,
                f"{kind}: the others are not there",
            )
            check(
                len(server.times("/" + path)) <= most, f"{kind}: asked {len(server.times('/' + path))} times"
            )

    with tempfile.TemporaryDirectory() as work:
        code, said, files = fetch(work, ["longer/a.warc.gz"], server=server)
        check(files.get("a.warc.gz", WARC) == WARC, f"longer: what was not announced is in the file: {said}")


def test_damaged(server):
    """Damage that the server itself has is kept, told and counted; extract reads around it."""
    for kind, body, what in (
        ("damaged", DAMAGED, "damaged gzip members 1"),
        ("lied", LIED, "records of wrong digest 1"),
    ):
        with tempfile.TemporaryDirectory() as work:
            code, said, files = fetch(work, [f"{kind}/a.warc.gz"], server=server)
            check(code == 0 and files.get("a.warc.gz") == body, f"{kind}: {code} {said[-300:]}")
            check("twice the same: kept as the server has it" in said, f"{kind}: {said[-300:]}")
            check("files damaged at their source 1" in said and what in said, f"{kind}: {said[-300:]}")
            check(len(server.times(f"/{kind}/a.warc.gz")) == 2, f"{kind}: not fetched twice")


def test_digests(server):
    """md5sum's, sha1sum's and sha256sum's lists are taken at their word."""
    for algorithm in ("md5", "sha1", "sha256"):
        right, wrong = (hashlib.new(algorithm, body).hexdigest() for body in (WARC, OTHER))
        with tempfile.TemporaryDirectory() as work:
            name = f"{algorithm}.warc.gz"
            code, said, files = fetch(
                work, [f"{right}  good/{name}", f"{right.upper()} *good/b.warc.gz"], server=server
            )
            check(
                code == 0 and files.get(name) == WARC and files.get("b.warc.gz") == WARC,
                f"{algorithm}: {said}",
            )
        with tempfile.TemporaryDirectory() as work:
            name = f"wrong-{algorithm}.warc.gz"
            code, said, files = fetch(work, [f"{wrong}  good/{name}"], server=server)
            says = f"has {algorithm} {right}, the list wants {algorithm} {wrong}, twice"
            check(code == 1 and says in said and name not in files, f"wrong {algorithm}: {said[-300:]}")
            check(len(server.times(f"/good/{name}")) == 2, f"wrong {algorithm}: not tried twice")


def test_killed(server):
    """After kill -9 another run asks for the rest alone."""
    with tempfile.TemporaryDirectory() as work:
        with open(f"{work}/list", "w") as f:
            f.write("steady/a.warc.gz\n")
        command = [CORPUS, "fetch", "--output", f"{work}/crawl", "--base-url", server.url, f"{work}/list"]
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        partial = f"{work}/crawl/a.warc.gz.partial"

        for _ in range(1000):
            time.sleep(0.02)
            if os.path.exists(partial) and os.path.getsize(partial) > 100000:
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
        had = os.path.getsize(partial)
        code, said, files = fetch(work, ["steady/a.warc.gz"], server=server)
        check(code == 0 and files.get("a.warc.gz") == WARC, f"after kill -9: {said[-300:]}")
        check(
            server.times("/steady/a.warc.gz") == [None, f"bytes={had}-"],
            f"after kill -9 at {had}: {server.times('/steady/a.warc.gz')}",
        )

        # what is left of another version, or damaged notes of it, is not taken up
        for note in (b'{"url": "elsewhere", "validator": "", "length": 5}', b'{"url'):
            for name in ("a.warc.gz", "a.warc.gz.counts"):
                os.unlink(f"{work}/crawl/{name}")
            open(partial, "wb").write(OTHER[:5000])
            open(f"{work}/crawl/a.warc.gz.source", "wb").write(note)
            code, said, files = fetch(work, ["good/a.warc.gz"], server=server)
            check(code == 0 and files.get("a.warc.gz") == WARC, f"notes {note}: {said[-300:]}")

        # a finished file that somebody has cut is fetched again
        os.truncate(f"{work}/crawl/a.warc.gz", 1000)
        code, said, files = fetch(work, ["good/a.warc.gz"], server=server)
        check(code == 0 and files.get("a.warc.gz") == WARC, f"a cut file: {said[-300:]}")


def test_ranks(server):
    """Three ranks bring the same bytes as one; the list from a URL; a share of it; a bound to the rate."""
    url = server.url + "/list/warc.paths.gz"
    trees = []
    for ranks in (1, 3):
        with tempfile.TemporaryDirectory() as work:
            code, said, files = fetch(work, [], url, ranks=ranks, server=server)
            check(code == 0 and "files 10" in said, f"{ranks} ranks: {said[-300:]}")
            check(files.get("7.warc.gz") == WARC and len(files) == 22, f"{ranks} ranks: {sorted(files)}")
            trees.append(files)

    check(trees[0] == trees[1], "three ranks write other bytes than one")
    with tempfile.TemporaryDirectory() as work:
        code, said, files = fetch(work, [], "--files", 3, url, server=server)
        check(
            code == 0
            and [n for n in files if n.endswith(".warc.gz")] == ["0.warc.gz", "3.warc.gz", "6.warc.gz"],
            f"--files 3: {sorted(files)}",
        )

    with tempfile.TemporaryDirectory() as work:  # lists of two crawls have one name
        code, said, files = fetch(work, [], url, server.url + "/list/x/warc.paths.gz", server=server)
        both = [name for name in files if name.endswith(".warc.gz")]
        check(code == 0 and len(both) == 20 and "x9.warc.gz" in both, f"two lists: {both} {said[-300:]}")
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as work:
            began = time.monotonic()
            code, said, files = fetch(
                work, [f"good/{i}.warc.gz" for i in range(4)], "--rate", 1e6, ranks=ranks, server=server
            )
            seconds, size = time.monotonic() - began, 4 * len(WARC)
            check(
                code == 0 and seconds > 0.7 * size / 1e6,
                f"--rate 1e6 over {ranks}: {size} bytes in {seconds:.2f} s",
            )

    with tempfile.TemporaryDirectory() as work:
        code, said, files = fetch(work, ["good/a.warc.gz", "missing/b.warc.gz"], ranks=2, server=server)
        check(
            code != 0 and said.count("1 of 2 files are not here") == 1 and files.get("a.warc.gz") == WARC,
            f"a missing file over two ranks: {said[-300:]}",
        )


def test_bad_input(server):
    for lines, options, says in (
        ([], [], "the lists name no file"),
        (["a b c"], [], "path 1: wants a path, or a digest and a path: has a b c"),
        (["good/"], [], "path 1: wants a path"),
        (["good/.hidden"], [], "path 1: wants a path"),
        (["good/a.counts"], [], "path 1: wants a path"),
        (["good/a.warc.gz", "other/a.warc.gz"], [], "two files are called a.warc.gz"),
        (["good/a.warc.gz"], ["/nowhere/list"], "/nowhere/list: cannot be read"),
        (["good/a.warc.gz"], ["--base-url", "ftp://x"], "wants http:// or https://"),
        (["good/a.warc.gz"], ["--rate", "fast"], "--rate"),
        (["good/a.warc.gz"], ["--rows", "3"], "is for dedup, not for fetch"),
        (["good/a.warc.gz"], [server.url + "/missing/list"], "HTTP status 404"),
    ):
        with tempfile.TemporaryDirectory() as work:
            code, said, _ = fetch(work, lines, *options, server=server)
            check(
                code == 1 and said.count(says) == 1, f"{lines} {options} does not say {says}: {said[-300:]}"
            )

    with tempfile.TemporaryDirectory() as work:  # a full disk: no attempt mends it

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

        code, said, files = fetch(work, ["other/full.warc.gz"], server=server, preexec_fn=small_files)
        check(code == 1 and "cannot be written at offset" in said, f"a full disk: {said[-300:]}")
        check(len(server.times("/other/full.warc.gz")) == 1, "a full disk is tried again")
        code, said, files = fetch(work, ["other/full.warc.gz"], server=server)
        check(code == 0 and files.get("full.warc.gz") == OTHER, f"after a full disk: {said[-300:]}")


def main():
    chapters = {name[5:]: f for name, f in globals().items() if name.startswith("test_")}
    for name in sys.argv[2:] or chapters:
        print("==", name, flush=True)
        chapters[name](Server())
    finish()


main()
