#!/usr/bin/env python3
"""Checks scripts/serve.py against --evaluate and --generate: python3 scripts/test_serve.py FP64

(folder of a build for the CPU in fp64.) Log-probabilities equal --evaluate's to 1e-8, through this program's
own client and, where it is installed, lm-evaluation-harness's; texts equal --generate's. The last line is `N
passed, N failed`.
"""

import concurrent.futures
import http.client
import itertools
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

from completions import Choice, Refused, request_of
from over_ranks import check, environment, finish, json_lines, limited, make_tokens, start

BUILD = os.path.abspath(sys.argv[1])
SERVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "serve.py")
OVER_RANKS = f"mpirun -n 4 {BUILD}/train_gpt --tensor-parallel 2 --pipeline-parallel 2"
random.seed(5)


class Served:
    """A server over the model, for as long as the block lasts."""

    def __init__(self, work, *options, program=f"{BUILD}/train_gpt"):
        command = [sys.executable, SERVE, f"{work}/model", "--port", "0", "--program", program, *options]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        if not found:
            sys.exit(f"the server does not start: {line} {self.process.stderr.read()[-500:]}")
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()

    def ask(self, body, path="/v1/completions", method="POST", **headers):
        """Status and content."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        content = answer.read().decode()
        connection.close()
        if answer.headers["Content-Type"] == "text/event-stream":
            return answer.status, [line[6:] for line in content.split("\n") if line.startswith("data: ")]
        return answer.status, json.loads(content)

    def text(self, **body):
        return self.ask(body)[1]["choices"][0]["text"]


def program(name, *arguments, **more):
    done = start(f"{BUILD}/{name}", 1, arguments, **more)
    check(done.returncode == 0, f"{name} {arguments[:2]}: {done.stderr[-300:]}")
    return done.stdout


def make_model(work):
    text = " ".join(random.choice(["ab", "ab", "été", "cd"]) for _ in range(1500))
    make_tokens(BUILD, f"{work}/text", text)
    sizes = "--layers 4 --hidden 16 --heads 4 --sequence 300 --batch 4 --micro-batch 2 --learning-rate 1e-2"
    program("train_gpt", "--train", f"{work}/text.bin", *sizes.split(), "--steps", "30", "--save",
            f"{work}/model")  # fmt: skip
    with open(f"{work}/questions.jsonl", "w") as f:
        for i in range(12):  # the first prompt is scored in two passes
            length = random.randint(1, 25) if i else 235
            context = "".join(random.choice("abcd é") for _ in range(length))[:length] + "b"
            ends = [" " + "".join(random.choice("abcdé") for _ in range(random.randint(1, 9)))]
            ends += [random.choice("ab ")]  # some of which are the likeliest
            f.write(json.dumps({"context": context, "continuations": ends, "gold": 0}) + "\n")
    asked = ("--task", "requests", "--from", f"{work}/questions.jsonl", "--vocabulary", "bytes")
    program("tasks", *asked, "--output", f"{work}/questions.eval")
    program("train_gpt", "--resume", f"{work}/model", "--evaluate", f"{work}/questions.eval", "--results",
            f"{work}/results.json")  # fmt: skip


def scores_of(work):
    """[(context, continuation, log-likelihood of --evaluate, whether --generate goes on so)]"""
    documents = json_lines(f"{work}/questions.jsonl")
    results = json.load(open(f"{work}/results.json"))
    (likelihoods,), (lines,) = results["log_likelihoods"].values(), results["lines"].values()
    asked = [
        (documents[line - 1]["context"], end, likelihood)
        for line, row in zip(lines, likelihoods)
        for end, likelihood in zip(documents[line - 1]["continuations"], row)
    ]
    likeliest = generated(
        work, [{"prompt": c, "tokens": len(end.encode()), "temperature": 0} for c, end, _ in asked]
    )
    return [(*each, each[1] == text) for each, text in zip(asked, likeliest)]


def score(choice, context):
    """As lm-evaluation-harness takes it from an answer; bytes are the tokens."""
    n, logprobs = len(context.encode()), choice["logprobs"]
    own = logprobs["token_logprobs"][n:-1]
    likeliest = [max(top.values()) for top in logprobs["top_logprobs"][n:-1]]
    return sum(own), own == likeliest


def test_scores(work):
    want = scores_of(work)
    check(any(greedy for *_, greedy in want) and len(want) == 24, "some continuations are the likeliest")
    scored = {"max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    for options, name in ((("--batch", "3"), f"{BUILD}/train_gpt"), ((), OVER_RANKS)):
        with Served(work, *options, program=name) as server:
            status, all_at_once = server.ask({"prompt": [c + e for c, e, *_ in want], **scored})
            check(status == 200 and len(all_at_once["choices"]) == 24, f"24 prompts at once: {status}")
            for choice, (context, end, likelihood, greedy) in zip(all_at_once["choices"], want):
                got, likeliest = score(choice, context)
                close = abs(got - likelihood) < 1e-8 * max(1, abs(likelihood))
                check(close and likeliest == greedy, f"{context}|{end}: {got}, expected {likelihood}")
            tokens = list((want[0][0] + want[0][1]).encode())
            status, one = server.ask({"prompt": tokens, **scored})
            same = one["choices"][0]["logprobs"] == all_at_once["choices"][0]["logprobs"]
            check(same, "a prompt given as tokens has the same log-probabilities")
            check(one["usage"] == {"prompt_tokens": len(tokens), "completion_tokens": 1,
                                   "total_tokens": len(tokens) + 1}, f"{one['usage']}")  # fmt: skip

            # a prompt counts once; 16 tokens where nothing else is said; a prompt's tokens count as repeated
            thrice = server.ask({"prompt": "ab", "n": 3, "max_tokens": 2, "temperature": 1})[1]["usage"]
            check(thrice["prompt_tokens"] == 2 and 3 <= thrice["completion_tokens"] <= 6, f"n: {thrice}")
            greedy = {"prompt": "ab a", "temperature": 0}
            usual = server.ask(greedy)[1]["usage"]["completion_tokens"]
            check(usual == 16, f"{usual} tokens, expected 16 where nothing else is said")
            firsts = [server.text(**greedy, max_tokens=1, repetition_penalty=by) for by in (1, 1000)]
            check(firsts[0] == "b" and firsts[1] not in "ab ", f"a token of the prompt again: {firsts}")


def test_large(work):
    """More than the pipes to the model and back hold at once."""
    with Served(work) as server:
        asked = {"prompt": ["ab cd " * 7] * 400, "max_tokens": 1, "echo": True, "logprobs": 20, "seed": 1}
        status, answer = server.ask(asked)
        check(status == 200 and len(answer["choices"]) == 400, f"400 prompts: {status}")
        first = answer["choices"][0]["logprobs"]["token_logprobs"]
        check(len(first) == 43 and answer["usage"]["total_tokens"] == 43 * 400, "each is whole")


def test_harness(work):
    """lm-evaluation-harness's own client."""
    try:
        from lm_eval.api.instance import Instance
        from lm_eval.models.openai_completions import LocalCompletionsAPI
    except ImportError:
        print("lm-evaluation-harness is not here: its client was not tried")
        return

    want = scores_of(work)
    with Served(work) as server:
        client = LocalCompletionsAPI(
            model="model", base_url=f"http://127.0.0.1:{server.port}/v1/completions", max_length=300,
            batch_size=5, num_concurrent=1,
        )  # fmt: skip
        asked = [Instance("loglikelihood", {}, (c, e), i) for i, (c, e, *_) in enumerate(want)]
        got = client.loglikelihood(asked)
        for (likelihood, likeliest), (context, end, wanted, greedy) in zip(got, want):
            close = abs(likelihood - wanted) < 1e-8 * max(1, abs(wanted))
            check(
                close and likeliest == greedy, f"the harness: {context}|{end}: {likelihood}, not {wanted}"
            )
        until = Instance("generate_until", {}, ("ab ab", {"until": [" "], "max_gen_toks": 9}), 0)
        text = client.generate_until([until])[0]
        check(text == server.text(prompt="ab ab", max_tokens=9, temperature=0, stop=" "), f"until: {text!r}")


def generated(work, prompts):
    """Texts of --generate."""
    with open(f"{work}/prompts.jsonl", "w") as f:
        f.writelines(json.dumps(prompt) + "\n" for prompt in prompts)
    said = program("train_gpt", "--resume", f"{work}/model", "--generate", f"{work}/prompts.jsonl")
    return [json.loads(line)["text"] for line in said.encode("latin-1").decode().split("\n") if line]


def test_texts(work):
    prompts = [{"prompt": "ab é", "tokens": 20, "temperature": 0}, {"prompt": "cd", "tokens": 320, "seed": 7}]
    prompts += [{"prompt": "é", "tokens": 30, "seed": 3, "temperature": 1.5, "top_k": 9, "top_p": 0.9}]
    prompts += [{"prompt": "ab", "tokens": 40, "seed": 5, "stop": ["dd", "b"]}]
    asked = [{"max_tokens" if k == "tokens" else k: v for k, v in prompt.items()} for prompt in prompts]
    want = generated(work, prompts)

    # --generate writes what is no UTF-8 as U+FFFD too, but may join several bytes of it: compared without
    plain = lambda text: text.replace("\ufffd", "")  # noqa: E731
    with Served(work, "--batch", "3") as server:
        for body, text in zip(asked, want):
            status, whole = server.ask(body)
            choice = whole["choices"][0]
            check(status == 200 and plain(choice["text"]) == plain(text), f"{body}: {choice}, not {text!r}")
            check(choice["finish_reason"] in ("stop", "length"), f"{body}: {choice['finish_reason']}")
            _, events = server.ask({**body, "stream": True, "stream_options": {"include_usage": True}})
            parts = [json.loads(event) for event in events[:-1]]
            check(events[-1] == "[DONE]", f"{body}: a stream ends with {events[-1]}")
            check(parts[-1]["usage"] == whole["usage"], f"{body}: {parts[-1]}, expected {whole['usage']}")
            joined = "".join(part["choices"][0]["text"] for part in parts[:-1])
            check(joined == choice["text"], f"{body}: in a stream {joined!r}, whole {choice['text']!r}")
            check(len(parts) > 5 or "stop" in body, f"{body}: a stream of {len(parts)} parts")

        check("stop" in server.ask(asked[3])[1]["choices"][0]["finish_reason"], "a stop is found")
        several = server.ask({"prompt": ["ab", "cd"], "n": 3, "seed": 2, "max_tokens": 8})[1]["choices"]
        check([c["index"] for c in several] == list(range(6)), "3 of each of 2 prompts")
        check(len({c["text"] for c in several[:3]}) > 1, "samples differ")

        # whatever else is generated at the same time
        many = [{"prompt": "ab cd"[: i % 5 + 1], "max_tokens": 30, "seed": i} for i in range(20)]
        alone = [server.text(**body) for body in many]
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            together = list(pool.map(lambda body: server.text(**body), many))
        check(alone == together, "texts are the same alone and among others")
        with concurrent.futures.ThreadPoolExecutor(100) as pool:  # a connection that is reset raises
            count = lambda i: server.ask({"prompt": "a" * i}, "/tokenize")[1]["count"]  # noqa: E731
            check(list(pool.map(count, range(100))) == list(range(100)), "a hundred clients at once")

        whole = "ab<|endoftext|>cd"
        for logprobs in (None, 2):
            body = {"prompt": whole, "echo": True, "max_tokens": 3, "temperature": 0, "logprobs": logprobs}
            text, plain_text = server.text(**body), server.text(**{**body, "echo": False})
            check(text == whole + plain_text, f"echo: {text!r}, not {whole!r} and {plain_text!r}")
        empty = server.text(prompt=None, max_tokens=5, temperature=0)
        check(empty == server.text(prompt="<|endoftext|>", max_tokens=5, temperature=0), "no prompt")

        for path, body, answer in (
            ("/tokenize", {"prompt": "a<|endoftext|>é"}, {"tokens": [97, 256, 195, 169]}),
            ("/tokenize", {"prompt": ""}, {"tokens": [], "count": 0, "max_model_len": 300}),
            ("/tokenize", {"prompt": "a<|endoftext|>" * 1001}, {"tokens": [97, 256] * 1001, "count": 2002}),
            ("/detokenize", {"tokens": [97, 256, 195, 169]}, {"prompt": "a<|endoftext|>é"}),
        ):
            got = server.ask(body, path)[1]
            check(answer.items() <= got.items(), f"{path} {body}: {got}")

        told = server.ask(None, "/tokenizer_info", "GET")[1]
        check(told["vocab_size"] == 257 and told["model_max_length"] == 300, f"the tokenizer: {told}")
        events = server.ask({"prompt": "a", "max_tokens": 2, "temperature": 0, "stream": True})[1]
        check(all(json.loads(event)["choices"] for event in events[:-1]), f"no usage unless asked: {events}")
        check(server.ask(None, "/v1/models", "GET")[1]["data"][0]["id"] == "model", "the model's name")
        for page in ("/v1/models/model", "/v1/models/model/?x=1", "/v1/models/%6Dodel"):
            check(server.ask(None, page, "GET")[1]["id"] == "model", f"one model: {page}")


def grown(stop, pieces, why="stop", said=None):
    """A text of these pieces: what is shown after each and at its end, and the choice."""
    choice, parts = Choice(0, stop, 256, str), []
    choice.begin(said or {})
    for piece in pieces:
        choice.take({"token": 1, "bytes": piece.hex(), "logprob": -0.5, "top": [[7, -0.1]]})
        parts.append(choice.fresh())
    choice.end(why)
    return [*parts, choice.fresh()], choice


def test_choices(_work):
    """A text as it grows, without a model; and what a request asks for."""
    for stop, pieces, why, shown in (
        (["bc"], [b"b", b"c"], "stop", ["", "", ""]),  # all of it may begin a stop string
        (["bc"], [b"ab", b"d"], "length", ["a", "bd", ""]),
        (["bc"], [b"ab"], "length", ["a", "b"]),
        (["c", "b"], [b"a", b"bc"], "stop", ["a", "", ""]),  # the first of two
        ([], [b"a\xc3", b"\xa9\xc3"], "length", ["a", "\u00e9", "\ufffd"]),
    ):
        parts, choice = grown(stop, pieces, why)
        check(parts == shown and choice.finish == why, f"{stop} in {pieces}: {parts} {choice.finish}")
    echoed = {"prompt": [120, 256, 46], "bytes": ["78", "", "2e"]}
    parts, choice = grown(["."], [b"a", b"."], said=echoed)
    whole = "".join(parts) == choice.text == "x<|endoftext|>.a"
    check(whole, f"a stop string in the prompt stops nothing: {parts} {choice.text}")
    logprobs = {"logprobs": [None, -1, -2], "top": [None, [], []]}
    _, choice = grown([], [b"a", b"\xc3\n"], said={**echoed, **logprobs})
    told = choice.json("")["logprobs"]
    check(told["text_offset"] == [0, 1, 14, 15, 16], f"where each token begins: {told}")
    check(told["tokens"][3:] == ["a", "bytes:\\xc3\\x0a"], f"tokens that are no text: {told}")
    check(told["top_logprobs"][3] == {"a": -0.5, "7": -0.1}, f"the token itself and the likeliest: {told}")

    request, prompts = request_of({"top_k": -1, "logprobs": 0, "stop": ["a" * 1000] * 16, "suffix": None})
    usual = {"tokens": 16, "temperature": 1, "top_p": 1, "top_k": 0, "repetition": 1, "samples": 1}
    usual |= {"echo": False, "stop": ["a" * 1000] * 16, "logprobs": 0}
    check(request == usual and prompts == ["<|endoftext|>"], f"where nothing else is said: {request}")
    for body, says in (
        ({"prompt": ["a"] * 9, "n": 128}, "more than 1024 texts"),
        ({"stop": ["a" * 1001]}, "at most 16 strings of at most 1000"),
        ({"suffix": ""}, "suffix: is not supported"),
    ):
        try:
            said = str(request_of(body))
        except Refused as e:
            said = str(e)
        check(says in said, f"{str(body)[:60]}: {said[:200]}")


def answered(work, lines, batch):
    """What the program says to these lines, of which the last has no end, behind its first."""
    words = ["--resume", f"{work}/model", "--generate", "-.jsonl", "--batch", batch]
    with open(f"{work}/lines.jsonl", "w") as f:
        f.write("\n".join(map(json.dumps, lines)))
    with open(f"{work}/lines.jsonl") as f:
        done = limited([f"{BUILD}/train_gpt", *words], 60, env=environment, stdin=f)
    return [json.loads(line) for line in done.stdout.splitlines()[1:]]


def test_lines(work):
    """Requests as lines, all there before the first answer (layers/inference/serve.h)."""
    text = {"id": 1, "prompt": "ab", "tokens": 40, "temperature": 0}
    score = {"prompt": "ab cd ab", "tokens": 0, "echo": True, "logprobs": 1}
    lines = [text, *({**score, "id": i} for i in range(2, 22))]
    for wrong in ({"echo": 1}, {"logprobs": 1 << 32}, {"logprobs": -1}, {"samples": 129}):
        lines.append({**text, "id": 30, **wrong})
    lines += [{**text, "id": 40}, {"cancel": 40}]  # before it has a place
    said = answered(work, lines, 2)
    check(sum("error" in line for line in said) == 4, "what is no echo, and no number of logprobs, samples")
    of_40 = [line for line in said if line["id"] == 40]
    check(of_40 == [{"id": 40, "sample": 0, "stopped": "cancelled"}], f"cancelled, waiting: {of_40[:3]}")

    # a text goes on while others are scored: between two of its tokens, at most one for each other place
    kinds = ["token" if "token" in line else "prompt" for line in said if {"token", "prompt"} & line.keys()]
    last = len(kinds) - kinds[::-1].index("token")
    check(kinds.count("token") == 40 and kinds.count("prompt") == 20, "all are answered")
    check(kinds[:last].count("prompt") == 20, "they are scored while it is drawn")
    longest = max(len(list(run)) for kind, run in itertools.groupby(kinds[:last]) if kind == "prompt")
    check(longest <= 2, f"{longest} prompts scored between two tokens")

    # texts without a seed differ; of all that are drawn at once, each has its own log-probabilities
    greedy = {"tokens": 2, "temperature": 0, "logprobs": 1}
    lines = [{"id": i, "prompt": "ab", "tokens": 12, "samples": 2} for i in (1, 2)]
    lines += [{**greedy, "id": 3, "prompt": "ab"}, {**greedy, "id": 4, "prompt": "ab a"}]
    drawn = [line for line in answered(work, lines, 6) if "token" in line]
    of = lambda i, s: tuple(t["token"] for t in drawn if (t["id"], t["sample"]) == (i, s))  # noqa: E731
    texts = {of(i, s) for i in (1, 2) for s in (0, 1)}
    check(len(texts) == 4 and of(3, 0) != of(4, 0), f"texts without a seed: {texts}")
    own = [t["top"] == [[t["token"], t["logprob"]]] for t in drawn if "logprob" in t]
    check(own == [True] * 4, f"the likeliest token is drawn: {own}")


def test_standard_input(work):
    """A prompt of any bytes, which may come later than --comm-timeout; a disk that fills up keeps answers."""
    words = ["--tensor-parallel", "2", "--comm-timeout", "2", "--resume", f"{work}/model", "--generate", "-"]
    process = subprocess.Popen(
        ["mpirun", "-n", "2", f"{BUILD}/train_gpt", *words, "--sample-tokens", "5"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    time.sleep(4)
    out, error = process.communicate(b"ab\0cd", timeout=60)
    check(process.returncode == 0 and out.startswith(b"ab\0cd"), f"{out} {error[-300:]}")

    with open(f"{work}/many.jsonl", "w") as f:
        f.writelines(json.dumps({"prompt": "ab" * 50, "tokens": 1}) + "\n" for _ in range(2000))
    words = ["--resume", f"{work}/model", "--generate", f"{work}/many.jsonl", "--results", f"{work}/out"]
    limit = f"trap '' XFSZ; ulimit -f 100; exec {BUILD}/train_gpt " + " ".join(words)
    done = limited(["bash", "-c", limit], 120, env=environment)
    check(done.returncode == 1 and "out.partial: has what came so far" in done.stderr, done.stderr[-300:])
    with open(f"{work}/out.partial", "rb") as f:
        check(f.read().count(b"\n") > 100, "answers before the disk was full")


def test_refused(work):
    with Served(work) as server:
        for body, status, says in (
            (b"{", 400, "is not JSON"),
            (b"[]", 400, "expected a JSON object"),
            (b"[" * 100000, 400, "is not JSON"),
            ({"prompt": 5}, 400, "prompt: expected a string"),
            ({"prompt": []}, 400, "prompt: expected a string"),
            ({"prompt": [1, "a"]}, 400, "prompt: expected a string"),
            ({"prompt": [1, 257]}, 400, "has token 257: the vocabulary has 0 to 256"),
            ({"prompt": [-1]}, 400, "has token -1"),
            ({"prompt": "a" * 301}, 400, "has 301 bytes, the model takes 300 tokens"),
            ({"prompt": [97] * 301}, 400, "has 301 tokens, the model takes 300"),
            ({"prompt": "a" * 301, "max_tokens": 0, "n": 2}, 400, "has 301 bytes, the model takes 300"),
            ({"prompt": "a", "seed": 9 * 10**15}, 400, "seed: has 9000000000000000"),
            ({"prompt": "a", "max_tokens": -1}, 400, "max_tokens: has -1"),
            ({"prompt": "a", "max_tokens": True}, 400, "max_tokens: has true"),
            ({"prompt": "a", "max_tokens": 1.5}, 400, "expected a whole number"),
            ({"prompt": "a", "temperature": "hot"}, 400, 'temperature: has "hot"'),
            ({"prompt": "a", "top_p": 0}, 400, "top_p: has 0"),
            ({"prompt": "a", "logprobs": 21}, 400, "logprobs: has 21"),
            ({"prompt": "a", "stop": [""]}, 400, "stop: expected a string"),
            ({"prompt": "a", "stop": ["b"] * 17}, 400, "stop: expected at most 16 strings"),
            (
                {"prompt": "a", "stream": True, "stream_options": [1]},
                400,
                "stream_options: expected an object",
            ),
            ({"prompt": "a", "stream": 1.5}, 400, "stream: has 1.5"),
            ({"prompt": "a", "best_of": 4}, 400, "best_of: is not supported"),
            ({"prompt": "a", "colour": 4}, 400, "colour: unknown"),
            ({"prompt": ["a"] * 1025}, 400, "more than 1024 texts"),
        ):
            got, content = server.ask(body)
            said = content["error"]["message"] if "error" in content else content
            check(got == status and says in said, f"{str(body)[:60]}: {got} {str(said)[:200]}")

        check(
            server.ask({}, "/v1/chat")[0] == 404 and server.ask(None, "/x", "GET")[0] == 404, "no such page"
        )
        check(server.ask(b" " * (17 << 20))[0] == 413, "a long body is answered")
        check(server.ask({"prompt": "a"}, Host="evil.example")[0] == 403, "another Host is refused")
        check(server.ask(b" " * (8 << 20), Host="evil.example")[0] == 403, "… and reads the answer")
        for origin, status in (("https://evil.example", 403), ("null", 403), ("http://localhost:3000", 200)):
            got = server.ask({"prompt": "a"}, Origin=origin)[0]
            check(got == status, f"a page of {origin}: {got}, expected {status}")
        for host in (f"LOCALHOST:{server.port}", f"[::1]:{server.port}"):
            check(server.ask({"prompt": "a"}, Host=host)[0] == 200, f"a Host {host}")
        # a body that is not read, or of unknown length, is no next request
        body = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
        for head in (f"GET /health HTTP/1.1\r\nContent-Length: {len(body)}", "POST /tokenize HTTP/1.1"):
            with socket.create_connection(("127.0.0.1", server.port), 60) as one:
                one.sendall(f"{head}\r\nHost: localhost\r\n\r\n{body}".encode())
                said = b"".join(iter(lambda: one.recv(65536), b""))
            check(said.count(b"HTTP/1.1 ") == 1, f"{head}: {said}")
        body = b'{"prompt": "a", "max_tokens": 3, "temperature": 0, "stream": true}'
        with socket.create_connection(("127.0.0.1", server.port), 60) as old:
            named = f"Host: 127.0.0.1:{server.port}\r\nContent-Length: {len(body)}\r\n\r\n"
            old.sendall(f"POST /v1/completions HTTP/1.0\r\n{named}".encode() + body)
            said = b"".join(iter(lambda: old.recv(65536), b""))
        check(b"chunked" not in said and said.endswith(b"data: [DONE]\n\n"), f"HTTP/1.0: {said[-200:]}")
        inert = {"prompt": "a", "best_of": 1, "logit_bias": {}, "presence_penalty": 0, "user": "me"}
        check(server.ask(inert)[0] == 200, "what changes nothing is taken")


def test_gone(work):
    """Clients that go free their places; a model that dies ends the server."""
    with Served(work, "--batch", "2") as server:
        for stream in (True, False):
            gone = []
            for _ in range(40):  # more than there are places, and than a client waits for
                connection = http.client.HTTPConnection("127.0.0.1", server.port)
                connection.request("POST", "/v1/completions", json.dumps(
                    {"prompt": "ab", "max_tokens": 1000000, "temperature": 0, "stream": stream}))  # fmt: skip
                gone.append(connection)
            for connection in gone:
                connection.close()
            check(server.ask({"prompt": "a", "max_tokens": 2})[0] == 200, f"places are free again, {stream}")
        check(server.ask(None, "/health", "GET")[0] == 200, "a healthy server")
        with socket.create_connection(("127.0.0.1", server.port), 60) as one:
            one.sendall(b"GET /\x1b[2J HTTP/1.0\r\nHost: localhost\r\n\r\n")
            check(b" 404 " in b"".join(iter(lambda: one.recv(65536), b"")), "a page that clears a terminal")
        stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        body = {"prompt": "ab", "max_tokens": 1000000, "temperature": 0, "stream": True}
        stream.request("POST", "/v1/completions", json.dumps(body))
        answer = stream.getresponse()
        check(answer.readline().startswith(b"data: "), "a stream begins")
        children = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True)
        os.kill(int(children.stdout.split()[0]), 9)
        said = answer.read()
        check(b'"error": {"message": "the model' in said, f"an error in a stream: {said[-200:]}")
        _, errors = server.process.communicate(timeout=60)
        check("\x1b" not in errors and "\\x1b[2J" in errors, "no client's words steer a terminal")
        check(server.process.returncode == 1 and "the model's process ended" in errors, errors[-300:])
        check("Traceback" not in errors, f"a client that has gone is no error: {errors[-900:]}")

    command = [sys.executable, SERVE, f"{work}/nothing", "--port", "0", "--program", f"{BUILD}/train_gpt"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    check(done.returncode == 1 and "nothing" in done.stderr, f"no checkpoint: {done.stderr[-300:]}")


def main():
    with tempfile.TemporaryDirectory() as work:
        make_model(work)
        tests = [test_scores, test_large, test_harness, test_texts, test_choices, test_lines]
        for test in (*tests, test_standard_input, test_refused, test_gone):
            print("==", test.__name__[5:], flush=True)
            test(work)
    finish()


main()
