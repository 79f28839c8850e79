#!/usr/bin/env python3
"""Checks ./convert: models of llm.c and nanoGPT, against the files as their programs write them.

    python3 scripts/test_convert.py BUILD          (a build for the CPU, with convert, train_gpt and tokenize)

The expected files are written here, from the formats' own descriptions: the tensors of a Hugging Face export,
which test.sh verifies, are stored as llm.c and nanoGPT store them. The last line is `N passed, N failed`.
"""

import io
import json
import math
import os
import pickle
import random
import re
import shutil
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

from over_ranks import check, finish, make_tokens, start

BUILD = os.path.abspath(sys.argv[1])
L, C, NH, T, V = 2, 24, 3, 16, 257
VP = 384  # llm.c pads to 128
OF_BLOCK = """ln_1.weight ln_1.bias attn.c_attn.weight attn.c_attn.bias attn.c_proj.weight attn.c_proj.bias
ln_2.weight ln_2.bias mlp.c_fc.weight mlp.c_fc.bias mlp.c_proj.weight mlp.c_proj.bias""".split()


def run(program, *arguments):
    return start(f"{BUILD}/{program}", 1, [str(word) for word in arguments])


def good(program, *arguments):
    done = run(program, *arguments)
    check(done.returncode == 0, f"{program} {arguments}: {done.stderr[-300:]}")
    return done.stdout


def refused(says, *arguments, program="convert"):
    done = run(program, *arguments)
    check(
        done.returncode == 1 and says in done.stderr, f"{arguments} does not say {says}: {done.stderr[-300:]}"
    )


def read_safetensors(path):
    """{name: (shape, values)}, of fp32."""
    data = open(path, "rb").read()
    (n,) = struct.unpack_from("<Q", data)
    out = {}
    for name, about in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            values = struct.unpack(f"<{(end - begin) // 4}f", data[8 + n + begin : 8 + n + end])
            out[name.removeprefix("transformer.")] = (about["shape"], list(values))
    return out


def write_safetensors(path, tensors, dtype="F32"):
    header, body = {}, b""
    for name, (shape, values) in tensors.items():
        stored = map(bf16, values) if dtype == "BF16" else values
        data = struct.pack(f"<{len(values)}{dict(F64='d', F32='f', F16='e', BF16='H')[dtype]}", *stored)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)


def transposed(tensor):
    (rows, columns), values = tensor
    return [columns, rows], [values[r * columns + c] for c in range(columns) for r in range(rows)]


def as_linear(tensors):
    """Hugging Face's tensors with linear weights (out, in), as llm.c and nanoGPT have them."""
    is_linear = lambda name: name.endswith("weight") and "attn.c_" in name or "mlp.c_" in name  # noqa: E731
    return {
        name: transposed(tensor) if is_linear(name) and len(tensor[0]) == 2 else tensor
        for name, tensor in tensors.items()
    }


def bf16(x):
    """Rounded to nearest even, as bits."""
    (u,) = struct.unpack("<I", struct.pack("<f", x))
    return (u + 0x7FFF + (u >> 16 & 1)) >> 16


def llmc_file(tensors, version):
    """As llm.c's train_gpt2.py writes it."""
    header = [20240326, version, T, V, L, NH, C, VP] + [0] * 248
    (_, wte), (_, wpe) = tensors["wte.weight"], tensors["wpe.weight"]
    values = wte + [0.0] * ((VP - V) * C) + wpe
    for name in OF_BLOCK:
        for layer in range(L):
            values += tensors[f"h.{layer}.{name}"][1]
    values += tensors["ln_f.weight"][1] + tensors["ln_f.bias"][1]
    body = struct.pack(f"<{len(values)}f", *values)
    if version == 5:
        body = struct.pack(f"<{len(values)}H", *map(bf16, values))
    return struct.pack("<256i", *header) + body


def make_model(work):
    choose = random.Random(2).choice
    make_tokens(BUILD, f"{work}/text", "".join(choose("abcd efg") for _ in range(3000)))
    sizes = ["--layers", L, "--hidden", C, "--heads", NH, "--sequence", T, "--batch", 4, "--steps", 3]
    good("train_gpt", "--train", f"{work}/text.bin", *sizes, "--learning-rate", 0.1, "--save", f"{work}/own")
    exported = export(work, "own")
    ids = json.load(open(f"{work}/own-hf/vocab.json"))
    check(
        sorted(ids.values()) == list(range(257))
        and all(ids[chr(c)] == c for c in range(33, 127))
        and ids["Ġ"] == 32,
        "transformers' tokenizer of bytes: a token for each",
    )
    check(open(f"{work}/own-hf/merges.txt").read() == "#version: 0.2\n", "without merges")
    config = json.load(open(f"{work}/own-hf/config.json"))
    ends = [config[name] for name in ("bos_token_id", "eos_token_id")]
    longest = json.load(open(f"{work}/own-hf/tokenizer_config.json"))["model_max_length"]
    check(ends == [V - 1, V - 1] and longest == T, f"the end of text, the longest text: {ends} {longest}")
    (header,) = struct.unpack("<Q", open(f"{work}/own-hf/model.safetensors", "rb").read(8))
    check(header % 8 == 0, f"tensors begin at a multiple of 8 bytes, behind a header of {header}")
    torch_saved = f"{work}/ckpt.pt"
    with zipfile.ZipFile(torch_saved, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    refused(
        "was written by torch.save, expected safetensors: make it with",
        *f"--from-nanogpt {torch_saved} --heads 2 --to {work}/none".split()
    )
    return exported


def export(work, name):
    good("convert", "--from-checkpoint", f"{work}/{name}", "--to-huggingface", f"{work}/{name}-hf")
    return read_safetensors(f"{work}/{name}-hf/model.safetensors")


def forward(tensors, tokens):
    """Log-probabilities of each next token: GPT-2 as its paper and transformers define it, from the tensors
    of a Hugging Face export, in plain Python."""
    of = lambda name: tensors[name][1]  # noqa: E731
    head = C // NH

    def norm(x, name):
        mean = sum(x) / C
        scale = 1 / math.sqrt(sum((v - mean) ** 2 for v in x) / C + 1e-5)
        return [(v - mean) * scale * w + b for v, w, b in zip(x, of(f"{name}.weight"), of(f"{name}.bias"))]

    def linear(x, name):  # Conv1D: weights (in, out)
        weight, bias = of(f"{name}.weight"), of(f"{name}.bias")
        n = len(bias)
        return [bias[j] + sum(v * weight[i * n + j] for i, v in enumerate(x)) for j in range(n)]

    def gelu(v):
        return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))

    def softmax(scores):
        most = max(scores)
        exps = [math.exp(s - most) for s in scores]
        return [e / sum(exps) for e in exps]

    row = lambda name, i: of(name)[i * C : (i + 1) * C]  # noqa: E731
    x = [[a + b for a, b in zip(row("wte.weight", t), row("wpe.weight", i))] for i, t in enumerate(tokens)]
    for layer in range(L):
        qkv = [linear(norm(v, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn") for v in x]
        for i in range(len(x)):
            out = []
            for h in range(NH):
                q, k, v = (slice(part * C + h * head, part * C + (h + 1) * head) for part in range(3))
                dots = [sum(a * b for a, b in zip(qkv[i][q], qkv[j][k])) for j in range(i + 1)]
                weights = softmax([d / math.sqrt(head) for d in dots])
                out += [sum(w * qkv[j][v][c] for j, w in enumerate(weights)) for c in range(head)]
            x[i] = [a + b for a, b in zip(x[i], linear(out, f"h.{layer}.attn.c_proj"))]
        for i, v in enumerate(x):
            up = [gelu(u) for u in linear(norm(v, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")]
            x[i] = [a + b for a, b in zip(v, linear(up, f"h.{layer}.mlp.c_proj"))]
    logs = []
    for v, target in zip(x, tokens[1:]):
        last = norm(v, "ln_f")
        dots = [sum(a * b for a, b in zip(last, row("wte.weight", t))) for t in range(V)]
        logs.append(math.log(softmax(dots)[target]))
    return logs


def test_meaning(work, tensors):
    """An export means to GPT-2 what the checkpoint means to ./train_gpt: the same likelihoods."""
    context, continuation = "abc fe", "gab dcc"
    question = {"context": context, "continuations": [continuation, "ef"], "gold": 0}
    Path(f"{work}/question.jsonl").write_text(json.dumps(question) + "\n")
    made = f"--task requests --from {work}/question.jsonl --vocabulary bytes --output {work}/question.eval"
    good("tasks", *made.split())
    run_it = f"--resume {work}/own --evaluate {work}/question.eval --results {work}/results.json"
    good("train_gpt", *run_it.split())
    scores = json.loads(Path(f"{work}/results.json").read_text())
    want = sum(forward(tensors, list((context + continuation).encode()))[len(context) - 1 :])
    [[[got, _]]] = scores["log_likelihoods"].values()  # one task, one document
    check(abs(want - got) < 1e-4 * abs(want), f"log-likelihood of the export: {want}, evaluated: {got}")


def test_llmc(work, tensors):
    linear = as_linear(tensors)
    for version, dtype in ((3, "fp32"), (5, "bf16")):
        want, path = llmc_file(linear, version), f"{work}/{dtype}.bin"
        good("convert", "--from-checkpoint", f"{work}/own", "--to-llmc", path, "--dtype", dtype)
        check(open(path, "rb").read() == want, f"what is written for llm.c in {dtype}")
        good("convert", "--from-llmc", path, "--to", f"{work}/{dtype}")
        back = export(work, dtype)
        if version == 3:
            check(back == tensors, "a model of llm.c in fp32 is the same to the last bit")
        else:
            rounded = {
                name: (shape, [struct.unpack("<f", struct.pack("<I", bf16(x) << 16))[0] for x in values])
                for name, (shape, values) in tensors.items()
            }
            check(back == rounded, "a model of llm.c in bf16 is what bf16 holds")

    whole = open(f"{work}/fp32.bin", "rb").read()
    patch = lambda at, value: whole[: 4 * at] + struct.pack("<i", value) + whole[4 * at + 4 :]  # noqa: E731
    for damaged, says in (
        (whole[:-1], "truncated or damaged: has"),
        (whole + b"more", "truncated or damaged: has"),
        (whole[:500], "is not a model file of llm.c"),
        (patch(0, 20240520), "is not a model file of llm.c"),
        (patch(1, 1), "has version 1, expected 3"),
        (patch(4, -1), "is damaged: has -1"),
        (patch(4, 2**30), "is damaged: has 1073741824"),
        (patch(5, 5), "is damaged: V 257"),
        (patch(7, 200), "is damaged: V 257, Vp 200"),
        (patch(6, 1 << 24), "is damaged"),
    ):
        open(f"{work}/damaged.bin", "wb").write(damaged)
        refused(says, "--from-llmc", f"{work}/damaged.bin", "--to", f"{work}/none")

    # sizes whose product is that of a small file, modulo 2^64
    sizes = [20240326, 3, 2085471, 1, 4097, 1, 16774976, 16777216] + [0] * 248
    with open(f"{work}/damaged.bin", "wb") as f:
        f.write(struct.pack("<256i", *sizes))
        f.truncate(1024 + 2487808)

    refused("truncated or damaged", "--from-llmc", f"{work}/damaged.bin", "--to", f"{work}/none")
    refused("already exists", "--from-checkpoint", f"{work}/own", "--to-llmc", f"{work}/fp32.bin")
    refused("already holds checkpoints", "--from-llmc", f"{work}/fp32.bin", "--to", f"{work}/own")
    refused(
        "expected fp32 or bf16",
        "--from-checkpoint", f"{work}/own", "--to-llmc", f"{work}/x", "--dtype", "fp8"
    )


def test_nanogpt(work, tensors):
    linear = as_linear(tensors)
    state = {f"_orig_mod.transformer.{name}": tensor for name, tensor in linear.items()}
    state["_orig_mod.lm_head.weight"] = linear["wte.weight"]
    path = f"{work}/nano.safetensors"
    write_safetensors(path, state)
    said = good("convert", "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/nano")
    check("GELU uses erf" in said, "the difference is said")
    check(export(work, "nano") == tensors, "a model of nanoGPT is the same to the last bit")
    # the other types: subnormal and the largest numbers too
    shape, values = linear["wpe.weight"]
    odd = {"wpe.weight": (shape, [-3e-6, 65504.0, 2.0**-24, -0.75] + values[4:])}
    as_half = lambda x: struct.unpack("<e", struct.pack("<e", x))[0]  # noqa: E731
    as_float = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]  # noqa: E731
    as_bf16 = lambda x: struct.unpack("<f", struct.pack("<I", bf16(x) << 16))[0]  # noqa: E731
    for dtype, rounded in (("F64", as_float), ("F16", as_half), ("BF16", as_bf16)):
        write_safetensors(path, {**linear, **odd}, dtype)
        good("convert", "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/nano-{dtype}")
        want = {k: (shape, [rounded(x) for x in values]) for k, (shape, values) in {**tensors, **odd}.items()}
        check(export(work, f"nano-{dtype}") == want, f"a model in {dtype}")
    # rows that are no tokens, as nanoGPT has them behind GPT-2's
    padded = ([V + 7, C], linear["wte.weight"][1] + [0.5] * 7 * C)
    tied = {name: padded for name in state if name.endswith(("wte.weight", "lm_head.weight"))}
    write_safetensors(path, state | tied)
    options = ["--heads", NH, "--tokenizer", "bytes", "--to", f"{work}/nano-padded"]
    said = good("convert", "--from-nanogpt", path, *options)
    check("the last 7 rows of the token embedding" in said, f"rows that are left out: {said}")
    check(export(work, "nano-padded") == tensors, "a padded model, with its tokens' vocabulary, is the same")
    weights = {name: tensor for name, tensor in state.items() if not name.endswith(".bias")}
    write_safetensors(path, weights)
    said = good("convert", "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/nano-0")
    check("the model has no biases" in said, "a model without biases is told")

    want = {
        name: (shape, [0.0] * len(values) if name.endswith("bias") else values)
        for name, (shape, values) in tensors.items()
    }
    check(export(work, "nano-0") == want, "biases that are not there are 0")
    refused("--heads 5 does not divide", "--from-nanogpt", path, "--heads", 5, "--to", f"{work}/none")
    refused("requires --heads", "--from-nanogpt", path, "--to", f"{work}/none")
    strange = {**state, "_orig_mod.transformer.h.0.attn.rotary.inv_freq": ([4], [0.0] * 4)}
    write_safetensors(path, strange)
    refused("h.0.attn.rotary.inv_freq, which is not GPT-2's", "--from-nanogpt", path, "--heads", NH, "--to",
            f"{work}/none")  # fmt: skip
    (shape, values), head = linear["wte.weight"], "_orig_mod.lm_head.weight"
    untied = "its lm_head.weight is not its wte.weight"
    for other in ((shape, values[:-1] + [values[-1] + 1e-3]), ([V - 1, C], values[:-C])):
        write_safetensors(path, {**state, head: other})
        refused(untied, "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/none")
    wrapped = ("_orig_mod.module.transformer.", "module._orig_mod.transformer.", "module.transformer.")
    for prefix in (*wrapped, "transformer.", ""):
        write_safetensors(path, {prefix + name: tensor for name, tensor in linear.items()})
        name = f"nano-{prefix.replace('.', '')}"
        good("convert", "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/{name}")
        check(export(work, name) == tensors, f"tensors behind {prefix}")
    masks = {f"h.0.attn.{name}": ([1], [0.0]) for name in ("bias", "masked_bias")}  # of older versions
    write_safetensors(path, {**linear, **masks})
    good("convert", "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/masks")
    check(export(work, "masks") == tensors, "masks are no parameters")
    write_safetensors(path, {**state, "transformer.wpe.weight": linear["wpe.weight"]})
    refused("are the same tensor", "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/none")

    # Hugging Face folders: a model in several files, and one that does not say whether its head is tied
    folder = f"{work}/untied"
    good("convert", "--from-checkpoint", f"{work}/own", "--to-huggingface", folder)
    os.rename(f"{folder}/model.safetensors", f"{work}/whole")
    open(f"{folder}/model.safetensors.index.json", "w").close()
    refused(
        "the model is in several files, expected one", "--from-huggingface", folder, "--to", f"{work}/none"
    )
    os.rename(f"{work}/whole", f"{folder}/model.safetensors")
    config = json.load(open(f"{folder}/config.json"))
    for key, value, says in (
        ("layer_norm_epsilon", 1e-6, "has layer_norm_epsilon 1e-06, this program computes 1e-5"),
        ("n_inner", 3 * C, f"has n_inner {3 * C}, this program computes 4 * n_embd"),
        ("scale_attn_by_inverse_layer_idx", True, "has scale_attn_by_inverse_layer_idx true"),
        ("scale_attn_weights", False, "has scale_attn_weights false, this program computes true"),
        ("add_cross_attention", True, "has add_cross_attention true, this program computes false"),
        ("tie_word_embeddings", False, "has tie_word_embeddings false, this program computes true"),
        ("model_type", "llama", "has model_type llama, this program computes gpt2"),
        ("activation_function", "relu", "has activation_function relu, this program computes gelu_new"),
    ):
        json.dump({**config, key: value}, open(f"{folder}/config.json", "w"))
        refused(says, "--from-huggingface", folder, "--to", f"{work}/none")
    del config["tie_word_embeddings"]
    json.dump(config, open(f"{folder}/config.json", "w"))
    write_safetensors(f"{folder}/model.safetensors", {**tensors, "lm_head.weight": (shape, [0.5] * V * C)})
    refused(untied, "--from-huggingface", folder, "--to", f"{work}/none")

    # what safetensors' save_model writes: of the tied names, the first
    head_alone = {name: tensor for name, tensor in linear.items() if name != "wte.weight"}
    write_safetensors(path, {**head_alone, "lm_head.weight": linear["wte.weight"]})
    good("convert", "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/head-alone")
    check(export(work, "head-alone") == tensors, "embeddings under the head's name")

    # files that the format forbids, and values that no model can have
    write_safetensors(path, linear)
    whole = open(path, "rb").read()
    nan = {**linear, "wpe.weight": (linear["wpe.weight"][0], [math.nan] + linear["wpe.weight"][1][1:])}
    shared = whole.replace(b'"data_offsets": [0, ', b'"data_offsets": [4, ')
    for data, says in (
        (whole + b"x" * 100, "truncated or damaged"),
        (whole[:-4], "truncated or damaged"),
        (shared, "begins at offset 4 of the data, expected 0"),
        (nan, "wpe.weight has a value that is not finite"),
    ):
        write_safetensors(path, data) if isinstance(data, dict) else open(path, "wb").write(data)
        refused(says, "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/none")
    many = ([V + 2000, C], linear["wte.weight"][1] + [0.5] * 2000 * C)
    write_safetensors(path, {**linear, "wte.weight": many})
    cut = ["--tokenizer", "bytes", "--to", f"{work}/none"]
    refused("which is more than padding", "--from-nanogpt", path, "--heads", NH, *cut)
    write_safetensors(path, {**linear, "wte.weight": ([1, C], linear["wte.weight"][1][:C])})
    refused("has a vocabulary of 1", "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/none")

    missing = {name: tensor for name, tensor in state.items() if "h.1.mlp.c_fc.bias" not in name}
    write_safetensors(path, missing)
    refused("has no tensor h.1.mlp.c_fc.bias", "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/none")
    write_safetensors(path, {name: tensor for name, tensor in state.items() if "ln_f.bias" not in name})
    refused("has no tensor ln_f.bias", "--from-nanogpt", path, "--heads", NH, "--to", f"{work}/none")


def test_tokenizers(work, _tensors):
    """A tokenizer comes back from a Hugging Face folder, if it makes that folder's tokens."""
    with open(f"{work}/vocab.bpe", "w") as f:
        f.write("#version: 0.2\n" + "".join(f"a {c}\n" for c in "bcd"))
    options = ["--vocabulary", f"{work}/vocab.bpe", "--output", f"{work}/merged"]
    good("tokenize", *options, f"{work}/text.txt")
    same = open(f"{work}/merged.vocab.bpe").read() == open(f"{work}/vocab.bpe").read()
    check(same, "the vocabulary stands beside its tokens")
    sizes = ["--layers", 1, "--hidden", 8, "--heads", 1, "--sequence", 8, "--batch", 1, "--steps", 1]
    words = ["--train", f"{work}/merged.bin", *sizes, "--tokenizer", f"{work}/vocab.bpe"]
    good("train_gpt", *words, "--save", f"{work}/merged")
    # tokens of another vocabulary of the same size, which would train and score nonsense
    with open(f"{work}/other.bpe", "w") as f:
        f.write("#version: 0.2\n" + "".join(f"{c} a\n" for c in "bcd"))
    other = ["--vocabulary", f"{work}/other.bpe", "--output", f"{work}/other"]
    good("tokenize", *other, f"{work}/text.txt")
    with open(f"{work}/own.jsonl", "w") as f:
        f.write('{"context": "a", "continuations": ["b"]}\n')
    asked = ["--task", "requests", "--from", f"{work}/own.jsonl", "--vocabulary", f"{work}/other.bpe"]
    good("tasks", *asked, "--output", f"{work}/other.eval")

    # nothing that is read is written onto, and no file of one's own goes
    with open(f"{work}/mine.answers", "w") as f:
        f.write("my own answers\n")
    good("tokenize", "--vocabulary", "bytes", "--output", f"{work}/mine", f"{work}/text.txt")
    check(open(f"{work}/mine.answers").read() == "my own answers\n", "a file of another kind stays")
    own = open(f"{work}/own.jsonl").read()
    onto = ["--output", f"{work}/o", "--requests", f"{work}/own.jsonl"]
    refused("would overwrite", *asked, *onto, program="tasks")
    refused("would overwrite", *asked, "--output", f"{work}/other.bpe", program="tasks")
    check(open(f"{work}/own.jsonl").read() == own, "requests are not written onto their own")
    into = ["--output", f"{work}/o", "--requests", f"{work}/text.txt"]
    refused("exists, but is no requests", *asked, *into, program="tasks")
    for _ in range(2):
        good("tasks", *asked, "--output", f"{work}/o", "--requests", f"{work}/o.json")
    every = ["--task", "all", "--from", work, "--vocabulary", "bytes", "--output", f"{work}/every"]
    refused("--form mtnlgg: no task has it: choose one of ", *every, "--form", "mtnlgg", program="tasks")
    for items in ('"b", [], "c"', '"b", ["c"]', '"b", {}', '["b"]', '"b", null'):
        with open(f"{work}/items.jsonl", "w") as f:
            f.write(f'{{"context": "a", "continuations": [{items}]}}\n')
        listed = ["--task", "requests", "--from", f"{work}/items.jsonl", "--vocabulary", "bytes"]
        refused("continuations", *listed, "--output", f"{work}/items.eval", program="tasks")
    model = ["--plan", "--layers", 1, "--hidden", 8, "--heads", 1, "--sequence", 8, "--hardware", "dgx-a100"]
    for option, says in (("--plan-json", "is no plan"), ("--timeline", "is no timeline")):
        shutil.copy(f"{work}/text.txt", f"{work}/notes.json")
        refused(says, *model, option, f"{work}/notes.json", program="train_gpt")
        os.remove(f"{work}/notes.json")
        for _ in range(2):
            good("train_gpt", *model, option, f"{work}/notes.json")
        os.remove(f"{work}/notes.json")
    for answers in ("train", "validation"):
        shutil.copy(f"{work}/text.txt", f"{work}/t.{answers}.answers")
        given = ["--vocabulary", "bytes", "--output", f"{work}/t", f"{work}/t.{answers}.answers"]
        refused("would overwrite", *given, program="tokenize")

    for text, says in (
        ('{"text": ""}\n{"text": ""}\n', "there is no text: 2 documents, all empty"),
        ("BZh91AY&SY", "is bzip2"),
        ('{"text": "a", "prompt": "b", "answer": "c"}', 'has "text", "prompt" and "answer": leave out'),
    ):
        with open(f"{work}/odd.jsonl", "w") as f:
            f.write(text)
        given = ["--vocabulary", "bytes", "--output", f"{work}/odd", f"{work}/odd.jsonl"]
        refused(says, *given, program="tokenize")
    with open(f"{work}/odd.txt", "w") as f:
        f.write("BZhang wrote this.\n")
    good("tokenize", "--vocabulary", "bytes", "--output", f"{work}/odd", f"{work}/odd.txt")

    # lines of other systems, and blank ones; a line behind the first piece; an end of text at the end of a
    # part that is decoded at once; answers of tokens that are no more
    def decoded_of(name, contents, *more):
        with open(f"{work}/{name}", "w", newline="") as f:
            f.write(contents)
        good("tokenize", "--vocabulary", "bytes", "--output", f"{work}/odd", f"{work}/{name}", *more)
        return good("tokenize", "--decode", f"{work}/odd.bin")

    got = decoded_of("odd.jsonl", '{"text": "a"}\r\n\r\n{"text": "b"}\r\n')
    check(got == "a<|endoftext|>b", f"lines that end with CR LF: {got}")
    first = "a" * ((1 << 20) - 1)
    got = decoded_of("odd.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in (first, "b")))
    check(got == first + "<|endoftext|>b", f"an end of text at the end of a part: {got[-20:]}")
    with open(f"{work}/wrong.jsonl", "w") as f:
        f.write((json.dumps({"text": "a" * 100}) + "\n") * 30000 + "wrong\n")
    wrong = ["--vocabulary", "bytes", "--output", f"{work}/wrong", f"{work}/wrong.jsonl"]
    refused("wrong.jsonl line 30001: ", *wrong, program="tokenize")
    open(f"{work}/odd.jsonl", "w").write('{"text": "a"}\nwrong\n')
    wrong = ["--vocabulary", "bytes", "--output", f"{work}/wrong", f"{work}/own.jsonl", f"{work}/odd.jsonl"]
    open(f"{work}/own.jsonl", "w").write('{"text": "a"}\n' * 3)
    refused("odd.jsonl line 2: ", *wrong, program="tokenize")  # of the second file
    with open(f"{work}/blanks.bpe", "w") as f:  # which part of a text is encoded at once changes nothing
        f.write("#version: 0.2\n\u0120 \u0120\n")
    with open(f"{work}/blanks.txt", "w") as f:
        f.write(first + "   b")
    blanks = ["--vocabulary", f"{work}/blanks.bpe", "--output", f"{work}/blanks", f"{work}/blanks.txt"]
    said = good("tokenize", *blanks)
    check(f": {len(first) + 3} tokens of text" in said, f"blanks between two parts: {said}")
    decoded_of("odd.jsonl", '{"prompt": "a", "answer": "b"}\n')
    check(os.path.exists(f"{work}/odd.answers"), "answers")
    decoded_of("odd.txt", "a text")
    check(not os.path.exists(f"{work}/odd.answers"), "no answers of other tokens stay")
    open(f"{work}/empty.txt", "w").close()
    got = decoded_of("odd.txt", "a text", f"{work}/empty.txt", f"{work}/odd.txt")
    check(got == "a text<|endoftext|><|endoftext|>a text", f"a file is a document, be it empty: {got}")
    decoded_of("odd.txt", "a word " * 1000)
    whole = ["--vocabulary", "bytes", "--validation", 0.1, f"{work}/odd.txt"]
    good("tokenize", *whole, "--output", f"{work}/cut")
    held = len(good("tokenize", "--decode", f"{work}/cut.validation.bin"))
    check(690 < held < 710, f"a tenth of 7,000 characters is held out: {held}")
    lines, held = "".join(f'{{"text": "{i}"}}\n' for i in range(100)), []
    for seed in (1, 2):
        decoded_of("odd.jsonl", lines, "--validation", 0.5, "--seed", seed)
        held.append(good("tokenize", "--decode", f"{work}/odd.validation.bin"))
    check(held[0] != held[1], f"another seed holds others out: {held}")

    for line, says in (
        ('{"context": "a", "continuations": ["b", "c"]}', 'has no "gold", which --shots need'),
        ('{"context": "a", "continuations": [1, 2], "gold": 0}', "expected a string"),
    ):
        with open(f"{work}/shots.jsonl", "w") as f:
            f.write(line + "\n" + line.replace('"a"', '"b"') + "\n")
        given = ["--task", "requests", "--from", f"{work}/shots.jsonl", "--vocabulary", "bytes"]
        refused(says, *given, "--output", f"{work}/shots.eval", "--shots", "1", program="tasks")

    # what acc_norm divides by: characters without the leading blank; RACE's four options, and again behind
    # what stands before any answer
    def asked_of(*words, made="made.eval"):
        good("tasks", "--vocabulary", "bytes", "--output", f"{work}/made.eval", *words)
        data = open(f"{work}/{made}", "rb").read()
        documents, n, _, about = struct.unpack_from("<4Q", data, 16)
        begin = 64 + about + 48 * documents
        requests = [struct.unpack_from("<5q", data, begin + 40 * i) for i in range(n)]
        return json.loads(data[64 : 64 + about]), requests

    with open(f"{work}/own.jsonl", "w") as f:
        for context in "ab":
            one = {"context": context, "continuations": [" \u00e9 b", "c"], "gold": 0}
            f.write(json.dumps(one) + "\n")
    requested = ["--task", "requests", "--from", f"{work}/own.jsonl", "--shots", 1, "--limit", 1]
    about, made = asked_of(*requested)
    check([each[4] for each in made] == [3, 1], f"characters of one document's continuations: {made}")
    check(made[0][0] == made[1][0], f"one context, one list of tokens: {made}")
    check(about["shots"] == 1 and about["priors"] is False, f"what is asked: {about}")
    for split, n in (("test", 2), ("train", 10)):
        os.makedirs(f"{work}/of/race/{split}/high")
        for i in range(n):
            article = {"article": f"{i}", "questions": ["Q"], "answers": ["A"], "options": [list("abcd")]}
            Path(f"{work}/of/race/{split}/high/{i}.txt").write_text(json.dumps(article))
    about, made = asked_of("--task", "race", "--from", f"{work}/of/race", "--form", "mtnlg", "--limit", 1)
    wanted = [len("Article: A\n\nQ\nAnswer:")] * 4 + [len("Answer:")] * 4
    good_lengths = [each[1] for each in made] == wanted and about["priors"] is True
    check(good_lengths, f"contexts, and what stands before any answer: {made} {about}")
    os.remove(f"{work}/made.eval")
    every = ["--task", "all", "--from", f"{work}/of", "--form", "mtnlg", "--limit", 1, "--shots", "few"]
    about, made = asked_of(*every, made="made.eval/race-mtnlg.eval")
    shown = about["form"], about["shots"], len(made)
    check(shown == ("mtnlg", 10, 8), f"of all tasks, as many shots as were published: {about}")

    # one's own requests are encoded as lm-evaluation-harness does: white space at a context's end belongs to
    # the continuation, and a merge across the border is refused
    scores = []
    pairs = (("a ", "b"), ("a", " b"), ("a\u3000\x1c", "b"), ("a", "\u3000\x1cb"), ("a", "b"))
    for context, continuation in pairs:
        with open(f"{work}/own.jsonl", "w") as f:
            f.write(json.dumps({"context": context, "continuations": [continuation]}) + "\n")
        asked[5:] = [f"{work}/vocab.bpe", "--output", f"{work}/own.eval"]
        if continuation == "b" and context == "a":
            refused("has no token of its own", *asked, program="tasks")
            break
        good("tasks", *asked)
        out = ["--results", f"{work}/own.json"]
        good("train_gpt", "--resume", f"{work}/merged", "--evaluate", f"{work}/own.eval", *out)
        scores.append(json.load(open(f"{work}/own.json")))
    texts = [re.findall(r'"log_likelihoods?": ([^,}\]]*-[^,}\]]*)', json.dumps(score)) for score in scores]
    for one, other in (texts[:2], texts[2:]):
        check(one and one == other, f"the same tokens, the same scores: {texts}")

    merged, tokens = f"{work}/merged.bin", f"{work}/other.bin"
    resumed = ["--resume", f"{work}/merged", "--steps", 2, "--save", "no"]
    for says, arguments in (
        ("files of one set must agree", ["--train", merged, tokens, *sizes]),
        ("sets of one blend must agree", ["--train", f"1:{merged}", f"1:{tokens}", *sizes]),
        ("is in tokens of vocabulary bpe", [*words, "--validation", tokens]),
        ("is in tokens of vocabulary bpe", [*resumed, "--train", tokens, "--other-data", "yes"]),
        ("is in tokens of vocabulary bpe", [*resumed, "--train", merged, "--validation", tokens]),
        ("is in tokens of vocabulary bpe", [*resumed[:2], "--evaluate", f"{work}/other.eval"]),
    ):
        refused(says, *arguments, program="train_gpt")
    decoded = ["--decode", tokens, "--vocabulary", f"{work}/vocab.bpe"]
    refused("is in tokens of vocabulary bpe", *decoded, program="tokenize")

    export(work, "merged")
    files = ("vocab.json", "merges.txt", "tokenizer_config.json")
    for name, size in (("own", V), ("merged", 260)):
        good("convert", "--from-huggingface", f"{work}/{name}-hf", "--to", f"{work}/{name}-back")
        export(work, f"{name}-back")
        there = [open(f"{work}/{name}-hf/{file}").read() for file in files]
        back = [open(f"{work}/{name}-back-hf/{file}").read() for file in files]
        check(there == back and len(json.loads(back[0])) == size, f"the tokenizer of {name} comes back")

    with open(f"{work}/blank.bpe", "w") as f:  # empty lines, which transformers refuses, are not copied
        f.write("#version: 0.2\n\n" + "".join(f"a {c}\n\n" for c in "bcd"))
    good("convert", "--from-huggingface", f"{work}/merged-hf", "--tokenizer", f"{work}/blank.bpe", "--to",
         f"{work}/blank")  # fmt: skip
    export(work, "blank")
    lines = open(f"{work}/blank-hf/merges.txt").read().split("\n")
    check(lines == ["#version: 0.2", "a b", "a c", "a d", ""], f"merges: {lines}")

    with open(f"{work}/merged-hf/merges.txt", "w") as f:  # the first line may be a merge already
        f.write("a b\na c\na d\n")
    said = good("convert", "--from-huggingface", f"{work}/merged-hf", "--to", f"{work}/merged-plain")
    check("note" not in said, f"merges.txt without #version: {said}")

    # tokenizer.json alone, as newer versions of transformers write it: merges as pairs or as before
    ids = json.load(open(f"{work}/merged-hf/vocab.json"))
    end = {"id": ids["<|endoftext|>"], "content": "<|endoftext|>", "special": True}
    whole = {
        "version": "1.0", "added_tokens": [end], "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "model": {"type": "BPE", "vocab": ids, "merges": [["a", "b"], ["a", "c"], ["a", "d"]]},
    }  # fmt: skip
    alone = f"{work}/alone-hf"
    os.mkdir(alone)
    for file in ("config.json", "model.safetensors"):
        shutil.copy(f"{work}/merged-hf/{file}", alone)
    for name, part, key, value, says in (
        ("pairs", "model", "type", "BPE", None),
        ("words", "model", "merges", ["a b", "a c", "a d"], None),
        ("added", "model", "vocab", {token: i for token, i in ids.items() if token != end["content"]}, None),
        ("unigram", "model", "type", "Unigram", 'has "type" Unigram, expected BPE'),
        ("split", "pre_tokenizer", "type", "Split", 'has "type" Split, expected ByteLevel'),
        ("prefixed", "pre_tokenizer", "add_prefix_space", True, 'has "add_prefix_space" true, expected'),
        ("unsplit", "pre_tokenizer", "use_regex", False, 'has "use_regex" false, expected true'),
        ("normalized", "normalizer", "type", "NFC", 'has "normalizer" an object, expected none'),
        ("whole-words", "model", "ignore_merges", True, 'has "ignore_merges" true, expected false'),
        ("suffixed", "model", "end_of_word_suffix", "</w>", 'has "end_of_word_suffix" </w>, expected ""'),
        ("prefixes", "model", "continuing_subword_prefix", "", None),
        ("end-first", "model", "vocab", {token: (i + 1) % len(ids) for token, i in ids.items()},
         'GPT-2\'s order (bytes, merges, the end of text) has'),
        ("more", "model", "vocab", {**ids, "zz": len(ids)}, "GPT-2's order"),
        ("fewer", "model", "merges", [["a", "b"], ["a", "c"]], "GPT-2's order"),
        ("lacking", "model", "vocab", {token: i for token, i in ids.items() if token != "ad"},
         "has 259 tokens, but its merges make 260"),
    ):  # fmt: skip
        changed = {**whole, part: {**(whole[part] or {}), key: value}}
        open(f"{alone}/tokenizer.json", "w").write(json.dumps(changed))
        said = good("convert", "--from-huggingface", alone, "--to", f"{work}/alone-{name}")
        check(("is left out" in said and says in said) if says else "note" not in said, f"{name}: {said}")
        written = ["--vocabulary", f"{alone}/tokenizer.json", "--output", f"{work}/of-json"]
        written.append(f"{work}/text.txt")
        if says:
            refused(says, *written, program="tokenize")
            continue
        good("tokenize", *written)
        same = [open(f"{work}/{file}.bin", "rb").read() for file in ("merged", "of-json")]
        check(same[0] == same[1], f"tokens by tokenizer.json, {name}")
        export(work, f"alone-{name}")
        check(json.load(open(f"{work}/alone-{name}-hf/vocab.json")) == ids, f"{name}: it comes back")
    other_end = {**whole, "added_tokens": [{**end, "content": "</s>"}]}
    open(f"{alone}/tokenizer.json", "w").write(json.dumps(other_end))
    refused('has "content" </s>', *written, program="tokenize")

    open(f"{alone}/tokenizer.json", "w").write(json.dumps({**whole, "added_tokens": [{**end, "id": 7}]}))
    refused("has token 7 \"<|endoftext|>\", GPT-2's order", *written, program="tokenize")

    # other tokens than merges.txt makes; merges that are none of GPT-2's; no JSON: left out, and said
    folder = f"{work}/merged-hf"
    ids = json.load(open(f"{folder}/vocab.json"))
    swapped = {**ids, "a": ids["b"], "b": ids["a"]}
    more = {**ids, "<|pad|>": 260}
    for number, (file, contents, says) in enumerate((
        ("vocab.json", json.dumps(swapped), "does not make the model's 260 tokens"),
        ("vocab.json", json.dumps(more), "does not make the model's 260 tokens"),
        ("vocab.json", "{", "not JSON"),
        ("merges.txt", "#version: 0.2\n\u2581 a\n", "line 2: has a character outside GPT-2's alphabet"),
        # 0xA1 alone is no UTF-8: not the byte's printed character, U+00A1
        ("merges.txt", "#version: 0.2\n\udca1 a\n", "line 2: has a character outside GPT-2's alphabet"),
        ("merges.txt", "#version: 0.2\n", "bytes does not make the model's 260 tokens"),
    )):  # fmt: skip
        kept = open(f"{folder}/{file}").read()
        open(f"{folder}/{file}", "w", errors="surrogateescape").write(contents)
        said = good("convert", "--from-huggingface", folder, "--to", f"{work}/without{number}")
        check(f"note: the tokenizer of {folder} is left out: " in said and says in said, f"{says}: {said}")
        check("no vocabulary is stored" in said, f"and what to do: {said}")
        open(f"{folder}/{file}", "w").write(kept)


def test_megatron(work, tensors):
    """A checkpoint as megatron-core stores it, written by torch.distributed.checkpoint."""
    try:
        import argparse

        import safetensors  # noqa: F401
        import torch
        import torch.distributed.checkpoint as dcp
    except ImportError:
        print("torch or safetensors is not here: from_megatron.py was not tried")
        return

    linear = {
        name: torch.tensor(values).reshape(shape) for name, (shape, values) in as_linear(tensors).items()
    }
    rows = lambda x: x.reshape(3, NH, C // NH, -1).transpose(0, 1).reshape(x.shape)  # noqa: E731
    stack = lambda name, move=lambda x: x: torch.stack(  # noqa: E731
        [move(linear[f"h.{layer}.{name}"]) for layer in range(L)]
    )
    state = {
        "embedding.word_embeddings.weight": torch.cat([linear["wte.weight"], torch.ones(7, C)]),
        "embedding.position_embeddings.weight": linear["wpe.weight"],
        "decoder.layers.mlp.linear_fc1._extra_state/shard_0_2": b"",
    }

    for kind in ("weight", "bias"):
        layers = "decoder.layers."
        state[f"decoder.final_layernorm.{kind}"] = linear[f"ln_f.{kind}"]
        state[f"{layers}self_attention.linear_qkv.{kind}"] = stack(f"attn.c_attn.{kind}", rows)
        state[f"{layers}self_attention.linear_proj.{kind}"] = stack(f"attn.c_proj.{kind}")
        state[f"{layers}self_attention.linear_qkv.layer_norm_{kind}"] = stack(f"ln_1.{kind}")
        state[f"{layers}mlp.linear_fc1.{kind}"] = stack(f"mlp.c_fc.{kind}")
        state[f"{layers}mlp.linear_fc1.layer_norm_{kind}"] = stack(f"ln_2.{kind}")
        state[f"{layers}mlp.linear_fc2.{kind}"] = stack(f"mlp.c_proj.{kind}")

    folder = f"{work}/iter_0000001"
    weights = {k: v for k, v in state.items() if not isinstance(v, bytes)}
    args = {"num_layers": L, "hidden_size": C, "num_attention_heads": NH, "vocab_size": V}

    def converted(says=None, common="common.pt", **changed):
        """common: where the arguments are; an object among the tensors from megatron-core 0.19 on"""
        shutil.rmtree(folder, ignore_errors=True)
        arguments = {"args": argparse.Namespace(**{**args, **changed})}
        objects = {} if common == "common.pt" else {common: [arguments]}
        planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
        dcp.save({**weights, **objects}, checkpoint_id=folder, planner=planner, no_dist=True)
        if common == "common.pt":
            torch.save(arguments, f"{folder}/common.pt")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "from_megatron.py")
        shutil.rmtree(f"{work}/mega-hf", ignore_errors=True)
        done = start(sys.executable, 1, [script, folder, f"{work}/mega-hf"])
        right = done.returncode == (1 if says else 0) and (says or "") in done.stderr
        check(right, f"from_megatron.py, {changed}: {done.stdout} {done.stderr[-400:]}")

    class Harm:
        def __reduce__(self):
            return os.mkdir, (f"{work}/harm",)

    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from from_megatron import Unpickler

    for data in (pickle.dumps(Harm()), b"\x80\x04\x8c\x13torch.serialization\x8c\x08os.mkdir\x93\x8c"
                 + bytes([len(f"{work}/harm")]) + f"{work}/harm".encode() + b"\x85R."):  # fmt: skip
        Unpickler(io.BytesIO(data)).load()
        check(not os.path.exists(f"{work}/harm"), "a checkpoint that would run code runs none")
    counted = {"tokenizer_type": "NullTokenizer", "null_tokenizer_eod_id": V - 1}
    for how in ({"common": "common_state/shard_0_1"}, counted, {}):
        converted(**how)
        check(read_safetensors(f"{work}/mega-hf/model.safetensors") == tensors, f"Megatron's is ours {how}")
    converted("has neither common.pt nor common_state", common="else/shard_0_1")
    converted()
    good("convert", "--from-huggingface", f"{work}/mega-hf", "--to", f"{work}/mega-own")
    check(export(work, "mega-own") == tensors, "and comes back from a checkpoint")
    refused(
        "is not empty: choose a new folder",
        *f"--from-checkpoint {work}/mega-own --to-huggingface {work}/mega-hf".split()
    )
    converted("has position embeddings (position_embedding_type rope)", position_embedding_type="rope")
    converted("has a gated MLP (swiglu True)", swiglu=True)
    converted("epsilon 1e-06", norm_epsilon=1e-6)
    converted("has experts", num_experts=8)
    converted("has sliding-window attention", window_size=(127, 0))
    converted("has another softmax (softmax_type off-by-one)", softmax_type="off-by-one")
    converted("has 2 layers, its arguments say 3", num_layers=L + 1)
    for name in "layernorm_zero_centered_gamma qk_l2_norm use_mup attention_output_gate quick_geglu".split():
        converted(f"({name} True), which this program does not support", **{name: True})
    converted(f"has kv_channels {2 * C // NH}", kv_channels=2 * C // NH)


def test_options(work, _tensors):
    for options in ([], ["--from-checkpoint", f"{work}/own"], ["--to", f"{work}/x"]):
        refused("expected a model to read and one to write", *options)
    refused("--heads does not go with", "--from-llmc", "a", "--to", "b", "--heads", 3)
    refused("--dtype does not go with", "--from-checkpoint", "a", "--to-huggingface", "b", "--dtype", "fp32")
    refused("--from-llmc does not go with", "--from-huggingface", "a", "--from-llmc", "b", "--to", "c")


def main():
    with tempfile.TemporaryDirectory() as work:
        tensors = make_model(work)
        for test in (test_meaning, test_llmc, test_nanogpt, test_tokenizers, test_megatron, test_options):
            test(work, tensors)
    finish()


main()
