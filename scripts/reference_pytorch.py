#!/usr/bin/env python3
"""Writes scripts/reference_pytorch.json: what PyTorch computes, in fp64, for a small model.

logits, loss, the gradient of every parameter, and the losses of ten AdamW steps; test_gpt compares ours with
them. The model is written from its definition, with torch's own layer_norm, gelu, softmax and autograd;
parameters are set by a formula (see `value`) that test_gpt repeats. Needs PyTorch. Run: python3
scripts/reference_pytorch.py
"""

import json
import math
import os
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("reference_pytorch.py: needs PyTorch: pip install torch")

torch.set_default_dtype(torch.float64)
L, C, NH, T, V, B = 2, 8, 2, 5, 11, 2
STEPS, RATE, DECAY, CLIP, BETAS, EPSILON = 10, 1e-2, 0.1, 1.0, (0.9, 0.95), 1e-8


def value(tensor, shape, one):
    """Element i of the t-th tensor of the table: 0.3 sin(1 + t + 0.7 i), plus 1 in a layer norm's weight."""
    i = torch.arange(math.prod(shape))
    return ((1.0 if one else 0.0) + 0.3 * torch.sin(1 + tensor + 0.7 * i)).reshape(shape)


def make_parameters():
    HS = C // NH
    shapes = [("wte.weight", (V, C)), ("wpe.weight", (T, C))]
    for l in range(L):
        shapes += [
            (f"h.{l}.{n}", s)
            for n, s in (
                ("ln_1.weight", (C,)),
                ("ln_1.bias", (C,)),
                ("attn.c_attn.weight", (NH, 3, HS, C)),
                ("attn.c_attn.bias", (NH, 3, HS)),
                ("attn.c_proj.weight", (C, C)),
                ("attn.c_proj.bias", (C,)),
                ("ln_2.weight", (C,)),
                ("ln_2.bias", (C,)),
                ("mlp.c_fc.weight", (4 * C, C)),
                ("mlp.c_fc.bias", (4 * C,)),
                ("mlp.c_proj.weight", (C, 4 * C)),
                ("mlp.c_proj.bias", (C,)),
            )
        ]

    shapes += [("ln_f.weight", (C,)), ("ln_f.bias", (C,))]
    return {
        n: torch.nn.Parameter(value(t, s, n.split(".")[-2].startswith("ln") and n.endswith("weight")))
        for t, (n, s) in enumerate(shapes)
    }


def forward(p, tokens):
    norm = lambda x, n: F.layer_norm(x, (C,), p[n + ".weight"], p[n + ".bias"], 1e-5)
    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    for l in range(L):
        h = f"h.{l}."
        qkv = torch.einsum("btc,hksc->kbhts", norm(x, h + "ln_1"), p[h + "attn.c_attn.weight"])
        q, k, v = qkv + p[h + "attn.c_attn.bias"].permute(1, 0, 2)[:, None, :, None, :]
        scores = (q @ k.transpose(-1, -2) / math.sqrt(C // NH)).masked_fill(~mask, -math.inf)
        o = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)
        x = x + F.linear(o, p[h + "attn.c_proj.weight"], p[h + "attn.c_proj.bias"])
        up = F.linear(norm(x, h + "ln_2"), p[h + "mlp.c_fc.weight"], p[h + "mlp.c_fc.bias"])
        x = x + F.linear(F.gelu(up, approximate="tanh"), p[h + "mlp.c_proj.weight"], p[h + "mlp.c_proj.bias"])
    return norm(x, "ln_f") @ p["wte.weight"].T


p = make_parameters()
windows = torch.tensor([[(3 * i + i * i // 4 + 5 * b) % V for i in range(T + 1)] for b in range(B)])
tokens, targets = windows[:, :-1], windows[:, 1:]
decayed = [v for n, v in p.items() if n.endswith("weight") and not n.split(".")[-2].startswith("ln")]
others = [v for n, v in p.items() if not any(v is d for d in decayed)]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
    lr=RATE,
    betas=BETAS,
    eps=EPSILON,
)
out = {
    "torch": torch.__version__,
    "layers": L,
    "hidden": C,
    "heads": NH,
    "sequence": T,
    "vocabulary": V,
    "batch": B,
    "learning_rate": RATE,
    "weight_decay": DECAY,
    "clip": CLIP,
    "windows": windows.flatten().tolist(),
    "losses": [],
}
for step in range(STEPS):
    optimizer.zero_grad()
    logits = forward(p, tokens)
    loss = F.cross_entropy(logits.reshape(-1, V), targets.reshape(-1))
    loss.backward()
    out["losses"].append(loss.item())
    if step == 0:
        out["logits"] = logits.flatten().tolist()
        out["gradients"] = {n: v.grad.flatten().tolist() for n, v in p.items()}
    norm = torch.sqrt(sum((v.grad**2).sum() for v in p.values()))
    for v in p.values():
        v.grad *= min(1.0, CLIP / (norm.item() + 1e-6))
    optimizer.step()

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference_pytorch.json")
with open(path, "w") as f:
    json.dump(out, f, separators=(",", ":"))
    f.write("\n")
print(f"{path}: torch {torch.__version__}, losses {out['losses'][0]:.6f} … {out['losses'][-1]:.6f}")
