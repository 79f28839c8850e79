"""scripts/crawl.sh against a server that breaks off and lies about a length; the digests of WARC records."""

import base64
import gzip
import hashlib
import http.server
import os
import subprocess
import threading
from pathlib import Path

from corpus_checks import ENVIRONMENT, counts, run
from corpus_pages import ENGLISH, page, record, response
from over_ranks import check

SCRIPT = Path(__file__).parent / "crawl.sh"
BODY = gzip.compress(os.urandom(300000))


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        name = self.path.rsplit("/", 1)[1]
        asked = self.headers.get("Range", "bytes=0-")
        first = int(asked.split("=")[1].split("-")[0])
        self.server.asked.append((name, first))
        body = gzip.compress(self.server.list.encode()) if name == "paths.gz" else BODY
        announced = len(body) - first
        if name == "longer.gz":
            announced += 1000  # more than is sent
        if name == "shorter.gz":
            announced -= 1000
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(announced))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{first + announced - 1}/{first + announced}")
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        breaks = name == "breaks.gz" and first == 0
        self.wfile.write(body[first : 100000 if breaks else first + announced])


def test_crawl(work):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    quick = {"CRAWL_FROM": url, "CRAWL_TRIES": "3", "CRAWL_PAUSE": "1", "no_proxy": "*"}

    def crawl(*names, given=None):
        server.list = "".join(f"{name}\n" for name in names)
        words = ["bash", SCRIPT, given or f"{url}/x/paths.gz", f"{work}/crawl"]
        done = subprocess.run(
            words, env={**ENVIRONMENT, **quick}, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    def is_whole(name):
        path = Path(f"{work}/crawl/{name}")
        return path.is_file() and path.read_bytes() == BODY

    code, said = crawl("crawl/good.gz", "/crawl/breaks.gz")
    check(code == 0 and "2 of 2 files" in said, said)
    check(is_whole("good.gz") and is_whole("breaks.gz"), "whole files")
    check(("breaks.gz", 0) in server.asked and max(first for name, first in server.asked) > 0, "resumed")
    server.asked.clear()
    check(crawl("crawl/good.gz")[0] == 0 and [name for name, _ in server.asked] == ["paths.gz"], "not again")

    code, said = crawl("good.gz", "b/named%20so.gz?token=1")
    check(code == 0 and is_whole("named%20so.gz?token=1"), said)

    for name, says in (("longer.gz", "is not here"), ("shorter.gz", "is damaged")):
        code, said = crawl("good.gz", f"a/{name}")
        check(code == 1 and f"{name}: {says}" in said and "1 of 2 files" in said, said)
        check(not os.path.exists(f"{work}/crawl/{name}"), f"{name} does not appear")
    code, said = crawl(given=f"{work}/none")
    check(code == 1, "a list that is not there")
    code, said = crawl("a/x.gz", "b/x.gz")
    check(code == 1 and "stand for several files" in said, said)
    server.shutdown()


def test_digests(work):
    """A record that differs from its own digest is counted, but still read."""
    content = response(page(ENGLISH * 2))
    right = base64.b32encode(hashlib.sha1(content).digest()).decode()
    padded = base64.b32encode(hashlib.md5(content).digest()).decode()  # by six =
    other = hashlib.sha256(b"another").hexdigest()
    wrong = (f"sha1:{right[::-1]}", f"md5:{padded[25::-1]}======", f"sha-256:{other}")
    digests = (f"sha1:{right}", f"sha1:{right.lower()}", f"md5:{hashlib.md5(content).hexdigest()}",
               f"md5:{padded}", *wrong, "none:1234", "sha1:", "")  # fmt: skip
    records = [(digest, len(content)) for digest in digests]
    records.insert(0, (digests[0], len(content) + 9))  # cut where the next one begins
    with gzip.open(f"{work}/a.warc.gz", "wb") as f:
        for digest, length in records:
            field = f"WARC-Block-Digest: {digest}\r\nContent-Length".encode()
            f.write(record(content, length=length).replace(b"Content-Length", field, 1))
    run("extract", "--output", f"{work}/out", f"s={work}/a.warc.gz")
    got = counts(f"{work}/out", "extract")["s"]
    check(got["kept"] == len(records) and got.get("records of wrong digest") == len(wrong), str(got))
