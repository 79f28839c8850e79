"""The models that first_contact.py and twin_pytorch.py time, and whose steps kernel_report.py estimates."""

from dataclasses import dataclass

VOCABULARY = 50304  # padded


@dataclass
class Model:
    layers: int
    hidden: int
    heads: int
    sequence: int
    micro_batches: tuple  # that are tried, from the largest on


MODELS = {
    "124M": Model(12, 768, 12, 1024, (64, 32, 16)),
    "350M": Model(24, 1024, 16, 1024, (64, 32, 16)),
    "774M": Model(36, 1280, 20, 1024, (32, 16, 8)),
    "1558M": Model(48, 1600, 25, 1024, (16, 8, 4)),
    "1.3B": Model(24, 2048, 16, 2048, (16, 8, 4)),
    "2.7B": Model(32, 2560, 32, 2048, (8, 4, 2)),
    "6.7B": Model(32, 4096, 32, 2048, (8, 4, 2)),
}
