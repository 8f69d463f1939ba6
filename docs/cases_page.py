"""The page of field cases: public bug reports, what is right here, and the tests that show it.

The cases are tables in ``tests/field_cases``, one file per group. A test that shows one carries
``@pytest.mark.field_case("B09")``; marks are read from the source, nothing is imported.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDS = ("root", "hwlab", "cluster", "gpu")
"""Marks of tests that not every machine can run, and the folders where every test has one."""
UNTESTED = {"not_ours": "Does not apply", "open": "Open", "later": "Later"}
_KEYS = {"reports", "wrong", "right", *UNTESTED}
_INTRO = """<!-- Written by `make docs` from tests/field_cases and the marks on the tests. -->

# Field cases

What went wrong on other people's nodes with software of this kind, from public bug reports, and
what Hardpoint does instead. A reference such as `kubernetes/kubernetes#125579` is an issue or a
pull request on GitHub. Each case names the tests that show it here, or says why none does:

- **Does not apply**: nothing here can fail in that way, for the reason given;
- **Later**: what would show it is not built yet;
- **Open**: known, and not settled.

A word in brackets after a test is what it needs: a real Kubernetes node (`cluster`), emulated
hardware (`hwlab`), root. Numbers are kept when a case is dropped, so they have gaps.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its reports, what went wrong there, what is right here, what no test shows."""

    id: str
    reports: tuple[str, ...]
    wrong: str
    right: str
    untested: tuple[tuple[str, str], ...] = ()  # (key of UNTESTED, sentence)


@dataclass(frozen=True, slots=True)
class Group:
    """The cases of one file."""

    letter: str
    title: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """One case's id on one test."""

    case: str
    path: str  # from the repository's root
    test: str
    needs: tuple[str, ...]


def groups(folder: Path = ROOT / "tests/field_cases") -> list[Group]:
    """Read every table of cases. ValueError names the case that is not as it should be."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        table = tomllib.loads(path.read_text())
        title = table.pop("title")
        cases = tuple(_case(path.stem, name, row) for name, row in sorted(table.items()))
        found.append(Group(path.stem, title, cases))
    return found


def _case(letter: str, name: str, row: dict[str, object]) -> Case:
    if not re.fullmatch(rf"{letter}\d\d", name) or not row.keys() <= _KEYS:
        message = f"{letter}.toml: {name}: {sorted(row)}"
        raise ValueError(message)
    reports, wrong, right = row["reports"], str(row["wrong"]), str(row["right"])
    if not isinstance(reports, list):
        message = f"{name}: reports is a list"
        raise TypeError(message)
    untested = tuple((key, str(row[key])) for key in UNTESTED if key in row)
    return Case(name, tuple(reports), wrong, right, untested)


def marks(tests: Path = ROOT / "tests") -> list[Mark]:
    """Find every mark on a test. ValueError where a mark stands on what is no test."""
    return sorted(
        mark
        for path in tests.rglob("*.py")
        if "field_case(" in (text := path.read_text())
        for mark in _marks_of(ast.parse(text), path.relative_to(tests.parent))
    )


def _marks_of(tree: ast.Module, path: Path) -> Iterator[Mark]:
    module = [s.value for s in tree.body if isinstance(s, ast.Assign) and _is_pytestmark(s)]
    seen = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        calls = [d for d in node.decorator_list if _mark_name(d) == "field_case"]
        seen += len(calls)
        if calls and not (node.name.startswith("test_") and path.name.startswith("test_")):
            raise _misplaced(path, node.lineno)
        needs = _needs([*module, *node.decorator_list], path)
        yield from (Mark(case, str(path), node.name, needs) for c in calls for case in _ids(c))
    everywhere = [n for n in ast.walk(tree) if _mark_name(n) == "field_case"]
    if len(everywhere) != seen:
        raise _misplaced(path, 0)


def _is_pytestmark(statement: ast.Assign) -> bool:
    return any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in statement.targets)


def _mark_name(node: ast.AST) -> str:
    """Return ``x`` of ``pytest.mark.x`` or ``pytest.mark.x(...)``, else an empty string."""
    called = node.func if isinstance(node, ast.Call) else node
    if not (isinstance(called, ast.Attribute) and isinstance(called.value, ast.Attribute)):
        return ""
    if called.attr == "field_case" and not isinstance(node, ast.Call):
        return ""  # the function of a call that was seen
    return called.attr if called.value.attr == "mark" else ""


def _needs(nodes: list[ast.expr], path: Path) -> tuple[str, ...]:
    inner = {_mark_name(part) for node in nodes for part in ast.walk(node)} | {*path.parts}
    return tuple(need for need in NEEDS if need in inner)


def _ids(call: ast.expr) -> list[str]:
    return [str(a.value) for a in getattr(call, "args", ()) if isinstance(a, ast.Constant)]


def _misplaced(path: Path, line: int) -> ValueError:
    return ValueError(f"{path}:{line}: field_case stands on a function whose name begins test_")


def page() -> str:
    """Return the page."""
    found, marked = groups(), marks()
    return "".join([_INTRO, _summary(found, marked), *(_group(g, marked) for g in found)])


def _summary(found: list[Group], marked: list[Mark]) -> str:
    shown = {mark.case for mark in marked}
    rows = ["\n| group | cases | shown by tests |"]
    rows += [f" {word.lower()} |" for word in UNTESTED.values()]
    rows += ["\n| - | - | - | - | - | - |\n"]
    for group in found:
        counts = Counter(key for case in group.cases for key, _ in case.untested)
        tested = sum(case.id in shown for case in group.cases)
        anchor = re.sub(r"[^\w -]", "", f"{group.letter}. {group.title}".lower()).replace(" ", "-")
        cells = [f"[{group.letter}. {group.title}](#{anchor})", len(group.cases), tested]
        cells += [counts[key] or "" for key in UNTESTED]
        rows.append(f"| {' | '.join(str(cell) for cell in cells)} |\n")
    return "".join(rows)


def _group(group: Group, marked: list[Mark]) -> str:
    cases = [_section(case, [m for m in marked if m.case == case.id]) for case in group.cases]
    return "".join([f"\n## {group.letter}. {group.title}\n", *cases])


def _section(case: Case, marked: list[Mark]) -> str:
    reports = ", ".join(case.reports) or "no public report: our own input"
    lines = [f"\n**{case.id}** · {reports}\n\n- There: {case.wrong}\n- Here: {case.right}\n"]
    lines += [f"- {UNTESTED[key]}: {text}\n" for key, text in case.untested]
    lines += [f"- Shown by {_link(mark)}\n" for mark in marked]
    return "".join(lines)


def _link(mark: Mark) -> str:
    needs = f" ({', '.join(mark.needs)})" if mark.needs else ""
    return f"[`{mark.test}`](../../{mark.path}){needs}"
