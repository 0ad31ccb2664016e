"""Functions as machine code: compiled when they are first called, and kept on disk.

Numba would take many times as long: it types, optimises and assembles every function by itself and again in all that
call it. Where numba is switched off (NUMBA_DISABLE_JIT=1) these are plain Python too, with equal results.
"""

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from openloop.native.kept import PLAIN, kept, name_of
from openloop.native.translate import INT, REAL, Kind, Known, Pointer, Table, Tables, leaves, translate

P = ParamSpec("P")
R = TypeVar("R")

LONG = 2000  # lines of LLVM's language from which on little is won by twice the time to optimise
LETTERS = {"i64": "q", "ptr": "q", "double": "d", "i1": "?"}


def native(function: Callable[P, R]) -> Callable[P, R]:
    """To be called with numbers, arrays, None, named tuples of arrays, and objects whose `tables` names theirs."""
    if PLAIN:
        return function
    ready: dict[tuple[Kind, ...], Callable[[tuple[Any, ...]], R]] = {}

    @functools.wraps(function)
    def call(*given: P.args, **_: P.kwargs) -> R:
        kinds = tuple(_kind(each) for each in given)
        if kinds not in ready:
            ready[kinds] = _entry(function, kinds)
        return ready[kinds](given)

    return call


def _entry(function: Callable[..., Any], kinds: tuple[Kind, ...]) -> Callable[[tuple[Any, ...]], Any]:
    with _ONE_AT_A_TIME:  # LLVM's engine is one for all threads
        name = name_of(function, llvmlite.__version__, str(_target()[0].triple), _target()[1:], kinds)
        if name not in _LOADED:
            _LOADED[name] = _load(name, kept(name, lambda: _compile(function, kinds, name)))
        code, letters = _LOADED[name]
    there, back = struct.Struct("=" + "".join(map(_letters, kinds))), struct.Struct(f"={letters}")
    size = max(there.size, back.size, 8)

    def run(given: tuple[Any, ...]) -> Any:
        box = ctypes.create_string_buffer(size)
        there.pack_into(box, 0, *(part for each in given for part in _parts(each)))
        code(ctypes.addressof(box))
        found = back.unpack_from(box)
        return found if len(found) > 1 else found[0] if found else None

    return run


def _kind(what: Any) -> Kind:
    if what is None:
        return Known(None)
    if isinstance(what, np.ndarray):
        return Table(what.dtype, what.ndim, not what.flags.c_contiguous)
    if isinstance(what, int | np.integer):
        return INT
    if isinstance(what, float):
        return REAL
    if hasattr(what, "address"):
        return Pointer()
    return Tables(tuple((name, _kind(getattr(what, name))) for name in _names(what)))


def _names(what: Any) -> Sequence[str]:
    """Of its tables."""
    found: Sequence[str] = getattr(what, "_fields", ()) or what.tables
    return found


def _parts(what: Any) -> Iterator[int | float]:
    """As they go into the box."""
    if isinstance(what, np.ndarray):
        yield what.__array_interface__["data"][0]
        yield from what.shape
        if not what.flags.c_contiguous:
            yield from what.strides
    elif isinstance(what, int | float | np.integer):
        yield what  # type: ignore[misc]
    elif hasattr(what, "address"):
        yield what.address
    elif what is not None:
        for name in _names(what):
            yield from _parts(getattr(what, name))


def _letters(kind: Kind) -> str:
    if isinstance(kind, Tables):
        return "".join(_letters(each) for _, each in kind.kinds)
    return "".join(LETTERS[leaf] for leaf in leaves(kind))


@functools.cache
def _target() -> tuple[Any, str, str]:
    """What code is made for: the kind of machine, its processor, and what that can do."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _machine() -> Any:
    target, cpu, features = _target()
    reloc = "static" if target.name.startswith("x86") else "default"
    return target.create_target_machine(cpu, features, opt=2, reloc=reloc, codemodel="jitdefault", jit=True)


@functools.cache
def _engine() -> Any:
    """Where machine code lives, as long as the process does."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())


_ONE_AT_A_TIME = threading.Lock()
_LOADED: dict[str, tuple[Any, str]] = {}  # what is called, and what it gives back


def _load(name: str, kept: bytes) -> tuple[Any, str]:
    back, code = kept.split(b"\n", 1)
    _engine().add_object_file(llvm.ObjectFileRef.from_data(code))
    _engine().finalize_object()
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_engine().get_function_address(name)), back.decode()


def compile_movable(function: Callable[..., Any], kinds: tuple[Kind, ...]) -> bytes:
    """Machine code that runs wherever it lies, on any processor of this kind, from its first byte on."""
    text, _ = translate(function, kinds, "entry")
    machine = _target()[0].create_target_machine(opt=2, reloc="pic", codemodel="small")
    held = llvm.ObjectFileRef.from_data(_assemble(text, machine))
    sections = [(each.name(), each.is_text(), each.data()) for each in held.sections() if each.size()]
    texts = [data for _, is_text, data in sections if is_text]
    if len(texts) != 1 or any(".rela.text" in str(name) for name, _, _ in sections):
        raise TypeError(f"{function.__name__} needs more than its own code")
    return bytes(texts[0])


def _compile(function: Callable[..., Any], kinds: tuple[Kind, ...], name: str) -> bytes:
    """What it gives back, in letters, a line's end, and the machine code."""
    text, result = translate(function, kinds, f'"{name}"')
    return _letters(result).encode() + b"\n" + _assemble(text, _machine())


def _assemble(text: str, machine: Any) -> bytes:
    """LLVM's language to an object file."""
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    level = 1 if text.count("\n") > LONG else 2
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code
