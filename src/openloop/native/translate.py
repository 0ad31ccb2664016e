"""A small part of Python as LLVM's language: whole and real numbers, rows of tables, branches, loops, functions.

A function is translated for the kinds of its arguments, and with it all that it calls. A table that is None is known to
be, and what depends on it falls away. A variable has one kind throughout, that of its first value; `and`, `or` and
`not` give truth values; places in tables are not checked. Division is Python's: it rounds down.
"""

import ast
import functools
import inspect
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openloop.native import bits_of, foreign


@dataclass(frozen=True)
class Scalar:
    llvm: str
    rank: int  # which of two kinds holds both


TRUTH, INT, REAL = Scalar("i1", 0), Scalar("i64", 1), Scalar("double", 2)
WORD = Scalar("i64", -1)  # whole, without a sign, and with no other


@dataclass(frozen=True)
class Row:
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Table:
    """An array in memory, of numbers or of rows: where, how many along each axis, and the bytes from one to the next if
    it is a slice of another."""

    dtype: np.dtype[Any]
    axes: int = 1
    sliced: bool = False


@dataclass(frozen=True)
class Tables:
    """An object whose attributes are tables."""

    kinds: tuple[tuple[str, "Kind"], ...]


@dataclass(frozen=True)
class Pointer:
    """A function that numba compiled for C: tables and numbers in, a whole number out."""


@dataclass(frozen=True)
class Several:
    kinds: tuple["Kind", ...]


@dataclass(frozen=True)
class Known:
    """What is known beforehand: None, a function, a module."""

    value: Any


Kind = Scalar | Row | Table | Tables | Pointer | Several | Known


@dataclass(frozen=True)
class Value:
    kind: Kind
    parts: tuple[str, ...] = ()


def leaves(kind: Kind) -> list[str]:
    """What it is made of, in LLVM's types."""
    match kind:
        case Scalar():
            return [kind.llvm]
        case Table():
            return ["ptr"] + ["i64"] * (kind.axes + kind.sliced)
        case Several():
            return [leaf for each in kind.kinds for leaf in leaves(each)]
        case Known():
            return []
    return ["ptr"]


def width(kind: Kind) -> int:
    """Places that it takes in the box in which arguments are handed over."""
    return sum(width(each) for _, each in kind.kinds) if isinstance(kind, Tables) else len(leaves(kind))


def translate(function: Callable[..., Any], kinds: Sequence[Kind], entry: str) -> tuple[str, Kind]:
    """A module whose `entry` takes a box with the arguments and leaves what comes back in it; and what that is."""
    module = _Module()
    name, result = module.instance(function, tuple(kinds))
    lines, given, place = [], [], 0
    for kind in kinds:
        for leaf in leaves(kind):
            lines.append(f"%p{place} = getelementptr i64, ptr %box, i64 {place}")
            lines += [] if isinstance(kind, Tables) else [f"%a{place} = load {leaf}, ptr %p{place}"]
            given.append(f"ptr %p{place}" if isinstance(kind, Tables) else f"{leaf} %a{place}")
            place += width(kind) if isinstance(kind, Tables) else 1
    back = leaves(result)
    call = f"call {_returned(back)} @{name}({', '.join(given)})"
    lines.append(f"store {_returned(back)} %r, ptr %box" if back else "ret void")
    lines.insert(-1, f"%r = {call}" if back else call)
    body = "\n  ".join([*lines, "ret void"] if back else lines)
    return f"define void @{entry}(ptr noalias %box) nounwind {{\n  {body}\n}}\n" + module.text(), result


def _returned(parts: list[str]) -> str:
    return "void" if not parts else parts[0] if len(parts) == 1 else f"{{ {', '.join(parts)} }}"


@functools.cache
def _functions(path: str) -> dict[str, ast.FunctionDef]:
    """Those of a file, by name."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


class _Module:
    def __init__(self) -> None:
        self.done: dict[tuple[Any, tuple[Kind, ...]], tuple[str, Kind]] = {}
        self.bodies: list[str] = []
        self.declared: set[str] = set()
        self.tags: dict[tuple[Any, ...], int] = {}

    def instance(self, function: Callable[..., Any], kinds: tuple[Kind, ...]) -> tuple[str, Kind]:
        """Its name for arguments of these kinds, and what it gives."""
        function = inspect.unwrap(function)
        key = function, kinds
        if key not in self.done:
            body = _Body(self, function, kinds)
            name = f"{function.__name__}.{len(self.done)}"
            self.bodies.append(body.text(name))
            self.done[key] = name, body.result
        return self.done[key]

    def declare(self, text: str) -> None:
        self.declared.add(f"declare {text}")

    def tag(self, *what: Any) -> str:
        """Says of a place in memory which others are not the same: those of other fields."""
        return f"!tbaa !{3 + 2 * self.tags.setdefault(what, len(self.tags))}"

    def text(self) -> str:
        nodes = ['!0 = !{!"tables"}', "!1 = !{}"]
        for n in range(len(self.tags)):
            nodes += [f'!{2 + 2 * n} = !{{!"{n}", !0}}', f"!{3 + 2 * n} = !{{!{2 + 2 * n}, !{2 + 2 * n}, i64 0}}"]
        return "\n".join([*sorted(self.declared), *self.bodies, *nodes])


_PLAIN = {ast.Add: ("add", "fadd"), ast.Sub: ("sub", "fsub"), ast.Mult: ("mul", "fmul")}
_BITS = {ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl"}
_COMPARED = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
_INTRINSICS = {math.ceil: "ceil", math.floor: "floor", math.log2: "log2", math.sqrt: "sqrt", np.rint: "rint"}
_STORED = {  # as what it is used, how it lies in memory, and how it gets from there to here and back
    "i8": (INT, "i64", "", ""),
    "u8": (WORD, "i64", "", ""),
    "f8": (REAL, "double", "", ""),
    "i4": (INT, "i32", "sext", "trunc"),
    "u4": (INT, "i32", "zext", "trunc"),
    "u1": (INT, "i8", "zext", "trunc"),
    "f4": (REAL, "float", "fpext", "fptrunc"),
}


class _Body(ast.NodeVisitor):
    """One function, statement by statement: what is visited leaves lines behind, and an expression its value."""

    def __init__(self, module: _Module, function: Callable[..., Any], kinds: tuple[Kind, ...]) -> None:
        self.module, self.function, self.kinds = module, function, kinds
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.known: dict[str, Value] = {}  # variables: their kind, and where their parts are
        self.count = 0
        self.over = False  # nothing comes after this in the block
        self.loops: list[tuple[str, str]] = []  # where continue and break lead
        self.result: Kind = Known(None)  # as the first return has it
        self.returns = False

    def text(self, name: str) -> str:
        node = _functions(self.function.__code__.co_filename)[self.function.__name__]
        given = []
        for argument, kind in zip(node.args.args, self.kinds, strict=True):
            parts = [f"%{argument.arg}.{n}" for n in range(len(leaves(kind)))]
            given += [f"{leaf} {part}" for leaf, part in zip(leaves(kind), parts, strict=True)]
            self.assign(argument.arg, Value(kind, tuple(parts)))
        for statement in node.body:
            self.visit(statement)
        if not self.over:
            self.lines.append("unreachable" if leaves(self.result) else "ret void")
        body = "\n  ".join([*self.slots, *self.lines])
        return f"define internal {_returned(leaves(self.result))} @{name}({', '.join(given)}) nounwind {{\n  {body}\n}}"

    # Lines.

    def emit(self, what: str) -> str:
        self.count += 1
        self.lines.append(f"%t{self.count} = {what}")
        return f"%t{self.count}"

    def label(self) -> str:
        self.count += 1
        return f"b{self.count}"

    def begin(self, label: str) -> None:
        if not self.over:
            self.lines.append(f"br label %{label}")
        self.lines.append(f"{label}:")
        self.over = False

    def end(self, line: str) -> None:
        self.lines.append(line)
        self.over = True

    def generic_visit(self, node: ast.AST) -> Any:
        where = f"{self.function.__code__.co_filename}:{getattr(node, 'lineno', '?')}"
        raise TypeError(f"{where}: {ast.unparse(node)!r} cannot be compiled")

    # Kinds.

    def as_value(self, what: Any) -> Value:
        """What Python knows already."""
        if isinstance(what, bool | np.bool_):
            return Value(TRUTH, ("true" if what else "false",))
        if isinstance(what, int | np.integer):
            return Value(INT, (str((int(what) + (1 << 63)) % (1 << 64) - (1 << 63)),))
        if isinstance(what, float):
            return Value(REAL, (f"0x{struct.unpack('>Q', struct.pack('>d', what))[0]:016X}",))
        return Value(Known(what))

    def cast(self, value: Value, kind: Kind, *, cut: bool = False) -> Value:
        """To another kind that can hold it, or one that loses something where that is asked for."""
        old, (part, *_) = value.kind, value.parts or ("",)
        if old == kind:
            return value
        if not (isinstance(old, Scalar) and isinstance(kind, Scalar)) or (not cut and kind.rank < old.rank):
            raise TypeError(f"{self.function.__name__}: {old} where there should be {kind}")
        if cut and {old, kind} == {INT, WORD}:
            return Value(kind, (part,))
        if kind == TRUTH:
            test = f"icmp ne i64 {part}, 0" if old != REAL else f"fcmp une double {part}, 0.0"
            return Value(TRUTH, (self.emit(test),))
        if old == TRUTH:
            part = {"true": "1", "false": "0"}.get(part) or self.emit(f"zext i1 {part} to i64")
            return self.cast(Value(INT, (part,)), kind)
        if part.lstrip("-").isdecimal():
            return self.as_value(float(part))
        how = "fptosi" if old == REAL else "sitofp"
        return Value(kind, (self.emit(f"{how} {old.llvm} {part} to {kind.llvm}"),))

    def together(self, *values: Value) -> list[Value]:
        """As one kind, which holds them all."""
        kinds = {each.kind for each in values}
        if len(kinds) == 1 and TRUTH not in kinds:
            return list(values)
        widest = max((each for each in kinds if isinstance(each, Scalar)), key=lambda each: each.rank)
        return [self.cast(each, INT if widest == TRUTH else widest) for each in values]

    def truth(self, node: ast.expr) -> str:
        """As LLVM branches by it; `true` and `false` are known beforehand."""
        value: Value = self.visit(node)
        return "false" if value.kind == Known(None) else self.cast(value, TRUTH, cut=True).parts[0]

    # Variables, fields and places.

    def slot(self, llvm: str) -> str:
        name = f"%v{len(self.slots)}"
        self.slots.append(f"{name} = alloca {llvm}")
        return name

    def assign(self, name: str, value: Value) -> None:
        if name not in self.known:
            self.known[name] = Value(value.kind, tuple(self.slot(leaf) for leaf in leaves(value.kind)))
        held = self.known[name]
        value = self.cast(value, held.kind)
        for leaf, part, slot in zip(leaves(held.kind), value.parts, held.parts, strict=True):
            self.lines.append(f"store {leaf} {part}, ptr {slot}")

    def visit_Name(self, node: ast.Name) -> Value:
        if node.id in self.known:
            held = self.known[node.id]
            loaded = zip(leaves(held.kind), held.parts, strict=True)
            return Value(held.kind, tuple(self.emit(f"load {leaf}, ptr {slot}") for leaf, slot in loaded))
        names = self.function.__globals__
        return self.as_value(names[node.id] if node.id in names else names["__builtins__"][node.id])

    def visit_Constant(self, node: ast.Constant) -> Value:
        return self.as_value(node.value)

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        owner: Value = self.visit(node.value)
        if isinstance(owner.kind, Known):
            return self.as_value(getattr(owner.kind.value, node.attr))
        if isinstance(owner.kind, Table) and node.attr == "shape":
            axes = owner.kind.axes
            return Value(Several((INT,) * axes), owner.parts[1 : 1 + axes])
        if isinstance(owner.kind, Tables):
            return self.table(owner, node.attr)
        return self.load(*self.field(owner, node))

    def table(self, owner: Value, name: str) -> Value:
        assert isinstance(owner.kind, Tables)
        place, parts = 0, []
        for each, kind in owner.kind.kinds:
            if each == name:
                for n, leaf in enumerate(leaves(kind)):
                    at = self.emit(f"getelementptr inbounds i64, ptr {owner.parts[0]}, i64 {place + n}")
                    parts.append(self.emit(f"load {leaf}, ptr {at}, !invariant.load !1"))
                return Value(kind, tuple(parts))
            place += width(kind)
        raise TypeError(f"{self.function.__name__}: there is no table {name}")

    def field(self, owner: Value, node: ast.Attribute) -> tuple[str, np.dtype[Any], str]:
        """Of a row: where it is, what is there, and which others are not."""
        fields: Any = owner.kind.dtype.fields if isinstance(owner.kind, Row) else {}
        if node.attr not in fields:
            raise self.generic_visit(node)
        kind, offset = fields[node.attr][:2]
        at = self.emit(f"getelementptr inbounds i8, ptr {owner.parts[0]}, i64 {offset}")
        return at, kind, self.module.tag(owner.kind, node.attr)

    def load(self, at: str, dtype: np.dtype[Any], tag: str) -> Value:
        kind, llvm, widened, _ = _STORED[dtype.str[1:]]
        found = self.emit(f"load {llvm}, ptr {at}, {tag}")
        return Value(kind, (self.emit(f"{widened} {llvm} {found} to {kind.llvm}") if widened else found,))

    def store(self, at: str, dtype: np.dtype[Any], tag: str, value: Value) -> None:
        kind, llvm, _, cut = _STORED[dtype.str[1:]]
        part = self.cast(value, kind).parts[0]
        part = self.emit(f"{cut} {kind.llvm} {part} to {llvm}") if cut else part
        self.lines.append(f"store {llvm} {part}, ptr {at}, {tag}")

    def element(self, owner: Value, index: ast.expr) -> str:
        """Where it is."""
        table = owner.kind
        assert isinstance(table, Table)
        indices = index.elts if isinstance(index, ast.Tuple) else [index]
        if len(indices) != table.axes:
            raise self.generic_visit(index)
        place = self.cast(self.visit(indices[0]), INT).parts[0]
        if table.axes == 2:
            row = self.emit(f"mul nsw i64 {place}, {owner.parts[2]}")
            place = self.emit(f"add nsw i64 {row}, {self.cast(self.visit(indices[1]), INT).parts[0]}")
        size = f"[{table.dtype.itemsize} x i8]"
        if table.sliced:
            place, size = self.emit(f"mul nsw i64 {place}, {owner.parts[-1]}"), "i8"
        return self.emit(f"getelementptr inbounds {size}, ptr {owner.parts[0]}, i64 {place}")

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        owner: Value = self.visit(node.value)
        if isinstance(owner.kind, Several) and isinstance(node.slice, ast.Constant):
            return Value(INT, (owner.parts[int(str(node.slice.value))],))  # of a shape
        if not isinstance(owner.kind, Table):
            raise self.generic_visit(node)
        if isinstance(node.slice, ast.Slice):
            return self.some(owner, node.slice)
        at, dtype = self.element(owner, node.slice), owner.kind.dtype
        return Value(Row(dtype), (at,)) if dtype.names else self.load(at, dtype, self.module.tag(dtype))

    def some(self, owner: Value, asked: ast.Slice) -> Value:
        """A slice forwards of a table with one axis, from and to places that are counted from its beginning."""
        assert isinstance(owner.kind, Table)
        if any(isinstance(each, ast.UnaryOp) for each in (asked.lower, asked.upper, asked.step)):
            raise self.generic_visit(asked)
        start, stop, step = (
            owner.parts[1] if each is None and n == 1 else str(n // 2) if each is None else self.visit(each).parts[0]
            for n, each in enumerate((asked.lower, asked.upper, asked.step))
        )
        start, stop = (self.least("slt", end, owner.parts[1]) for end in (start, stop))
        span = self.emit(f"add i64 {self.emit(f'sub i64 {stop}, {start}')}, {self.emit(f'sub i64 {step}, 1')}")
        count = self.emit(f"sdiv i64 {self.least('sgt', span, '0')}, {step}")
        size = owner.kind.dtype.itemsize
        old = owner.parts[-1] if owner.kind.sliced else str(size)
        at = self.emit(f"getelementptr i8, ptr {owner.parts[0]}, i64 {self.emit(f'mul i64 {start}, {old}')}")
        if asked.step is None:
            return Value(owner.kind, (at, count, *owner.parts[2:]))
        stride = self.emit(f"mul i64 {step}, {old}")
        return Value(Table(owner.kind.dtype, 1, True), (at, count, stride))

    def least(self, order: str, one: str, other: str) -> str:
        test = self.emit(f"icmp {order} i64 {one}, {other}")
        return self.emit(f"select i1 {test}, i64 {one}, i64 {other}")

    # Expressions.

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        return self.combine(node, self.visit(node.left), self.visit(node.right))

    def combine(self, node: ast.BinOp | ast.AugAssign, left: Value, right: Value) -> Value:
        op = type(node.op)
        one, other = self.together(left, right)
        if op in (ast.Div, ast.Pow):
            one, other = self.cast(one, REAL), self.cast(other, REAL)
        a, b, real = one.parts[0], other.parts[0], one.kind == REAL
        if op in _PLAIN:
            what = f"{_PLAIN[op][real]} {one.kind.llvm} {a}, {b}"  # type: ignore[union-attr]
        elif op is ast.Div:
            what = f"fdiv double {a}, {b}"
        elif op is ast.Pow:
            self.module.declare("double @llvm.pow.f64(double, double)")
            what = f"call double @llvm.pow.f64(double {a}, double {b})"
        elif op is ast.RShift and not real:
            what = f"{'lshr' if one.kind == WORD else 'ashr'} i64 {a}, {b}"
        elif op in _BITS and not real:
            what = f"{_BITS[op]} i64 {a}, {b}"
        elif op is ast.Mod or (op is ast.FloorDiv and one.kind == INT):
            return Value(one.kind, (self.divide(op is ast.Mod, real, a, b),))
        else:
            raise self.generic_visit(node)
        return Value(one.kind, (self.emit(what),))

    def divide(self, rest: bool, real: bool, a: str, b: str) -> str:
        """Rounded down, so that the rest has the sign of the divisor."""
        llvm = "double" if real else "i64"
        left = self.emit(f"{'frem' if real else 'srem'} {llvm} {a}, {b}")
        zero, less = ("0.0", "fcmp olt double") if real else ("0", "icmp slt i64")
        some = self.emit(f"{'fcmp une' if real else 'icmp ne'} {llvm} {left}, {zero}")
        signs = self.emit(f"xor i1 {self.emit(f'{less} {left}, {zero}')}, {self.emit(f'{less} {b}, {zero}')}")
        off = self.emit(f"and i1 {some}, {signs}")
        if rest:
            fixed = self.emit(f"{'fadd' if real else 'add'} {llvm} {left}, {b}")
            return self.emit(f"select i1 {off}, {llvm} {fixed}, {llvm} {left}")
        return self.emit(f"sub i64 {self.emit(f'sdiv i64 {a}, {b}')}, {self.emit(f'zext i1 {off} to i64')}")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            test = self.truth(node.operand)
            known = {"true": "false", "false": "true"}.get(test)
            return Value(TRUTH, (known or self.emit(f"xor i1 {test}, true"),))
        if not isinstance(node.op, ast.USub):
            raise self.generic_visit(node)
        if isinstance(node.operand, ast.Constant):
            return self.as_value(-node.operand.value)  # type: ignore[operator]
        (value,) = self.together(self.visit(node.operand))
        what = "fneg double" if value.kind == REAL else "sub i64 0,"
        return Value(value.kind, (self.emit(f"{what} {value.parts[0]}"),))

    def visit_Compare(self, node: ast.Compare) -> Value:
        if len(node.ops) > 1:
            raise self.generic_visit(node)
        left, right = self.visit(node.left), self.visit(node.comparators[0])
        op = type(node.ops[0])
        if op in (ast.Is, ast.IsNot):
            return self.as_value((left.kind == right.kind) == (op is ast.Is))
        one, other = self.together(left, right)
        how = _COMPARED[op]
        if one.kind == REAL:
            how = f"fcmp {'u' if how == 'ne' else 'o'}{how} double"
        else:
            how = f"icmp {how if how in ('eq', 'ne') else ('u' if one.kind == WORD else 's') + how} i64"
        return Value(TRUTH, (self.emit(f"{how} {one.parts[0]}, {other.parts[0]}"),))

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        """What decides ends it, and what is known decides beforehand."""
        decides = "false" if isinstance(node.op, ast.And) else "true"
        slot, done = self.slot("i1"), self.label()
        self.lines.append(f"store i1 {decides}, ptr {slot}")
        asked = False
        for each in node.values[:-1]:
            test = self.truth(each)
            if test == decides:
                if not asked:
                    return Value(TRUTH, (decides,))
                break
            if test in ("true", "false"):
                continue
            asked, further = True, self.label()
            ways = (further, done) if decides == "false" else (done, further)
            self.end(f"br i1 {test}, label %{ways[0]}, label %{ways[1]}")
            self.begin(further)
        else:
            test = self.truth(node.values[-1])
            if not asked:
                return Value(TRUTH, (test,))
            self.lines.append(f"store i1 {test}, ptr {slot}")
        self.begin(done)
        return Value(TRUTH, (self.emit(f"load i1, ptr {slot}"),))

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        test = self.truth(node.test)
        name = f"?{node.lineno}.{node.col_offset}"
        self.branch(test, lambda: self.assign(name, self.visit(node.body)),
                    lambda: self.assign(name, self.visit(node.orelse)))  # fmt: skip
        return self.visit_Name(ast.Name(name))

    def visit_Tuple(self, node: ast.Tuple) -> Value:
        values = [self.visit(each) for each in node.elts]
        return Value(
            Several(tuple(each.kind for each in values)), tuple(part for each in values for part in each.parts)
        )

    def visit_Call(self, node: ast.Call) -> Value:
        called: Value = self.visit(node.func)
        given = [self.visit(each) for each in node.args]
        if isinstance(called.kind, Pointer):
            return self.call_pointer(called, given)
        what = called.kind.value if isinstance(called.kind, Known) else None
        if node.keywords or what is None:
            raise self.generic_visit(node)
        if what is foreign:
            return self.call_foreign(*given)
        if what is bits_of:
            return Value(INT, (self.emit(f"bitcast double {self.cast(given[0], REAL).parts[0]} to i64"),))
        if what is len:
            return Value(INT, (given[0].parts[1],))
        if what in (int, np.int64):
            return self.cast(given[0], INT, cut=True)
        if what in (float, bool, np.uint64):
            return self.cast(given[0], {float: REAL, bool: TRUTH}.get(what, WORD), cut=True)
        if what in (min, max):
            best: Value = functools.reduce(functools.partial(self.choose, "lt" if what is min else "gt"), given)
            return best
        if what in _INTRINSICS:
            name = f"double @llvm.{_INTRINSICS[what]}.f64"
            self.module.declare(f"{name}(double)")
            found = Value(REAL, (self.emit(f"call {name}(double {self.cast(given[0], REAL).parts[0]})"),))
            return self.cast(found, INT, cut=True) if what in (math.ceil, math.floor) else found
        return self.call(what, given)

    def choose(self, how: str, one: Value, other: Value) -> Value:
        """The first, unless the other is less or more."""
        one, other = self.together(one, other)
        a, b = one.parts[0], other.parts[0]
        test = self.emit(f"fcmp o{how} double {b}, {a}" if one.kind == REAL else f"icmp s{how} i64 {b}, {a}")
        llvm = leaves(one.kind)[0]
        return Value(one.kind, (self.emit(f"select i1 {test}, {llvm} {b}, {llvm} {a}"),))

    def call(self, function: Callable[..., Any], given: list[Value]) -> Value:
        name, result = self.module.instance(function, tuple(each.kind for each in given))
        parts = [f"{leaf} {part}" for each in given for leaf, part in zip(leaves(each.kind), each.parts, strict=True)]
        back = leaves(result)
        line = f"call {_returned(back)} @{name}({', '.join(parts)})"
        if not back:
            self.lines.append(line)
            return Value(result)
        found = self.emit(line)
        if len(back) == 1:
            return Value(result, (found,))
        return Value(result, tuple(self.emit(f"extractvalue {_returned(back)} {found}, {n}") for n in range(len(back))))

    def call_pointer(self, called: Value, given: list[Value]) -> Value:
        """Numba hands an array over as one structure: who owns it, twice; items, bytes of one, where, and how far."""
        parts = []
        shape = "{ ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }"
        for each in given:
            if not isinstance(each.kind, Table):
                parts.append(f"{leaves(each.kind)[0]} {each.parts[0]}")
                continue
            size, made = each.kind.dtype.itemsize, "zeroinitializer"
            fields = {"2": f"i64 {each.parts[1]}", "3": f"i64 {size}", "4": f"ptr {each.parts[0]}",
                      "5, 0": f"i64 {each.parts[1]}", "6, 0": f"i64 {size}"}  # fmt: skip
            for place, value in fields.items():
                made = self.emit(f"insertvalue {shape} {made}, {value}, {place}")
            parts.append(f"{shape} {made}")
        return Value(INT, (self.emit(f"call i64 {called.parts[0]}({', '.join(parts)})"),))

    def call_foreign(self, address: Value, *given: Value) -> Value:
        at = self.emit(f"inttoptr i64 {address.parts[0]} to ptr")
        parts = [f"{leaves(each.kind)[0]} {each.parts[0]}" for each in given]
        return Value(INT, (self.emit(f"call i64 {at}({', '.join(parts)})"),))

    # Statements.

    def visit(self, node: ast.AST) -> Any:
        return None if self.over and isinstance(node, ast.stmt) else super().visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(each, ast.Tuple) for each in (node.value, *node.targets)) and len(node.targets) == 1:
            values = [self.visit(each) for each in node.value.elts]  # type: ignore[attr-defined]
            for target, value in zip(node.targets[0].elts, values, strict=True):  # type: ignore[attr-defined]
                self.put(target, value)
            return
        value = self.visit(node.value)
        for each in node.targets:
            self.put(each, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.put(node.target, self.visit(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.assign(node.target.id, self.combine(node, self.visit(node.target), self.visit(node.value)))
            return
        at, dtype, tag = self.place(node.target)
        value = self.visit(node.value)
        self.store(at, dtype, tag, self.combine(node, self.load(at, dtype, tag), value))

    def place(self, target: ast.expr) -> tuple[str, np.dtype[Any], str]:
        """A field or an element, to be changed."""
        if not isinstance(target, ast.Attribute | ast.Subscript):
            raise self.generic_visit(target)
        owner = self.visit(target.value)
        if isinstance(target, ast.Attribute):
            return self.field(owner, target)
        if not isinstance(owner.kind, Table):
            raise self.generic_visit(target)
        return self.element(owner, target.slice), owner.kind.dtype, self.module.tag(owner.kind.dtype)

    def put(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
        elif isinstance(target, ast.Tuple):
            assert isinstance(value.kind, Several)
            for each, kind, part in zip(target.elts, value.kind.kinds, value.parts, strict=True):
                self.put(each, Value(kind, (part,)))
        else:
            at, dtype, tag = self.place(target)
            if dtype.names is None:
                self.store(at, dtype, tag, value)
            else:  # a whole row
                self.module.declare("void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
                parts = f"ptr {at}, ptr {value.parts[0]}, i64 {dtype.itemsize}, i1 false"
                self.lines.append(f"call void @llvm.memmove.p0.p0.i64({parts})")

    def branch(self, test: str, yes: Callable[[], Any], no: Callable[[], Any]) -> None:
        then, other, after = self.label(), self.label(), self.label()
        self.end(f"br i1 {test}, label %{then}, label %{other}")
        ended = True
        for label, what in ((then, yes), (other, no)):
            self.begin(label)
            what()
            ended = ended and self.over
            if not self.over:
                self.end(f"br label %{after}")
        if not ended:
            self.begin(after)

    def visit_If(self, node: ast.If) -> None:
        test = self.truth(node.test)
        if test in ("true", "false"):
            self.all_of(node.body if test == "true" else node.orelse)
        else:
            self.branch(test, lambda: self.all_of(node.body), lambda: self.all_of(node.orelse))

    def all_of(self, statements: list[ast.stmt]) -> None:
        for each in statements:
            self.visit(each)

    def visit_While(self, node: ast.While) -> None:
        again, body, after = self.label(), self.label(), self.label()
        self.begin(again)
        test = self.truth(node.test)
        self.end(f"br i1 {test}, label %{body}, label %{after}")
        self.loop(node, body, again, after)

    def loop(self, node: ast.While | ast.For, body: str, again: str, after: str) -> None:
        """Its body, and back."""
        self.begin(body)
        self.loops.append((again, after))
        self.all_of(node.body)
        self.loops.pop()
        if not self.over:
            self.end(f"br label %{again}")
        self.begin(after)

    def visit_For(self, node: ast.For) -> None:
        asked = node.iter
        if not (isinstance(asked, ast.Call) and isinstance(asked.func, ast.Name) and asked.func.id == "range"):
            raise self.generic_visit(asked)
        bounds = [self.cast(self.visit(each), INT).parts[0] for each in asked.args]
        start, stop = ("0", bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) == 3 else "1"
        counter = self.slot("i64")
        self.lines.append(f"store i64 {self.emit(f'sub i64 {start}, {step}')}, ptr {counter}")
        again, body, after = self.label(), self.label(), self.label()
        self.begin(again)
        now = self.emit(f"add i64 {self.emit(f'load i64, ptr {counter}')}, {step}")
        self.lines.append(f"store i64 {now}, ptr {counter}")
        test = self.emit(f"icmp {'sgt' if step.startswith('-') else 'slt'} i64 {now}, {stop}")
        self.end(f"br i1 {test}, label %{body}, label %{after}")
        self.begin(body)
        self.put(node.target, Value(INT, (now,)))
        self.loop(node, self.label(), again, after)

    def visit_Break(self, _: ast.Break) -> None:
        self.end(f"br label %{self.loops[-1][1]}")

    def visit_Continue(self, _: ast.Continue) -> None:
        self.end(f"br label %{self.loops[-1][0]}")

    def visit_Return(self, node: ast.Return) -> None:
        value = Value(Known(None)) if node.value is None else self.visit(node.value)
        if not self.returns:
            self.returns, self.result = True, value.kind
        value = self.cast(value, self.result)
        back = leaves(self.result)
        if len(back) < 2:
            self.end(f"ret {back[0]} {value.parts[0]}" if back else "ret void")
            return
        made = "undef"
        for n, (leaf, part) in enumerate(zip(back, value.parts, strict=True)):
            made = self.emit(f"insertvalue {_returned(back)} {made}, {leaf} {part}, {n}")
        self.end(f"ret {_returned(back)} {made}")
