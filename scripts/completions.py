"""OpenAI's completions: what a request asks for, and a text as it grows; for serve.py."""

import codecs
import json

END_OF_TEXT = "<|endoftext|>"
MOST_TEXTS = 1024  # of one request


class Refused(Exception):
    def __init__(self, message, status=400):
        super().__init__(message)
        self.status = status


# ---- requests --------------------------------------------------------------------------------------------


def is_tokens(value):
    return isinstance(value, list) and all(type(item) is int for item in value)


def prompts_of(value):
    """[text or tokens]"""
    if isinstance(value, str) or (is_tokens(value) and value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(v, str) or is_tokens(v) for v in value):
        return value
    raise Refused("prompt: expected a string, a list of tokens, or a list of either")


def number_of(body, name, default, least, most, kind=float):
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise Refused(f"{name}: has {json.dumps(value)}, expected a number from {least:g} to {most:g}")
    if kind is int and value != int(value):
        raise Refused(f"{name}: has {value}, expected a whole number")
    return kind(value)


# OpenAI's other parameters; those of INERT would change what is drawn: only their defaults are accepted
IGNORED = {"model", "user", "stream_options"}
INERT = {"presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "suffix": None, "best_of": 1}
KNOWN = {"prompt", "max_tokens", "temperature", "top_p", "n", "stop", "seed", "echo", "logprobs", "stream"}
KNOWN |= {"top_k", "repetition_penalty"}


def flag_of(body, name):
    if body.get(name) not in (None, True, False):
        raise Refused(f"{name}: has {json.dumps(body[name])}, expected true or false")
    return bool(body.get(name))


def request_of(body):
    """The engine's request for each prompt of a completions request, and the prompts."""
    for name, value in body.items():
        if name not in KNOWN | IGNORED | set(INERT):
            raise Refused(f"{name}: unknown, this server has {', '.join(sorted(KNOWN))}")
        if name in INERT and value not in (None, INERT[name]):
            raise Refused(f"{name}: is not supported here: leave it out")

    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) and s for s in stop):
        raise Refused("stop: expected a string, or a list of strings")
    if len(stop) > 16 or any(len(s) > 1000 for s in stop):
        raise Refused("stop: expected at most 16 strings of at most 1000 characters")

    request = {
        "tokens": number_of(body, "max_tokens", 16, 0, 1e6, int),
        "temperature": number_of(body, "temperature", 1.0, 0, 100),
        "top_p": number_of(body, "top_p", 1.0, 1e-9, 1),
        "top_k": number_of(body, "top_k", 0, -1, 1e9, int),
        "repetition": number_of(body, "repetition_penalty", 1.0, 1e-3, 1e3),
        "samples": number_of(body, "n", 1, 1, 128, int),
        "echo": flag_of(body, "echo"),
        "stop": stop,
    }
    request["top_k"] = max(0, request["top_k"])  # -1: all

    for name, most in (("logprobs", 20), ("seed", 9 * 10**15 - 1)):
        if body.get(name) is not None and body[name] is not False:
            request[name] = number_of(body, name, 0, 0, most, int)
    prompts = prompts_of(END_OF_TEXT if body.get("prompt") is None else body["prompt"])
    if len(prompts) * request["samples"] > MOST_TEXTS:
        raise Refused(f"prompt: asks for more than {MOST_TEXTS} texts at once")
    return request, prompts


def shown(token, data, end_of_text):
    """A token as OpenAI writes it in logprobs."""
    if token == end_of_text:
        return END_OF_TEXT
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class Choice:
    """A text being generated: what has arrived, and how much of it may be shown."""

    def __init__(self, index, stop, end_of_text, names):
        self.index, self.stop, self.end_of_text, self.names = index, stop, end_of_text, names
        self.decoder = codecs.getincrementaldecoder("utf8")("replace")
        self.text, self.given, self.tokens = "", 0, 0
        self.start = 0  # of what is generated
        self.held = 0  # characters at the end that may begin a stop string
        self.finish = None
        self.logprobs = None

    def take_tokens(self, tokens, data, logprobs, top):
        if self.logprobs is None:
            self.logprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, piece, logprob, likely in zip(tokens, data, logprobs, top):
            self.logprobs["text_offset"].append(len(self.text))
            name = shown(token, piece, self.end_of_text)
            self.logprobs["tokens"].append(name)
            self.logprobs["token_logprobs"].append(logprob)
            named = None if likely is None else {self.names(t): x for t, x in likely}
            self.logprobs["top_logprobs"].append(None if named is None else {name: logprob, **named})
            self.text += self.decoder.decode(piece)

    def begin(self, said):
        """What is echoed."""
        if "prompt" not in said:
            return
        data = [bytes.fromhex(one) for one in said["bytes"]]
        end = END_OF_TEXT.encode()  # shown in a prompt; what is generated ends there
        data = [end if t == self.end_of_text else piece for t, piece in zip(said["prompt"], data)]
        if "logprobs" in said:
            self.take_tokens(said["prompt"], data, said["logprobs"], said["top"])
        else:
            self.text += self.decoder.decode(b"".join(data))
        self.start = len(self.text)

    def take(self, said):
        self.tokens += 1
        data = bytes.fromhex(said["bytes"])
        if "logprob" in said:
            self.take_tokens([said["token"]], [data], [said["logprob"]], [said["top"]])
        else:
            self.text += self.decoder.decode(data)
        tail = self.text[self.start :]
        ends = ((s, n) for s in self.stop for n in range(1, min(len(s), len(tail) + 1)))
        begun = [len(tail) - n for s, n in ends if tail.endswith(s[:n])]
        found = [tail.find(s) for s in self.stop if s in tail]
        self.held = len(tail) - min(begun + found, default=len(tail))

    def end(self, why):
        self.text += self.decoder.decode(b"", final=True)
        self.held = 0
        self.finish = "length" if why == "length" else "stop"
        if why != "stop":
            return
        ends = [self.text.find(s, self.start) for s in self.stop]
        cut = min((at for at in ends if at >= 0), default=len(self.text))
        self.text = self.text[:cut]

    def fresh(self):
        """What may be shown and has not been yet."""
        end = max(self.given, len(self.text) - self.held)
        out, self.given = self.text[self.given : end], end
        return out

    def json(self, text):
        logprobs, self.logprobs = self.logprobs, None
        return {"text": text, "index": self.index, "logprobs": logprobs, "finish_reason": self.finish}
