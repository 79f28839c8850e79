#!/usr/bin/env python3
"""OpenAI's completions endpoint over a checkpoint: python3 scripts/serve.py CHECKPOINT [--port 8000]

    curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "It was", "max_tokens": 20, "stream": true}'

POST /v1/completions   prompt (a text, its tokens, or a list of either), max_tokens, temperature, top_p, n,
                       stop, seed, echo, logprobs (up to 20), stream; top_k, repetition_penalty as in vLLM
GET  /v1/models        the checkpoint, under its folder's name
GET  /health           200 when requests can be answered
GET  /tokenizer_info, POST /tokenize, /detokenize   as in vLLM; lm-evaluation-harness finds its tokenizer:
    lm_eval --model local-completions --model_args model=NAME,base_url=http://127.0.0.1:8000/v1/completions,\\
max_length=1024 --tasks piqa

The model runs in a train_gpt of its own (--generate -.jsonl), which generates --batch texts at once; requests
beyond that wait in order. Over several ranks: --program 'mpirun -n 2 ./train_gpt --tensor-parallel 2'. Needs
nothing but Python.
"""

import argparse
import json
import queue
import re
import select
import shlex
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from completions import END_OF_TEXT, Choice, Refused, flag_of, is_tokens, request_of, shown

LONGEST_BODY = 16 << 20


# ---- the model -------------------------------------------------------------------------------------------


class Engine:
    """A train_gpt that takes requests as lines and answers them token by token (layers/inference/serve.h)."""

    def __init__(self, command):
        self.lock = threading.Lock()  # of answers; never held while a pipe may be full
        self.writing = threading.Lock()
        self.answers, self.next_id = {}, 0
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf8"
            )
        except OSError as e:
            sys.exit(f"serve.py: {command[0]} does not start: {e}")
        first = self.process.stdout.readline()
        if first and not first.startswith("{"):
            self.process.kill()
            sys.exit(f"serve.py: {' '.join(command)} did not describe itself, but printed: {first.strip()}")
        if not first:
            sys.exit(f"serve.py: {' '.join(command)} ended with {self.process.wait()}: see its message above")
        self.info = json.loads(first)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        try:
            for line in self.process.stdout:
                said = json.loads(line)
                with self.lock:
                    waiting = self.answers.get(said["id"])
                if waiting:
                    waiting.put(said)
        finally:
            self.end()

    def end(self):
        self.process.kill()
        with self.lock:  # nothing more will come
            for waiting in self.answers.values():
                waiting.put({"error": "the model's process has ended", "status": 500})
            self.answers = None

    def send(self, line):
        try:
            with self.writing:
                self.process.stdin.write(json.dumps(line) + "\n")
                self.process.stdin.flush()
        except (OSError, ValueError) as e:
            raise Refused("the model's process has ended", 500) from e

    def ask(self, request):
        """Its number, and the queue that its lines come to."""
        with self.lock:
            if self.answers is None:
                raise Refused("the model's process has ended", 500)
            self.next_id += 1
            number, lines = self.next_id, queue.Queue()
            self.answers[number] = lines
        self.send({"id": number, **request})
        return number, lines

    def done(self, number, cancel=False):
        with self.lock:
            if self.answers:
                self.answers.pop(number, None)
        if cancel:
            self.send({"cancel": number})

    def echo(self, prompts):
        """For each prompt its tokens, and the bytes of each."""
        asked, out = [], []
        try:
            for prompt in prompts:  # all before the first answer: the engine may answer in the same turn
                asked.append(self.ask({"prompt": prompt, "tokens": 0, "echo": True}))
            for _, lines in asked:
                said = lines.get()
                if "error" in said:
                    raise Refused(said["error"], said.get("status", 400))
                out.append((said["prompt"], [bytes.fromhex(one) for one in said["bytes"]]))
            return out
        finally:
            for number, _ in asked:
                self.done(number)

    def tokenize(self, text):
        """Pieces as END_OF_TEXT parts them, each as the model's vocabulary has it."""
        pieces = text.split(END_OF_TEXT)
        full, echoed, out = [piece for piece in pieces if piece], [], []
        for at in range(0, len(full), 1000):
            echoed += self.echo(full[at : at + 1000])
        echoed = iter(echoed)
        for i, piece in enumerate(pieces):
            out += [self.info["end_of_text"]] * (i > 0) + (next(echoed)[0] if piece else [])
        return out


# ---- HTTP ------------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # connections that wait to be accepted; more are reset

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that has gone
            super().handle_error(request, client_address)

    def __init__(self, address, engine, name):
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Handler)
        self.engine, self.name, self.created = engine, name, int(time.time())
        self.names = {}  # token: as OpenAI writes it

    def name_of(self, token):
        if token not in self.names:
            data = self.engine.echo([[token]])[0][1][0]
            self.names[token] = shown(token, data, self.engine.info["end_of_text"])
        return self.names[token]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "train_gpt"
    timeout = 60  # seconds in which a client must send or take something
    disable_nagle_algorithm = True  # headers and body are sent apart

    def log_message(self, form, *values):
        line = f"{self.address_string()} {form % values}"
        shown = re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda m: f"\\x{ord(m[0]):02x}", line)
        sys.stderr.write(f"{shown}\n")  # a client's words do not steer a terminal

    def answer(self, content, status=200):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for at in range(0, len(data), 1 << 16):  # `timeout` is for each piece, not for all
            self.wfile.write(data[at : at + (1 << 16)])

    def drain(self):
        """Reads a body that is not wanted: a client that still writes would see no answer."""
        self.close_connection = True
        length = self.headers.get("Content-Length", "")
        known = length.isascii() and length.isdigit() and len(length) < 19
        left = min(int(length), 16 * LONGEST_BODY) if known else 0
        while left > 0 and (read := self.rfile.read(min(left, 1 << 20))):
            left -= len(read)

    def handled(self, work):
        try:
            local = ("127.0.0.1", "localhost", "::1")
            asked = {"Host": self.headers.get("Host", "")}
            if "Origin" in self.headers:  # a page of another site, in a browser of this machine
                asked["Origin"] = self.headers["Origin"].rpartition("//")[2]
            for name, value in asked.items():
                host = re.sub(r":\d+$", "", value.lower()).strip("[]")
                if self.server.server_address[0] in local and host not in local:
                    self.drain()
                    raise Refused(f"{name}: {value}: this server only serves this machine", 403)
            work()
        except Refused as e:
            kind = "invalid_request_error" if e.status < 500 else "server_error"
            error = {"error": {"message": str(e), "type": kind, "code": e.status}}
            if not self.is_streaming:
                return self.answer(error, e.status)
            self.event(error)  # too late for a status
            self.chunk(b"")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True

    def do_GET(self):
        self.close_connection |= self.headers.get("Content-Length", "0") != "0"  # a body that nobody reads
        self.handled(self.get)

    def do_POST(self):
        self.handled(self.post)

    @property
    def page(self):
        return urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).rstrip("/")

    def get(self):
        model = {"id": self.server.name, "object": "model", "created": self.server.created}
        model["owned_by"] = "train_gpt"
        if self.page == "/v1/models":
            return self.answer({"object": "list", "data": [model]})
        if self.page == f"/v1/models/{self.server.name}":
            return self.answer(model)
        if self.page == "/health":
            up = self.server.engine.process.poll() is None
            return self.answer(
                {"status": "ok" if up else "the model's process has ended"}, 200 if up else 500
            )
        if self.page == "/tokenizer_info":
            info, special = self.server.engine.info, {"eos_token": END_OF_TEXT, "bos_token": END_OF_TEXT}
            sizes = {"vocab_size": info["vocabulary"], "model_max_length": info["sequence"]}
            return self.answer({**special, "pad_token": None, **sizes})
        raise Refused(f"{self.path}: there is no such page", 404)

    def body(self):
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 19):
            self.close_connection = True
            raise Refused("missing Content-Length", 411)
        if int(length) > LONGEST_BODY:
            self.drain()
            raise Refused(f"the request has {length} bytes, at most {LONGEST_BODY} are taken", 413)
        try:
            out = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as e:
            raise Refused(f"the request is not JSON: {e}") from e
        if not isinstance(out, dict):
            raise Refused("expected a JSON object")
        return out

    def post(self):
        body = self.body()
        engine = self.server.engine
        if self.page == "/v1/completions":
            return self.complete(body)
        if self.page == "/tokenize":
            if not isinstance(body.get("prompt"), str):
                raise Refused("prompt: expected a string")
            tokens = engine.tokenize(body["prompt"])
            return self.answer(
                {"tokens": tokens, "count": len(tokens), "max_model_len": engine.info["sequence"]}
            )

        if self.page == "/detokenize":
            if not is_tokens(body.get("tokens")):
                raise Refused("tokens: expected a list of tokens")
            tokens, pieces = engine.echo([body["tokens"]])[0] if body["tokens"] else ([], [])
            end_of_text = engine.info["end_of_text"]
            data = [END_OF_TEXT.encode() if t == end_of_text else piece for t, piece in zip(tokens, pieces)]
            return self.answer({"prompt": b"".join(data).decode(errors="replace")})

        raise Refused(f"{self.path}: there is no such page", 404)

    # ---- completions

    def complete(self, body):
        request, prompts = request_of(body)
        streams = flag_of(body, "stream")
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise Refused("stream_options: expected an object")
        engine, samples = self.server.engine, request["samples"]

        for i, prompt in enumerate(prompts):
            if isinstance(prompt, str) and END_OF_TEXT in prompt:
                prompts[i] = engine.tokenize(prompt)
        head = {
            "id": f"cmpl-{time.time_ns():x}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.server.name,
        }
        choices = [
            Choice(i, request["stop"], engine.info["end_of_text"], self.server.name_of)
            for i in range(len(prompts) * samples)
        ]

        asked, usage, ended = [], 0, False
        try:
            asked = [engine.ask({**request, "prompt": prompt}) for prompt in prompts]
            for at, (_, lines) in enumerate(asked):
                left = samples
                while left:
                    said = self.wait(lines)
                    if "error" in said:
                        raise Refused(said["error"], said.get("status", 400))
                    choice = choices[at * samples + said["sample"]]
                    if "prompt_tokens" in said:
                        usage += said["prompt_tokens"] * (said["sample"] == 0)
                        choice.begin(said)
                    elif "token" in said:
                        choice.take(said)
                    else:
                        choice.end(said["stopped"])
                        left -= 1
                    if streams:
                        self.stream(head, choice)

            ended = True
        finally:
            for number, _ in asked:
                engine.done(number, cancel=not ended)

        drawn = sum(choice.tokens for choice in choices)
        counts = {"prompt_tokens": usage, "completion_tokens": drawn, "total_tokens": usage + drawn}
        if not streams:
            made = [choice.json(choice.text) for choice in choices]
            return self.answer({**head, "choices": made, "usage": counts})

        if options.get("include_usage"):
            self.event({**head, "choices": [], "usage": counts})
        self.event("[DONE]")
        self.chunk(b"")

    looked = 0.0  # when the client was last seen

    def wait(self, lines):
        """The next line; a client that has gone ends the request."""
        while True:
            if time.monotonic() - self.looked > 1:
                self.looked = time.monotonic()
                poll = select.poll()
                poll.register(self.connection, select.POLLIN)
                if poll.poll(0) and not self.connection.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError
            try:
                return lines.get(timeout=1)
            except queue.Empty:
                pass

    is_streaming = False

    def stream(self, head, choice):
        text = choice.fresh()
        if text or choice.finish:
            self.event({**head, "choices": [choice.json(text)]})

    def event(self, content):
        if not self.is_streaming:
            self.is_streaming = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-cache")
            if self.request_version == "HTTP/1.0":  # knows no chunks: the connection's end is the answer's
                self.close_connection = True
            else:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
        line = content if isinstance(content, str) else json.dumps(content)
        self.chunk(f"data: {line}\n\n".encode())

    def chunk(self, data):
        has_chunks = self.request_version != "HTTP/1.0"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if has_chunks else data)
        self.wfile.flush()
        if not data:
            self.is_streaming = False


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [this machine alone]")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port")
    parser.add_argument("--batch", type=int, default=8, help="texts that are generated at once")
    built = shlex.quote(str(Path(__file__).resolve().parent.parent / "train_gpt"))
    parser.add_argument(
        "--program",
        default=built,
        help="train_gpt with options of its own, or under mpirun; how tokens are drawn, each request says",
    )
    parser.add_argument("--tokenizer", help="bytes or PATH/vocab.bpe, where the checkpoint has none")
    options = parser.parse_args()
    if not 0 <= options.port <= 65535:
        parser.error(f"--port {options.port}: must be from 0 to 65535")
    command = [*shlex.split(options.program), "--resume", str(options.checkpoint), "--generate", "-.jsonl"]
    command += ["--tokenizer", options.tokenizer] if options.tokenizer else []
    engine = Engine([*command, "--batch", str(options.batch)])

    try:
        server = Server((options.host, options.port), engine, options.checkpoint.resolve().name)
    except OSError as e:
        engine.process.kill()
        sys.exit(f"serve.py: {options.host}:{options.port}: {e.strerror}: give another --port")

    host = f"[{options.host}]" if ":" in options.host else options.host
    print(f"serving {server.name} at http://{host}:{server.server_address[1]}/v1/completions", flush=True)
    try:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code = engine.process.wait()
        time.sleep(1)  # in which the clients are told
        sys.exit(f"serve.py: the model's process ended with {code}")
    except KeyboardInterrupt:
        engine.process.kill()


if __name__ == "__main__":
    main()
