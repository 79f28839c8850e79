"""The tour's own server: files of one folder, and two questions to the planner, on 127.0.0.1 alone.

    /api/pipeline?p=4&m=8&v=1          a schedule of a toy model: spans, bubble, memory, as JSON
    /api/plan?tensor-parallel=8&…      what --plan prints for the 530B model with other options, as text

An option that is not in ALLOWED, or a value that is not among its values, is refused with 400; a plan that
takes longer than PATIENCE seconds is given up with 503; at most MOST questions are answered at once.
"""

import functools
import http.server
import json
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path

import runs

PATIENCE, MOST = 20, 4
ALLOWED = {
    "plan": {
        "tensor-parallel": {"1", "2", "4", "8", "16"},
        "pipeline-parallel": {"1", "5", "7", "15", "21", "35", "105"},
        "world-size": {"280", "560", "1120", "2240", "2800", "3360"},
        "batch": {"1440", "1680", "1920", "2240", "2400"},
        "ramp-start": {"32", "0"},
        "recompute": {"none", "full"},
        "hardware": {"dgx-a100", "dgx-h100", "dgx-h200"},
    },
    "pipeline": {
        "p": {"1", "2", "4", "8", "16"},
        "m": {"1", "2", "4", "6", "8", "12", "16", "32"},
        "v": {"1", "2", "4"},
    },
}
places = threading.BoundedSemaphore(MOST)


class Refused(Exception):
    pass


def checked(question, query):
    """The query's options, each known and each once."""
    allowed = ALLOWED.get(question)
    if allowed is None:
        raise Refused(f"no such question: {question}: ask plan or pipeline")
    pairs = urllib.parse.parse_qsl(query, max_num_fields=16, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        raise Refused("an option is given twice")
    for name, value in options.items():
        if name not in allowed:
            raise Refused(f"{name}: choose of {' '.join(allowed)}")
        if value not in allowed[name]:
            raise Refused(f"{name}={value}: choose of {' '.join(sorted(allowed[name], key=len))}")
    return options


def answer(question, options):
    """Type and text of an answer."""
    if question == "pipeline":
        sizes = {"p": 4, "m": 8, "v": 1, **{k: int(v) for k, v in options.items()}}
        with tempfile.TemporaryDirectory() as work:
            made = runs.one_pipeline(sizes["p"], sizes["m"], sizes["v"], Path(work))
        return "application/json", json.dumps(made)
    command = [runs.BUILD / "train_gpt", "--plan", *runs.words({**runs.MTNLG, **options})]
    try:
        return "text/plain", runs.run(command, PATIENCE)
    except runs.TooLong:
        raise
    except runs.ProgramError as error:
        return "text/plain", str(error).split("\n", 1)[-1]


class Handler(http.server.SimpleHTTPRequestHandler):
    timeout = 30

    def do_GET(self):
        parts = urllib.parse.urlsplit(self.path)
        if not parts.path.startswith("/api/"):
            return self.send_error(400) if "%00" in parts.path else super().do_GET()
        # a page of another site must not ask through the reader's browser
        if self.headers.get("Host", "").split(":")[0] not in ("127.0.0.1", "localhost"):
            return self.reply(403, "text/plain", "this server only serves 127.0.0.1")
        question = parts.path.removeprefix("/api/")
        try:
            options = checked(question, parts.query)
        except (Refused, ValueError) as error:
            return self.reply(400, "text/plain", f"{error}\n")
        if not places.acquire(timeout=PATIENCE):
            return self.reply(503, "text/plain", "busy: ask again\n")
        try:
            return self.reply(200, *answer(question, options))
        except runs.TooLong as error:
            return self.reply(503, "text/plain", f"{error}\n")
        finally:
            places.release()

    def reply(self, code, kind, text):
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def list_directory(self, path):
        self.send_error(404)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the reader has left the page
            super().handle_error(request, client_address)


def start(folder, port):
    """A server that is bound to its port; its serve_forever() answers."""
    handler = functools.partial(Handler, directory=str(folder))
    return Server(("127.0.0.1", port), handler)


def serve(folder, port):
    try:
        server = start(folder, port)
    except OSError as error:
        raise SystemExit(
            f"tour: port {port} of 127.0.0.1: {error.strerror}: choose another --port"
        ) from error
    print(f"the tour is at http://127.0.0.1:{server.server_port}/ until Ctrl-C", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
