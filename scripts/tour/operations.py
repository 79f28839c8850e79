"""What the tour says about each operation that a step records: title, formula (TeX), and a sentence.

An operation without an entry fails scripts/test_tour.py, so that whoever adds a layer finds this table.
"""

import re
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

OPERATIONS = {
    "clear_values": ("Set to zero", r"x = 0", "Sums start from nothing: losses, squares, gradients."),
    "upload_values": (
        "Copy to the device",
        r"x_\mathrm{device} = x_\mathrm{host}",
        "Data that the host has prepared: the step's tokens and targets, with the sorted rows that the"
        " embedding's backward needs, or the hyper-parameters.",
    ),
    "embedding_forward": (
        "Token and position embedding",
        r"x_n = \mathrm{wte}[\mathrm{token}_n] + \mathrm{wpe}[n \bmod T]",
        "Each token's number picks a row of C learnt values from a table. Attention itself does not know"
        " positions; so each position adds a learnt row of its own.",
    ),
    "layernorm_forward": (
        "Layer norm",
        r"y = \frac{x - \mu}{\sigma} \cdot w + b",
        "Over the C values of each token: mean 0, variance 1, then a learnt scale and shift. With several"
        " tensor-parallel ranks, a block's second layer norm also adds the attention branch.",
    ),
    "linear_forward": (
        "Linear layer",
        r"y_{no} = \sum_c x_{nc}\, w_{oc} + b_o",
        "A matrix product: each output channel is a weighted sum of all input channels. Most FLOPs are here."
        " The layer that ends a branch adds its result to the residual stream.",
    ),
    "linear_gelu_forward": (
        "Linear layer and GELU",
        r"a = \mathrm{GELU}(x w^T + b)",
        "Up to 4C channels, and through the nonlinearity in the same pass over memory.",
    ),
    "gelu_forward": ("GELU", r"a = \mathrm{GELU}(u)", "The nonlinearity by itself, where it is recomputed."),
    "attention_forward": (
        "Causal attention",
        r"o = \mathrm{softmax}\!\left(\frac{q k^T}{\sqrt{HS}}\right) v",
        "Every token looks back: p is how much of each earlier token's value it takes. The upper triangle is"
        " 0, because nobody sees the future.",
    ),
    "flash_attention_forward": (
        "Flash attention",
        r"o = \mathrm{softmax}\!\left(\frac{q k^T}{\sqrt{HS}}\right) v",
        "The same result without ever holding p: tiles of keys pass by, and sums are rescaled on the way.",
    ),
    "residual_forward": (
        "Residual",
        r"y = x + f + b",
        "With several tensor-parallel ranks, an operation of its own adds the MLP's reduced sums and bias.",
    ),
    "cross_entropy": (
        "Softmax, cross-entropy and its gradient",
        r"\ell_n = \log\sum_v e^{z_{nv}} - z_{n,\mathrm{target}}, \quad"
        r" \frac{\partial \ell}{\partial z} = p - \mathrm{onehot}",
        "How surprised the model was. The logits become their own gradient: backward starts here.",
    ),
    "cross_entropy_max": ("Largest logit", r"m_n = \max_v z_{nv}", "Of this rank's part of the vocabulary."),
    "cross_entropy_sum": (
        "Sum of exponentials",
        r"s_n = \sum_v e^{z_{nv} - m_n}",
        "Of this rank's part of the vocabulary; and the target's logit, where this rank has it.",
    ),
    "cross_entropy_finish": (
        "Loss and gradient",
        r"\ell_n = \log s_n + m_n - z_{n,\mathrm{target}}",
        "With the sums of all ranks.",
    ),
    "linear_backward": (
        "Linear layer, backward",
        r"dx = dy\, w, \quad dw \mathrel{+}= dy^T x",
        "Two matrix products: one passes the gradient on, one says how the weights should change.",
    ),
    "linear_of_gelu_backward": (
        "Linear layer and GELU, backward",
        r"dw \mathrel{+}= dy^T a, \quad du = (dy\, w) \odot \mathrm{GELU}'(u),"
        r" \quad du_{bias} \mathrel{+}= \sum_n du_n",
        "Through the product and the nonlinearity at once: u was kept by forward for this. The sums of du"
        " over the rows are the gradient of the bias in u.",
    ),
    "layernorm_backward": (
        "Layer norm, backward",
        r"dx \mathrel{+}= \frac{1}{\sigma}\left(g - \bar g - \hat x\,\overline{g \hat x}\right),"
        r"\quad g = dy \odot w",
        "The gradient is added to the residual stream's: the stream flows past every branch.",
    ),
    "attention_backward": (
        "Causal attention, backward",
        r"dp = do\, v^T, \quad ds = p \odot (dp - \textstyle\sum do \odot o), \quad dq = ds\, k,"
        r" \quad dk = ds^T q, \quad dv = p^T do",
        "The probabilities that forward kept are enough to find all three gradients.",
    ),
    "flash_attention_backward": (
        "Flash attention, backward",
        r"dq = ds\, k, \quad dk = ds^T q, \quad dv = p^T do",
        "p is computed again, tile by tile, from lse.",
    ),
    "bias_backward": (
        "Bias, backward",
        r"db \mathrel{+}= \sum_n dy_n",
        "A bias is added to every row: its gradient is the sum of the rows' gradients.",
    ),
    "position_backward": (
        "Position embedding, backward",
        r"d\mathrm{wpe}[t] \mathrel{+}= \sum_b dx_{bt}",
        "Each position's row gets the gradient of what stood there.",
    ),
    "embedding_backward": (
        "Token embedding, backward",
        r"d\mathrm{wte}[v] \mathrel{+}= \sum_{n:\,\mathrm{token}_n = v} dx_n",
        "Rows of the same token are summed in a fixed order: a run repeats bit for bit.",
    ),
    "add_values": (
        "Add",
        r"x \mathrel{+}= y",
        "The embedding is used twice, to read tokens and to write logits: its gradients are added.",
    ),
    "sum_values": ("Sum", r"s = \textstyle\sum_i x_i", "The losses of all tokens, in a fixed order."),
    "square_sums": (
        "Squares of the gradients",
        r"s = \textstyle\sum_i g_i^2",
        "For the norm over all parameters; each is counted once, whatever the layout.",
    ),
    "decide_update": (
        "Clip",
        r"\mathrm{scale} = \min\left(1, \frac{\mathrm{clip}}{\lVert g \rVert + 10^{-6}}\right)",
        "A gradient that is too long keeps its direction and is shortened.",
    ),
    "adamw": (
        "AdamW",
        r"m = \beta_1 m + (1 - \beta_1) g, \quad v = \beta_2 v + (1 - \beta_2) g^2, \quad"
        r" w \mathrel{-}= \eta \left(\frac{\hat m}{\sqrt{\hat v} + \epsilon} + \lambda w\right)",
        "The update: each parameter moves by about the learning rate, against its gradient's running mean.",
    ),
}

# of a call: what every rank has before, and after
CALLS = {
    "all_reduce": "Every rank has a partial sum; afterwards every rank has the sum of all.",
    "reduce_scatter": "Every rank has a partial sum of all; afterwards each has the whole sum of its part.",
    "all_gather": "Every rank has its part; afterwards every rank has all parts.",
    "send": "Values leave for a neighbouring stage.",
    "receive": "Values arrive from a neighbouring stage.",
}


@lru_cache(maxsize=None)
def numbers_above(file, line):
    """The step numbers in the comment above a line of layers/model/block.h."""
    lines, numbered = (ROOT / file).read_text().splitlines(), r"\b(\d)\.(?: |$)"
    at = line - 1
    while at > 0 and not re.match(f" *//.*{numbered}", lines[at]):
        if lines[at].startswith("}"):  # of another function
            return []
        at -= 1
    while lines[at - 1].lstrip().startswith("//"):
        at -= 1
    comment = " ".join(takewhile(lambda text: text.startswith("//"), map(str.lstrip, lines[at:])))
    return [int(number) for number in re.findall(numbered, comment)]


def number_steps(lines):
    """Gives each line of a block its steps, [[layer, number] …]: forward and backward share them."""
    for line in lines:
        in_block = line["kind"] == "compute" and line["file"].endswith("model/block.h")
        numbers = numbers_above(line["file"], line["line"]) if in_block else []
        if line["name"] == "linear_forward":  # the first of two: a layer norm follows
            numbers = numbers[:1]
        elif line["name"] == "layernorm_forward":
            numbers = numbers[-1:]
        line["steps"] = [[line["layer"], number] for number in numbers]


@lru_cache(maxsize=None)
def declared():
    """An operation's name -> the file, name, first and last line of its struct."""
    found = {}
    headers = [*ROOT.glob("layers/*.cuh"), *ROOT.glob("layers/fast/*.*h"), ROOT / "layers/base/operation.h"]
    for path in headers:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if begins := re.match(r"struct (\w+) {", line):
                struct, first = begins[1], number + 1
            if names := re.match(r' +static constexpr const char\* name = "(\w+)";', line):
                last = lines.index("};", number) + 1
                while re.match("template|//", lines[first - 2]):
                    first -= 1
                found[names[1]] = (str(path.relative_to(ROOT)), struct, first, last)
    return found
