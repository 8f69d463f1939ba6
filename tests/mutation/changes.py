"""Small wrong changes of a module, one at a time: what a test ought to notice.

A change is text for a span of the source, so that what is shown is the line as it would read, and
it leaves every line at its number. It lies inside a function, or is a number or SQL that a module
names. What only words a message is left alone: logging, the arguments of an error, f-strings.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
_CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}
_EMPTY = {"tuple": "()", "list": "[]", "dict": "{}", "set": "set()", "frozenset": "frozenset()"}
_SQL = re.compile(r"\s*(SELECT|UPDATE|DELETE|INSERT|REPLACE)\b")
_SQL_CHANGES = (
    (re.compile(r"\b[\w.]+ ?= ?\?(?= AND|\)|$)"), "? IS NOT NULL"),  # the condition is dropped
    (re.compile(r"(?<=WHERE )[\w.]+ ?= ?(?:\d+|'\w+')"), "1"),
    (re.compile(r"(?<=AND )[\w.]+ ?= ?(?:\d+|'\w+')"), "1"),
    (re.compile(r" OR (?:IGNORE|REPLACE)\b"), ""),
    (re.compile(r" ORDER BY [\w., ]+$"), ""),
)
_LOGS = frozenset({"_log", "log", "logger", "logging"})
_Simple = ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Raise | ast.Delete
_Lasting = ast.Attribute | ast.Subscript


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change; ``start`` and ``end`` are offsets in bytes."""

    kind: str
    function: str
    """Qualified name; empty for what a module names."""
    line: int
    lines: range
    """The lines of the statement that it is in: who runs none of them cannot notice it."""
    start: int
    end: int
    text: str


@functools.cache
def changes(source: str) -> tuple[Change, ...]:
    """Return every change of a module's source that is Python still, by place."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    unique = {(one.start, one.end, one.text): one for one in finder.found}
    found = [one for one in unique.values() if _compiles(changed(source, one))]
    return tuple(sorted(found, key=lambda one: (one.start, one.end, one.text)))


def changed(source: str, change: Change) -> str:
    """Return the source with a change, every line at its number."""
    raw = source.encode()
    text, gone = change.text, raw[change.start : change.end].count(b"\n")
    if gone:
        is_statement = change.kind in ("delete", "rethrow")
        text = text + "\n" * gone if is_statement else f"({text}{chr(10) * gone})"
    return (raw[: change.start] + text.encode() + raw[change.end :]).decode()


def _compiles(source: str) -> bool:
    try:
        compile(source, "<changed>", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder(ast.NodeVisitor):
    """Walks a module; keeps the function and the statement that it is in."""

    def __init__(self, source: str) -> None:
        self.found: list[Change] = []
        raw = source.encode()
        self._starts = [0, 0, *(at + 1 for at, byte in enumerate(raw) if byte == 0x0A)]
        self._names: list[str] = []
        self._returns: list[ast.expr | None] = []
        self._lines = range(0)

    def _add(self, kind: str, node: ast.expr | ast.stmt, text: str) -> None:
        self._span(kind, node, node, text)

    def _span(
        self, kind: str, first: ast.expr | ast.stmt, last: ast.expr | ast.stmt, text: str
    ) -> None:
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        change = Change(
            kind=kind,
            function=".".join(self._names),
            line=first.lineno,
            lines=self._lines,
            start=self._starts[first.lineno] + first.col_offset,
            end=self._starts[last.end_lineno] + last.end_col_offset,
            text=text,
        )
        if self._returns or kind == "own":
            self.found.append(change)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            outer, self._lines = self._lines, _header(node)
            super().visit(node)
            self._lines = outer
        else:
            super().visit(node)

    # -- what is walked, and what is not ----------------------------------------------------------

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for one in node.body:
            self.visit(one)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._names.append(node.name)
        self._returns.append(node.returns)
        for one in node.body:
            self.visit(one)
        self._returns.pop()
        self._names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A message."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """For the type checker."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._statement(node, node.target)
        if node.value is not None:
            self._own(node.target, node.value)
            self.visit(node.value)

    # -- statements -------------------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call) and not _is_log(value):
            self._add("delete", node, "pass")
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._statement(node, *node.targets)
        self._own(node.targets[0], node.value)
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("delete", node, "pass")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add("delete", node, "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        self._add("delete", node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add("delete", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._add("delete", node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._add("delete", node, "pass")
            return
        empty = _empty(self._returns[-1], node.value)
        if empty and empty != ast.unparse(node.value):
            self._add("return", node.value, empty)
        self.generic_visit(node)

    def _statement(self, node: _Simple, *targets: ast.expr) -> None:
        flat = [t for one in targets for t in (one.elts if isinstance(one, ast.Tuple) else [one])]
        if all(isinstance(one, _Lasting) for one in flat):
            self._add("delete", node, "pass")

    def _own(self, target: ast.expr, value: ast.expr) -> None:
        """What a module names: a number, or a statement for the database."""
        if self._names or not isinstance(target, ast.Name) or not isinstance(value, ast.Constant):
            return
        own = value.value
        if isinstance(own, int | float) and not isinstance(own, bool):
            self._add("own", value, repr(own + 1))
        elif isinstance(own, str) and _SQL.match(own):
            for text in _sql(own):
                self._add("own", value, repr(text))

    # -- conditions -------------------------------------------------------------------------------

    def _condition(self, test: ast.expr) -> None:
        has_own = isinstance(test, ast.Compare | ast.BoolOp | ast.Constant) or (
            isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        )
        if not has_own:
            self._add("negate", test, f"not ({ast.unparse(test)})")

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self._condition(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for one in node.ifs:
            self._add("drop", one, "True")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for at, op in enumerate(node.ops):
            ops = [*node.ops[:at], _COMPARE[type(op)](), *node.ops[at + 1 :]]
            self._add("compare", node, ast.unparse(ast.Compare(node.left, ops, node.comparators)))
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.Tuple):
                self._elements(right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for one in node.values:
            left = [other for other in node.values if other is not one]
            rest = left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
            self._add("drop", node, f"({ast.unparse(rest)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("negate", node, f"bool({ast.unparse(node.operand)})")
        self.generic_visit(node)

    # -- values -----------------------------------------------------------------------------------

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.BitOr | ast.BitAnd):
            self._add("drop", node, f"({ast.unparse(node.left)})")
            self._add("drop", node, f"({ast.unparse(node.right)})")
        elif type(node.op) in _BINARY:
            other = ast.BinOp(node.left, _BINARY[type(node.op)](), node.right)
            self._add("operator", node, f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _CALLS:
            self._add("call", node.func, _CALLS[name])
        self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        if any(isinstance(one, ast.Starred) for one in node.elts):
            self._elements(node)
        self.generic_visit(node)

    def visit_List(self, node: ast.List) -> None:
        if any(isinstance(one, ast.Starred) for one in node.elts):
            self._elements(node)
        self.generic_visit(node)

    def _elements(self, node: ast.Tuple | ast.List) -> None:
        for one in node.elts if len(node.elts) > 1 else ():
            left = [other for other in node.elts if other is not one]
            self._add("drop", node, ast.unparse(type(node)(left, ast.Load())))

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("constant", node, repr(not value))
        elif isinstance(value, int | float):
            self._add("constant", node, repr(value + 1))
        elif isinstance(value, str) and _SQL.match(value):
            for text in _sql(value):
                self._add("sql", node, repr(text))

    # -- failures and guards ----------------------------------------------------------------------

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if not isinstance(node.body[0], ast.Raise):
            self._lines = range(node.lineno, (node.body[-1].end_lineno or node.lineno) + 1)
            self._span("rethrow", node.body[0], node.body[-1], "raise")
        if isinstance(node.type, ast.Tuple):
            self._elements(node.type)
        for one in node.body:
            self.visit(one)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        if all(one.optional_vars is None for one in node.items):
            begin = ast.Pass(lineno=node.lineno, col_offset=node.col_offset)
            self._span("unguard", begin, node.items[-1].context_expr, "if True")
        self.generic_visit(node)

    visit_AsyncWith = visit_With


def _header(node: ast.stmt) -> range:
    """Return the lines of a statement, without those of the statements in it."""
    end = node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    return range(node.lineno, max(node.lineno + 1, body[0].lineno) if body else end + 1)


def _is_log(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in _LOGS
    )


def _empty(returns: ast.expr | None, value: ast.expr) -> str:
    """Return what a function may return wrongly, by its annotation; empty for nothing else."""
    said = ast.unparse(returns) if returns is not None else ""
    if said == "bool":
        return "" if isinstance(value, ast.Compare | ast.Constant) else _not(value)
    if "None" in said:
        return "None"
    return _EMPTY.get(said.partition("[")[0], "''" if said == "str" else "")


def _not(value: ast.expr) -> str:
    return f"not ({ast.unparse(value)})"


def _sql(statement: str) -> Iterator[str]:
    for pattern, text in _SQL_CHANGES:
        for found in pattern.finditer(statement):
            yield statement[: found.start()] + text + statement[found.end() :]
