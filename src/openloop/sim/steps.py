"""How long a step of a replica takes: a small formula, and where its numbers come from.

    step = fixed + max(floor, token * tokens) + context * sum of contexts
           + attention * sum of chunk * (context before it + chunk / 2) + sequence * sequences
           + packed * tokens * tokens in memory

`floor` is reading the weights once, `token` the arithmetic of one token, `context` reading the keys and values of one
token, `attention` the arithmetic of a pair of tokens in a prefill, and `sequence` what each sequence costs besides.
`fixed` is what a step costs whatever is in it, such as scheduling; `packed` is for engines that compute attention of
all sequences as one, each token with everything in memory, and mask what is not its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from openloop.errors import SpecError
from openloop.spec import suggest

MEMORY_SHARE = 0.9  # of a GPU's memory that an engine uses
PROBE_TOKENS = 2048  # of the prefill in MEASURED
PROBE_CONTEXT = 1024  # of the decoding sequences in MEASURED


@dataclass(frozen=True)
class StepTime:
    """Seconds."""

    floor: float
    token: float
    context: float = 0.0
    attention: float = 0.0
    sequence: float = 0.0
    fixed: float = 0.0
    packed: float = 0.0

    def decode(self, sequences: int, context: int) -> float:
        """A step in which so many sequences of such a context make a token each."""
        linear = max(self.floor, self.token * sequences)
        each = self.context * context + self.sequence + self.packed * sequences * context
        return self.fixed + linear + sequences * each

    def prefill(self, tokens: int, context: int = 0) -> float:
        """A step that reads a prompt, of which `context` tokens are known already."""
        linear = max(self.floor, self.token * tokens)
        pairs = self.attention * tokens * (context + tokens / 2) + self.packed * tokens * (context + tokens)
        return self.fixed + linear + pairs + self.sequence

    def scaled(self, factor: float) -> "StepTime":
        return StepTime(*(factor * getattr(self, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Model:
    """The shape of a model; two bytes for each number."""

    name: str
    parameters: float
    layers: int
    hidden: int  # of attention: heads times their width
    kv_heads: int
    head: int = 128

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> float:
        """Keys and values of one token."""
        return 2 * 2 * self.layers * self.kv_heads * self.head

    @property
    def pair_flops(self) -> float:
        """Of attention, for a token and one before it: a product with its key, and one with its value."""
        return 4 * self.layers * self.hidden


@dataclass(frozen=True)
class Gpu:
    """As its data sheet has it: bytes per second, operations per second in 16 bits (dense), bytes."""

    name: str
    bandwidth: float
    flops: float
    memory: float


MODELS = {
    "7b": Model("Llama-2-7B", 6.74e9, 32, 4096, 32),
    "8b": Model("Llama-3.1-8B", 8.03e9, 32, 4096, 8),
    "13b": Model("Llama-2-13B", 13.0e9, 40, 5120, 40),
    "32b": Model("Qwen3-32B", 32.8e9, 64, 8192, 8),
    "70b": Model("Llama-3.1-70B", 70.6e9, 80, 8192, 8),
}

GPUS = {
    "a100": Gpu("A100 SXM 80 GB", 2.04e12, 312e12, 80e9),
    "h100": Gpu("H100 SXM 80 GB", 3.35e12, 989e12, 80e9),
    "h200": Gpu("H200 SXM 141 GB", 4.8e12, 989e12, 141e9),
    "l40s": Gpu("L40S 48 GB", 0.864e12, 362e12, 48e9),
    "mi300x": Gpu("MI300X 192 GB", 5.3e12, 1307e12, 192e9),
}


@dataclass(frozen=True)
class Measured:
    """Whole steps, in milliseconds: a prefill of 2,048 tokens, and decoding at a context of 1,024 by batch size."""

    prefill: float
    one: float
    many: float  # 32
    most: float  # 128


SOURCE = "public tables of aiconfigurator-core 0.12.0 (vLLM)"
MEASURED = {
    ("8b", "a100", 1): Measured(125, 11.9, 15.6, 24.8),
    ("8b", "h100", 1): Measured(43.5, 6.2, 8.3, 12.8),
    ("8b", "h200", 1): Measured(43.4, 4.9, 6.3, 9.9),
    ("70b", "a100", 4): Measured(337, 27.2, 33.1, 45.9),
    ("70b", "h100", 4): Measured(130, 14.9, 16.9, 22.8),
    ("70b", "h200", 4): Measured(128, 12.3, 13.5, 18.2),
    ("32b", "h200", 2): Measured(103, 10.7, 12.4, 17.3),
}


@dataclass(frozen=True)
class Preset:
    """A model on some GPUs: its steps, its memory, and how each number was found."""

    model: Model
    gpu: Gpu
    tp: int
    step: StepTime
    kv_tokens: int
    derivation: tuple[str, ...]


def preset(model: str, gpu: str, tp: int = 1) -> Preset:
    """By measured steps where there are some, or else by data sheets and what measured ones reach of them."""
    if model not in MODELS:
        raise SpecError(f"unknown model {model!r}{suggest(model, MODELS)}")
    if gpu not in GPUS:
        raise SpecError(f"unknown GPU {gpu!r}{suggest(gpu, GPUS)}")
    if tp not in (1, 2, 4, 8):
        raise SpecError(f"tp is {tp}; a model is spread over 1, 2, 4 or 8 GPUs")
    shape, device = MODELS[model], GPUS[gpu]
    memory = MEMORY_SHARE * device.memory * tp - shape.weight_bytes
    kv_tokens = int(memory / shape.kv_bytes)
    if kv_tokens < 16:
        need = f"its weights are {shape.weight_bytes / 1e9:.0f} GB"
        raise SpecError(f"{shape.name} does not fit on {tp} x {device.name}: {need}; use more GPUs (tp)")
    measured = MEASURED.get((model, gpu, tp))
    step, told = _from_steps(shape, device, tp, measured) if measured else _from_sheets(shape, device, tp)
    room = (
        f"memory for {kv_tokens:,} tokens = ({MEMORY_SHARE:.0%} of {tp} x {device.memory / 1e9:g} GB - weights of "
        f"{shape.weight_bytes / 1e9:.1f} GB) / {shape.kv_bytes / 1024:.0f} KiB of keys and values per token"
    )
    return Preset(shape, device, tp, step, kv_tokens, (*told, room))


def _from_steps(shape: Model, device: Gpu, tp: int, seen: Measured) -> tuple[StepTime, list[str]]:
    """A line through the decode steps; the rest of the prefill is arithmetic."""
    each = (seen.most - seen.one) / 127 / 1e3
    floor = seen.one / 1e3 - each
    context = min(shape.kv_bytes / tp / (device.bandwidth * _READING), 0.9 * each / PROBE_CONTEXT)
    sequence = each - PROBE_CONTEXT * context
    attention = shape.pair_flops / tp / (device.flops * _COMPUTING)
    token = (seen.prefill / 1e3 - attention * PROBE_TOKENS**2 / 2 - sequence) / PROBE_TOKENS
    found = StepTime(floor, token, context, attention, sequence)
    return found, [
        f"measured steps of {shape.name} on {tp} x {device.name}, from {SOURCE}: prefill of 2,048 tokens "
        f"{seen.prefill:g} ms, decode at batch 1 / 32 / 128 and context 1,024 "
        f"{seen.one:g} / {seen.many:g} / {seen.most:g} ms",
        f"each sequence adds ({seen.most:g} - {seen.one:g}) ms / 127 = {1e6 * each:.1f} us to a step",
        f"floor = {seen.one:g} ms - that = {1e3 * floor:.2f} ms",
        f"context = {shape.kv_bytes / tp:,.0f} bytes / ({_READING:.0%} of {device.bandwidth / 1e12:g} TB/s) = "
        f"{1e9 * context:.2f} ns per token, at most nine tenths of what a sequence adds",
        f"sequence = the rest of it = {1e6 * sequence:.1f} us",
        f"attention = {shape.pair_flops / tp:.3g} operations / ({_COMPUTING:.0%} of {device.flops / 1e12:g} TFLOP/s) = "
        f"{1e9 * attention:.4f} ns per pair of tokens",
        f"token = the rest of the prefill / 2,048 = {1e6 * token:.2f} us",
    ]


def _from_sheets(shape: Model, device: Gpu, tp: int) -> tuple[StepTime, list[str]]:
    reading, computing, sequence = _reached()
    floor = shape.weight_bytes / tp / (device.bandwidth * reading)
    token = 2 * shape.parameters / tp / (device.flops * computing)
    context = shape.kv_bytes / tp / (device.bandwidth * _READING)
    attention = shape.pair_flops / tp / (device.flops * _COMPUTING)
    found = StepTime(floor, token, context, attention, sequence)
    return found, [
        f"no measured steps of {shape.name} on {tp} x {device.name}: from data sheets, by what the measured ones reach "
        "of theirs (medians); such a figure may be off by a quarter",
        f"floor = {shape.weight_bytes / tp / 1e9:.2f} GB / ({reading:.0%} of {device.bandwidth / 1e12:g} TB/s)"
        f" = {1e3 * floor:.2f} ms",
        f"token = {2 * shape.parameters / tp:.3g} operations / ({computing:.0%} of"
        f" {device.flops / 1e12:g} TFLOP/s) = {1e6 * token:.2f} us",
        f"context = {shape.kv_bytes / tp:,.0f} bytes / ({_READING:.0%} of the bandwidth) ="
        f" {1e9 * context:.2f} ns per token",
        f"attention = {shape.pair_flops / tp:.3g} operations / ({_COMPUTING:.0%}) = {1e9 * attention:.4f} ns per pair",
        f"sequence = {1e6 * sequence:.1f} us, the median of the measured ones",
    ]


_READING = 0.8  # of the bandwidth, when keys and values are read: kernels for it reach 70 to 90%
_COMPUTING = 0.5  # of the operations, in attention


def _reached() -> tuple[float, float, float]:
    """What real engines reach of a data sheet, as medians over what was measured: the share of the bandwidth when
    weights are read, and of the operations in a prefill; and seconds per sequence and step, besides its context."""
    reading, computing, sequence = [], [], []
    for (model, gpu, tp), seen in MEASURED.items():
        shape, device = MODELS[model], GPUS[gpu]
        step, _ = _from_steps(shape, device, tp, seen)
        reading.append(shape.weight_bytes / tp / device.bandwidth / step.floor)
        computing.append(2 * shape.parameters / tp / device.flops / step.token)
        sequence.append(step.sequence)
    return median(reading), median(computing), median(sequence)


def explain(found: Preset) -> Iterator[str]:
    """Every number, and where it comes from."""
    yield f"{found.model.name} on {found.tp} x {found.gpu.name}"
    yield from (f"  {line}" for line in found.derivation)
