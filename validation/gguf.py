"""A language model that knows nothing, as a GGUF file: random numbers in the shape of a small Llama, letters as tokens.

It is enough to see a real engine serve, and takes no download.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_model"]

LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT = 2, 64, 4, 128, 8192
ALIGNED = 32
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def write_model(path: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    words = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 27]
    facts: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "random",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [0.0] * len(words),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (len(words), WIDTH),
        "output_norm": (WIDTH,),
        "output": (len(words), WIDTH),
    }
    for layer in range(LAYERS):
        inner: dict[str, tuple[int, ...]] = {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        inner |= {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_down": (WIDTH, HIDDEN)}
        inner |= {"ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in inner.items()}
    tensors = {
        f"{name}.weight": (rng.normal(0, 0.2, shape) if len(shape) > 1 else np.ones(shape)).astype("<f4")
        for name, shape in shapes.items()
    }
    path.write_bytes(_file(facts, tensors))
    return path


def _file(facts: dict[str, Any], tensors: dict[str, Any]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
    head += b"".join(_text(key) + _value(value) for key, value in facts.items())
    data = b""
    for name, tensor in tensors.items():
        sizes = tensor.shape[::-1]  # the fastest first
        head += _text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, len(data))
        data += tensor.tobytes()
        data += bytes(-len(data) % ALIGNED)
    return head + bytes(-len(head) % ALIGNED) + data


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any, *, inside: bool = False) -> bytes:
    """With its kind before it, but for those inside a list, which share one."""
    if isinstance(value, list):
        inner = b"".join(_value(each, inside=True) for each in value)
        kind = 5 if isinstance(value[0], int) else _kind(value[0])  # whole numbers in lists have a sign
        return struct.pack("<IIQ", 9, kind, len(value)) + inner
    before = b"" if inside else struct.pack("<I", _kind(value))
    if isinstance(value, str):
        return before + _text(value)
    return before + (struct.pack("<f", value) if isinstance(value, float) else struct.pack("<I", value))


def _kind(value: Any) -> int:
    return 8 if isinstance(value, str) else 6 if isinstance(value, float) else 4
