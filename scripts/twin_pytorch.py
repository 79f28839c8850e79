#!/usr/bin/env python3
"""One training step of the same model in PyTorch, as fast as PyTorch makes it; prints a line of JSON. For
bench_gpu.py and bench_cpu.py.

On a GPU: bf16 autocast over fp32 parameters, torch.compile, fused AdamW, vocabulary padded to 50304, cuDNN's
attention, the loss in chunks of tokens whose logits are made again in backward. With --cpu: fp32, or with
--bf16 bf16 autocast, compiled as --mode says (none: eager), the loss in one piece. Gradients are clipped at
norm 1, as ours are.
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
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--model", required=True, choices=list(MODELS))
parser.add_argument("--micro-batch", type=int, required=True)
parser.add_argument("--mode", default="max-autotune-no-cudagraphs")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--chunk", type=int, default=8192, help="tokens whose logits exist at once")
parser.add_argument("--rehearse", action="store_true", help="small, on the CPU, not compiled")
parser.add_argument("--cpu", action="store_true", help="on the CPU, in fp32")
parser.add_argument("--bf16", action="store_true", help="on the CPU: bf16 autocast")
parser.add_argument("--sequence", type=int, help="another than the model's")
o = parser.parse_args()
size = MODELS[o.model]
L, C, NH, T = (2, 64, 1, 64) if o.rehearse else (size.layers, size.hidden, size.heads, size.sequence)
T = o.sequence or T
V, device = VOCABULARY, "cpu" if o.rehearse or o.cpu else "cuda"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        B = x.shape[0]
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

    def chunk_loss(self, x, targets):
        return F.cross_entropy(F.linear(x, self.wte.weight).float(), targets, reduction="sum")

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(T, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        x = self.ln_f(x).view(-1, C)
        if o.cpu:
            return self.chunk_loss(x, targets.view(-1)) / targets.numel()
        loss = 0
        for part, wanted in zip(x.split(o.chunk), targets.view(-1).split(o.chunk)):
            loss = loss + checkpoint(self.chunk_loss, part, wanted, use_reentrant=False)
        return loss / targets.numel()


torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
with torch.device(device):
    model = Model()
for p in model.parameters():
    if p.dim() > 1:
        nn.init.normal_(p, std=math.sqrt(1 / (3 * C)))
optimizer = torch.optim.AdamW(
    model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=not o.rehearse
)
on_cpu = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
attention = [SDPBackend.CUDNN_ATTENTION] if device == "cuda" else on_cpu
in_fp32 = o.cpu and not o.bf16
autocast = contextlib.nullcontext() if in_fp32 else torch.autocast(device, dtype=torch.bfloat16)
step_of = model if o.mode == "none" else torch.compile(model, mode=o.mode)
tokens = torch.randint(50257, (o.micro_batch, T + 1), device=device)
inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
times = []
for _ in range(o.steps):
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.time()
    with sdpa_kernel(attention), autocast:  # its context is good for one step only
        loss = step_of(inputs, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    value = loss.item()
    times.append(time.time() - begin)
seconds = statistics.median(times[len(times) // 2 :])
print(
    json.dumps(
        {
            "tokens_per_second": o.micro_batch * T / seconds,
            "loss": value,
            "parameters": sum(p.numel() for p in model.parameters()),
            "torch": torch.__version__,
        }
    )
)
