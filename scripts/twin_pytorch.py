#!/usr/bin/env python3
"""Training steps of the same model in PyTorch, as fast as PyTorch makes them: a line of JSON for each form,
as soon as it is timed. For first_contact.py and bench_cpu.py.

A form is MODE or MODE:ATTENTION. MODE is torch.compile's (none: eager); ATTENTION, on a GPU, is cudnn or
flash (PyTorch's own). On a GPU: bf16 autocast over fp32 parameters, fused AdamW, vocabulary padded to 50304.
With --cpu: fp32, or with --bf16 bf16 autocast. Gradients are clipped at norm 1, as ours are.

--gemms SECONDS: instead, the 15 GEMMs of the model's step alone, each repeated for so many seconds.
"""

import argparse
import contextlib
import json
import math
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from models import MODELS, VOCABULARY
from torch.nn.attention import SDPBackend, sdpa_kernel

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--model", required=True, choices=list(MODELS))
parser.add_argument("--micro-batch", type=int, required=True)
parser.add_argument("--forms", nargs="+", default=["default:cudnn"])
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--gemms", type=float, help="time the step's GEMMs alone")
parser.add_argument("--rehearse", action="store_true", help="small, on the CPU, not compiled")
parser.add_argument("--cpu", action="store_true", help="on the CPU, in fp32")
parser.add_argument("--bf16", action="store_true", help="on the CPU: bf16 autocast")
parser.add_argument("--sequence", type=int, help="another than the model's")
o = parser.parse_args()
size = MODELS[o.model]
L, C, NH, T = (2, 64, 1, 64) if o.rehearse else (size.layers, size.hidden, size.heads, size.sequence)
T = o.sequence or T
B, V, device = o.micro_batch, VOCABULARY, "cpu" if o.rehearse or o.cpu else "cuda"


def wait():
    if device == "cuda":
        torch.cuda.synchronize()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        q, k, v = (
            part.view(B, T, NH, C // NH).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(T, C)
        self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(C)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(T, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x).view(-1, C), self.wte.weight)
        return F.cross_entropy(logits.float(), targets.view(-1))


def time_form(form):
    mode, _, attention = form.partition(":")
    torch.manual_seed(0)
    with torch.device(device):
        model = Model()
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=math.sqrt(1 / (3 * C)))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=not o.rehearse
    )
    on_gpu = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    on_cpu = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    backends = [on_gpu[attention or "cudnn"]] if device == "cuda" else on_cpu
    in_fp32 = o.cpu and not o.bf16
    autocast = contextlib.nullcontext() if in_fp32 else torch.autocast(device, dtype=torch.bfloat16)

    compiled = mode != "none" and not o.rehearse
    step_of = torch.compile(model, mode=mode) if compiled else model
    tokens = torch.randint(50257, (B, T + 1), device=device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    times = []
    for _ in range(o.steps):
        wait()
        begin = time.time()
        if mode == "reduce-overhead" and compiled:
            torch.compiler.cudagraph_mark_step_begin()
        with sdpa_kernel(backends), autocast:  # its context is good for one step only
            loss = step_of(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        times.append(time.time() - begin)

    return {
        "form": form,
        "tokens_per_second": B * T / statistics.median(times[len(times) // 2 :]),
        "loss": value,
        "first_step": times[0],  # seconds, with the compilation
        "parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
    }


def time_gemm(x, y, least):
    """seconds of x @ y, repeated for so long that a GPU comes to its clocks under load"""
    x @ y
    wait()
    begin, took, calls, burst = time.time(), 0, 0, 1
    while not calls or took < least:
        for _ in range(burst):
            x @ y
        wait()
        calls, took = calls + burst, time.time() - begin
        burst = max(1, int(0.01 * calls / took))
    return took / calls


def time_gemms(least):
    N, kind = B * T, torch.bfloat16
    for name, inputs, outputs in (
        ("qkv", C, 3 * C),
        ("out", C, C),
        ("up", C, 4 * C),
        ("down", 4 * C, C),
        ("logits", C, V),
    ):
        x, dy, w = (
            torch.rand(shape, device=device).sub(0.5).to(kind)
            for shape in ((N, inputs), (N, outputs), (outputs, inputs))
        )
        for what, left, right in (("forward", x, w.t()), ("dx", dy, w), ("dw", dy.t(), x)):
            took = time_gemm(left, right, least)
            tflops = 2e-12 * N * inputs * outputs / took
            print(json.dumps({"gemm": f"{name}, {what}", "us": took * 1e6, "tflops": tflops}), flush=True)


torch.set_float32_matmul_precision("high")
if o.gemms is not None:
    time_gemms(o.gemms)
else:
    for form in o.forms:
        try:
            row = time_form(form)
        except Exception as e:  # one form that fails leaves the others
            row = {"form": form, "error": f"{type(e).__name__} {e}"[:200]}
        print(json.dumps(row), flush=True)
        if device == "cuda":
            torch._dynamo.reset()  # forgets what was compiled, and the memory of its graphs
            torch.cuda.empty_cache()
