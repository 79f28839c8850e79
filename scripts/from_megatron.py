#!/usr/bin/env python3
"""A GPT-2-shaped checkpoint of Megatron-LM (torch_dist) as a Hugging Face model, which ./convert reads.

    python3 scripts/from_megatron.py checkpoints/iter_0001000 hf
    ./convert --from-huggingface hf --to megatron

Reads megatron-core's distributed checkpoints in one process, without Megatron, whatever parallel layout they
were saved in; tried with 0.12, 0.14, 0.16 and 0.19. Needs torch and safetensors from PyPI, which the trainer
does not. What this program cannot represent (rotary embeddings, RMSNorm, gated MLPs, grouped queries,
experts …) is refused by name.
"""

import argparse
import io
import json
import pickle
import sys
import warnings
from pathlib import Path

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
except ImportError as e:
    sys.exit(f"from_megatron.py: {e.name} is not here: pip install torch safetensors")

# what --from-… computes: argument of Megatron-LM, values that are the same as here, what it would be called
WANTED = (
    ("position_embedding_type", ("learned_absolute",), "position embeddings"),
    ("normalization", ("LayerNorm",), "normalization"),
    ("swiglu", (False,), "a gated MLP"),
    ("quick_geglu", (False,), "a gated MLP"),
    ("squared_relu", (False,), "squared ReLU"),
    ("untie_embeddings_and_output_weights", (False,), "an output layer of its own"),
    ("add_bias_linear", (True,), "linear layers without biases"),
    ("apply_layernorm_1p", (False,), "layer norms of 1 + weight"),
    ("layernorm_zero_centered_gamma", (False,), "layer norms of 1 + weight"),  # its name since 0.16
    ("qk_layernorm", (False,), "layer norms of queries and keys"),
    ("qk_l2_norm", (False,), "normalized queries and keys"),
    ("attention_output_gate", (False,), "gated attention"),
    ("use_mup", (False,), "muP's scales"),
    ("group_query_attention", (False,), "grouped queries"),
    ("multi_latent_attention", (False,), "multi-latent attention"),
    ("num_experts", (None,), "experts"),
    ("window_size", (None,), "sliding-window attention"),
    ("softmax_type", ("vanilla",), "another softmax"),
    ("softmax_scale", (None,), "another scale of the scores"),
    ("mtp_num_layers", (None, 0), "multi-token prediction"),
    ("experimental_attention_variant", (None,), "another attention"),
    ("apply_residual_connection_post_layernorm", (False,), "a residual behind the layer norm"),
)
# ours: megatron-core's, in the order in which they are looked for; {} is a layer's prefix
LAYER = {
    "ln_1": ("self_attention.linear_qkv.layer_norm_{}", "input_layernorm.{}"),
    "attn.c_attn": ("self_attention.linear_qkv.{}",),
    "attn.c_proj": ("self_attention.linear_proj.{}",),
    "ln_2": ("mlp.linear_fc1.layer_norm_{}", "pre_mlp_layernorm.{}"),
    "mlp.c_fc": ("mlp.linear_fc1.{}",),
    "mlp.c_proj": ("mlp.linear_fc2.{}",),
}
WHOLE = {
    "wte.weight": "embedding.word_embeddings.weight",
    "wpe.weight": "embedding.position_embeddings.weight",
    "ln_f.weight": "decoder.final_layernorm.weight",
    "ln_f.bias": "decoder.final_layernorm.bias",
}


def fail(message):
    sys.exit(f"from_megatron.py: {message}")


# ---- what is stored --------------------------------------------------------------------------------------


class Unpickler(pickle.Unpickler):
    """Finds plain values and the classes that describe tensors; all others, such as Megatron's enums, become
    empty stand-ins. So nothing in a file can run code of its own."""

    PLAIN = {
        ("argparse", "Namespace"),
        ("collections", "OrderedDict"),
        ("torch", "Size"),
        ("torch", "device"),
    }
    DESCRIPTIONS = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.planner")
    FILES = "torch.distributed.checkpoint.filesystem"

    def find_class(self, module, name):
        if "." not in name:
            is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
            is_layout = (module, name) == ("torch.serialization", "_get_layout")
            describes = module in self.DESCRIPTIONS or (module == self.FILES and name == "_StorageInfo")
            if (module, name) in self.PLAIN or is_dtype or is_layout:
                return super().find_class(module, name)
            if describes and isinstance(found := super().find_class(module, name), type):
                return found
            if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
                return super().find_class(module, name)
        if name == "MCoreMetadata":  # megatron-core 0.15
            return dcp.metadata.Metadata
        return type(
            "StandIn",
            (),
            {"__new__": lambda cls, *_, **__: object.__new__(cls), "__setstate__": lambda *_: None},
        )


class PlainPickle:
    """For torch.load, in place of the module pickle."""

    Unpickler, load = Unpickler, staticmethod(lambda file, **options: Unpickler(file, **options).load())


class Reader(dcp.FileSystemReader):
    def read_metadata(self, *_, **__):
        with open(Path(self.path) / ".metadata", "rb") as f:
            metadata = Unpickler(f).load()
        metadata.storage_meta = metadata.storage_meta or dcp.metadata.StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def common_file(folder):
    """What is not a tensor: common.pt, or from megatron-core 0.19 on an object among the tensors."""
    path = folder / "common.pt"
    if path.exists():
        return path
    stored = Reader(str(folder)).read_metadata().storage_data if (folder / ".metadata").exists() else {}
    for index, at in stored.items():
        if index.fqn.startswith("common_state/"):
            with open(folder / at.relative_path, "rb") as f:
                f.seek(at.offset)
                return io.BytesIO(f.read(at.length))
    fail(f"{folder}: has neither common.pt nor common_state: expected an iter_… folder of torch_dist")


def read_arguments(folder):
    common = torch.load(common_file(folder), pickle_module=PlainPickle, weights_only=False)
    common = common[0] if isinstance(common, list) and common else common
    args = common.get("args") if isinstance(common, dict) else None
    if not isinstance(args, argparse.Namespace):
        fail(f"{folder}: holds no arguments of Megatron-LM")
    return args


def check_arguments(args, folder):
    for name, accepted, what in WANTED:
        value = getattr(args, name, accepted[0])
        if value not in accepted:
            fail(f"{folder}: has {what} ({name} {value}), which this program does not support")
    for name in ("hidden_size", "num_layers", "num_attention_heads"):
        if not isinstance(getattr(args, name, None), int) or getattr(args, name) < 1:
            fail(f"{folder}: has {name} {getattr(args, name, None)}, expected a number of a GPT")
    if args.hidden_size % args.num_attention_heads:
        fail(f"{folder}: {args.num_attention_heads} heads do not divide hidden_size {args.hidden_size}")
    size = getattr(args, "kv_channels", None)
    if size not in (None, args.hidden_size // args.num_attention_heads):
        fail(f"{folder}: has kv_channels {size}, this program computes hidden_size / heads")
    epsilon = getattr(args, "norm_epsilon", getattr(args, "layernorm_epsilon", 1e-5))
    if epsilon != 1e-5:
        fail(f"{folder}: has layer norms with epsilon {epsilon}, this program computes 1e-5")
    ffn = getattr(args, "ffn_hidden_size", None)
    if ffn not in (None, 4 * args.hidden_size):
        fail(f"{folder}: has ffn_hidden_size {ffn}, this program computes 4 * hidden_size")
    if not getattr(args, "bias_gelu_fusion", True) and not getattr(args, "openai_gelu", False):
        print(
            "note: without --bias-gelu-fusion Megatron's GELU uses erf, this program's tanh: losses"
            " differ slightly"
        )


def read_tensors(folder):
    """{name: tensor} of the model, layers stacked or one by one as they were saved."""
    if not (folder / ".metadata").exists():
        fail(f"{folder}: has no .metadata: expected an iter_… folder of a torch_dist checkpoint")
    reader = Reader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    wanted = {}
    for key, about in stored.items():
        name = key.removeprefix("model.")
        is_tensor = isinstance(about, dcp.metadata.TensorStorageMetadata)
        if is_tensor and name.split(".")[0] in ("embedding", "decoder", "output_layer"):
            wanted[key] = torch.empty(about.size, dtype=about.properties.dtype)
    if not wanted:
        fail(f"{folder}: holds no model: expected a GPT of megatron-core in the format torch_dist")
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is meant
    dcp.load(wanted, storage_reader=reader, no_dist=True)
    return {key.removeprefix("model."): tensor for key, tensor in wanted.items()}


# ---- as Hugging Face has it ------------------------------------------------------------------------------


class Layers:
    """decoder.layers.NAME with a dimension of layers, or decoder.layers.N.NAME."""

    def __init__(self, tensors, count):
        self.tensors, self.taken, self.count = tensors, set(), count

    def take(self, key):
        self.taken.add(key)
        return self.tensors[key]

    def find(self, layer, names):
        for name in names:
            if f"decoder.layers.{name}" in self.tensors:
                stacked = self.take(f"decoder.layers.{name}")
                if stacked.shape[0] != self.count:
                    fail(f"the checkpoint has {stacked.shape[0]} layers, its arguments say {self.count}")
                return stacked[layer]
            if f"decoder.layers.{layer}.{name}" in self.tensors:
                return self.take(f"decoder.layers.{layer}.{name}")
        fail(f"the checkpoint has no {' or '.join(names)} of layer {layer}")


def split_qkv(tensor, heads):
    """(head, q k v, channel) rows -> q, k and v one after the other, each by heads."""
    rows = tensor.shape[0]
    size = rows // (3 * heads)
    return tensor.reshape(heads, 3, size, -1).transpose(0, 1).reshape(tensor.shape)


def to_huggingface(tensors, args, vocabulary):
    layers = Layers(tensors, args.num_layers)
    out = {}
    for ours, theirs in WHOLE.items():
        if theirs not in tensors:
            fail(f"the checkpoint has no {theirs}")
        out[ours] = layers.take(theirs)

    out["wte.weight"] = out["wte.weight"][:vocabulary]
    for layer in range(args.num_layers):
        for ours, theirs in LAYER.items():
            for kind in ("weight", "bias"):
                tensor = layers.find(layer, [name.format(kind) for name in theirs])
                if ours == "attn.c_attn":
                    tensor = split_qkv(tensor, args.num_attention_heads)
                if kind == "weight" and not ours.startswith("ln"):
                    tensor = tensor.T
                out[f"h.{layer}.{ours}.{kind}"] = tensor

    left = sorted(set(tensors) - layers.taken)
    if left:
        fail(f"the checkpoint has {left[0]} (one of {len(left)}), which is not GPT-2's")
    return {f"transformer.{name}": tensor.float().contiguous() for name, tensor in out.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="an iter_… folder")
    parser.add_argument("output", type=Path, help="folder for config.json and model.safetensors")
    parser.add_argument("--vocabulary", type=int, help="tokens without padding [the checkpoint's vocab_size]")
    options = parser.parse_args()
    if options.output.exists() and (not options.output.is_dir() or any(options.output.iterdir())):
        fail(f"{options.output} is not empty: choose a new folder")
    args = read_arguments(options.checkpoint)
    check_arguments(args, options.checkpoint)
    tensors = read_tensors(options.checkpoint)
    padded = tensors.get("embedding.word_embeddings.weight", torch.empty(0)).shape[0]
    said = getattr(args, "vocab_size", None)
    tokenizer = str(getattr(args, "tokenizer_type", ""))
    counted = tokenizer == "NullTokenizer" and hasattr(args, "null_tokenizer_eod_id")  # from 0.18 on
    if said and tokenizer.startswith("Null") and not counted:
        said += 1  # a NullTokenizer's end-of-document token comes behind its vocab_size
    vocabulary = options.vocabulary if options.vocabulary is not None else said or padded
    if not 0 < vocabulary <= padded:
        fail(f"--vocabulary {vocabulary}: the checkpoint has {padded} rows of embeddings")

    out = to_huggingface(tensors, args, vocabulary)
    shapes = {name: list(tensor.shape) for name, tensor in out.items()}
    options.output.mkdir(parents=True, exist_ok=True)
    partial = options.output / "model.safetensors.partial"
    try:
        save_file(out, partial, metadata={"format": "pt"})
    except BaseException:
        partial.unlink(missing_ok=True)  # the folder can be given again
        raise
    partial.rename(options.output / "model.safetensors")
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": args.num_layers,
        "n_embd": shapes["transformer.wte.weight"][1],
        "n_head": args.num_attention_heads,
        "n_positions": shapes["transformer.wpe.weight"][0],
        "vocab_size": vocabulary,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }
    (options.output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"{options.output}: {sum(tensor.numel() for tensor in out.values()):,} parameters")


if __name__ == "__main__":
    main()
