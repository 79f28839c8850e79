"""An HTTP server that drops connections, sends wrong data and stalls, for test_fetch.py.

It runs in the caller's process, on 127.0.0.1. The first part of a path selects the server's behaviour.
Requests are recorded, so that a check can verify not only the result but also how it was requested.
"""

import base64
import gzip
import hashlib
import http.server
import random
import threading
import time


def digest32(content):
    return "sha1:" + base64.b32encode(hashlib.sha1(content).digest()).decode()


def make_warc(seed, records=60, size=9000, wrong_digest=False):
    """A WARC of incompressible records, each a gzip member with its block's digest."""
    r, out = random.Random(seed), b""
    for i in range(records):
        content = b"HTTP/1.1 200 OK\r\n\r\n" + r.randbytes(size)
        digest = digest32(content[1:] if wrong_digest and i == 3 else content)
        head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Block-Digest: {digest}\r\n"
        head += f"Content-Length: {len(content)}\r\n\r\n"
        out += gzip.compress(head.encode() + content + b"\r\n\r\n", 1)
    return out


WARC = make_warc(1)
OTHER = make_warc(2)
DAMAGED = WARC[:300000] + bytes([WARC[300000] ^ 1]) + WARC[300001:]
LIED = make_warc(1, wrong_digest=True)
BREAK = 200000  # bytes after which the server closes


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []  # (path, its Range or None)
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def times(self, path):
        with self.lock:
            return [r for p, r in self.asked if p == path]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.range = self.headers.get("Range")
        with self.server.lock:
            self.server.asked.append((self.path, self.range))
            self.number = sum(p == self.path for p, _ in self.server.asked)
        self.close_connection = True
        kind = self.path.split("/")[1].split("?")[0]
        try:
            getattr(self, "do_" + kind, self.do_missing)()
        except (BrokenPipeError, ConnectionResetError):
            pass

    def first_byte(self):
        return int(self.range.split("=")[1].split("-")[0]) if self.range else 0

    def head(self, status, **fields):
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def give(self, body, etag='"one"', until=None, **more):
        """The body, or the rest of it that was asked for; broken off behind `until` bytes."""
        first = self.first_byte()
        if first and self.headers.get("If-Range", etag) != etag:
            first = 0
        part = body[first:]
        if first:
            more["Content_Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
        if etag:
            more["ETag"] = etag
        self.head(206 if first else 200, Content_Length=len(part), **more)
        self.wfile.write(part[:until])

    def do_missing(self):
        self.head(404, Content_Length=0)

    def do_good(self):
        self.give(WARC)

    def do_other(self):
        self.give(OTHER)

    def do_breaks(self):  # three times
        self.give(WARC, until=BREAK if self.number <= 3 else None)

    def do_dated(self):  # no ETag, but a date
        date = "Tue, 24 Nov 2020 00:00:00 GMT"
        if self.range and self.headers["If-Range"] != date:
            self.range = "bytes=0-"
        self.give(WARC, None, BREAK if self.number == 1 else None, Last_Modified=date)

    def do_no_ranges(self):
        self.range = None
        self.give(WARC, until=BREAK if self.number == 1 else None)

    def do_wrong_offset(self):  # the answer to a range begins elsewhere, as its header says
        if self.number == 2:
            self.range = f"bytes={self.first_byte() - 1000}-"
        self.give(WARC, until=BREAK if self.number == 1 else None)

    def do_unsaid_offset(self):  # the answer to a range begins elsewhere, and nothing says so
        first = self.first_byte()
        if self.number != 2:
            return self.give(WARC, until=BREAK if self.number == 1 else None)
        self.head(
            206, Content_Range=f"bytes {first}-{len(WARC) - 1}/{len(WARC)}", Content_Length=len(WARC) - first
        )
        self.wfile.write(WARC[first - 7 : -7])

    def do_changes(self):  # between attempts; If-Range is honoured
        if self.number == 1:
            self.give(OTHER, until=BREAK)
        else:
            self.give(WARC, '"two"')

    def do_changes_unsaid(self):  # it answers with the rest of another file
        if self.number == 1:
            return self.give(OTHER, until=BREAK)
        if self.range:
            self.headers.replace_header("If-Range", '"two"')
        self.give(WARC, '"two"')

    def do_longer(self):  # more than it announced
        self.head(
            206 if self.range else 200,
            Content_Length=len(WARC) + 9 - self.first_byte(),
            Content_Range=f"bytes {self.first_byte()}-{len(WARC) - 1}/{len(WARC)}",
            ETag='"one"',
        )
        self.wfile.write(WARC[self.first_byte() :] + b"more bytes")

    def do_short(self):  # always ends early
        self.head(200, Content_Length=len(WARC))
        self.wfile.write(WARC[:1000])

    def do_unknown_length(self):  # ends by closing; the first time too early
        self.head(200)
        self.wfile.write(WARC[: BREAK if self.number == 1 else None])

    def do_busy(self):
        if self.number == 1:
            self.head(503, Retry_After=1, Content_Length=4)
            self.wfile.write(b"busy")
        elif self.number == 2:
            self.head(429, Content_Length=0)
        elif self.number == 3:
            self.head(403, Content_Length=0)
        else:
            self.give(WARC)

    def do_nothing(self):
        self.send_response(204)
        self.end_headers()

    def do_down(self):
        self.head(500, Content_Length=0)

    def do_stalls(self):  # the first time, in the middle
        if self.number > 1:
            return self.give(WARC)
        self.give(WARC, until=BREAK)
        time.sleep(20)

    def do_resets(self):  # closes without a word
        if self.number > 1:
            self.give(WARC)

    def do_flips(self):  # a bit, on the way; the first time
        self.give(DAMAGED if self.number == 1 else WARC)

    def do_damaged(self):
        self.give(DAMAGED)

    def do_lied(self):  # a record's digest is not its own
        self.give(LIED)

    def do_page(self):  # as captive portals have it
        self.give(b"<html>Please log in</html>")

    def do_empty(self):
        self.give(b"")

    def do_stated(self):  # a digest that is right
        digest = base64.b64encode(hashlib.sha256(WARC).digest()).decode()
        self.give(WARC, Repr_Digest=f"sha-256=:{digest}:")

    def do_misstated(self):
        digest = base64.b64encode(hashlib.md5(OTHER).digest()).decode()
        self.give(WARC, Content_MD5=digest)

    def do_moved(self):
        self.head(302, Location="/good/" + self.path.split("/")[-1], Content_Length=0)

    def do_loops(self):
        self.head(302, Location=self.path, Content_Length=0)

    def do_local(self):
        self.head(302, Location="file:///etc/passwd", Content_Length=0)

    def do_steady(self):  # slowly, for kill -9
        first = self.first_byte()
        more = {"Content_Range": f"bytes {first}-{len(WARC) - 1}/{len(WARC)}"} if first else {}
        self.head(206 if first else 200, Content_Length=len(WARC) - first, ETag='"one"', **more)
        for at in range(first, len(WARC), 20000):
            self.wfile.write(WARC[at : at + 20000])
            self.wfile.flush()
            if not first:
                time.sleep(0.1)

    def do_list(self):
        kind = self.path.split("/")[2]  # warc.paths.gz; those of another crawl: /list/x/warc.paths.gz
        names = (f"good/{kind if kind == 'x' else ''}{i}.warc.gz\n" for i in range(10))
        body = gzip.compress("".join(names).encode(), mtime=0)
        self.give(body)
