from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
from mutation.account import ROOT, explained, groups, shown
from mutation.changes import Change, changed, changes
from mutation.live import take_effect

MODULES = sorted(path for group in groups() for path in group.modules.values())


def texts(source: str, kind: str) -> list[str]:
    """Return what the lines of a small function become."""
    whole = f"def f(a, b, c):\n    {source}\n"
    made = [changed(whole, one) for one in changes(whole) if one.kind == kind]
    return [one.splitlines()[1].strip() for one in made]


@pytest.mark.parametrize(
    ("source", "kind", "become"),
    [
        ("c = a == b", "compare", ["c = a != b"]),
        ("c = a < b", "compare", ["c = a <= b"]),
        ("c = a in ('', b)", "drop", ["c = a in (b,)", "c = a in ('',)"]),
        ("c = a and b", "drop", ["c = (a)", "c = (b)"]),
        ("c = a if not b else c", "negate", ["c = a if bool(b) else c"]),
        ("c = [x for x in a if x.b]", "drop", ["c = [x for x in a if True]"]),
        ("c = any(a)", "call", ["c = all(a)"]),
        ("c = (*a, *b)", "drop", ["c = (*a,)", "c = (*b,)"]),
        ("c = a | b", "drop", ["c = (a)", "c = (b)"]),
        ("c = f(a, b=True)", "constant", ["c = f(a, b=False)"]),
        ("a.b = c", "delete", ["pass"]),
        ("f(a)", "delete", ["pass"]),
        ("raise a", "delete", ["pass"]),
        ("a = b", "delete", []),
        ("_log.info('%s', a)", "delete", []),
        ("c = f'{a == b}'", "compare", []),
        (
            "f('DELETE FROM t WHERE a = ? AND b = ?', a)",
            "sql",
            [
                "f('DELETE FROM t WHERE ? IS NOT NULL AND b = ?', a)",
                "f('DELETE FROM t WHERE a = ? AND ? IS NOT NULL', a)",
            ],
        ),
        ("f('UPDATE t SET a = 1 WHERE b = 2')", "sql", ["f('UPDATE t SET a = 1 WHERE 1')"]),
    ],
)
def test_each_thing_a_line_decides_is_decided_wrongly(
    source: str, kind: str, become: list[str]
) -> None:
    assert sorted(texts(source, kind)) == sorted(become)


def test_an_error_that_is_caught_is_let_through() -> None:
    source = "def f():\n    try:\n        g()\n    except (A, B):\n        h()\n        return 1\n"
    made = [changed(source, one) for one in changes(source)]

    assert any("except (A, B):\n        raise\n" in one for one in made)
    assert any("except (B,):" in one for one in made)


def test_a_lock_is_not_taken() -> None:
    source = "async def f(self):\n    async with self.lock:\n        await g()\n"

    assert any("if True:\n" in changed(source, one) for one in changes(source))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_line_stays_at_its_number(path: Path) -> None:
    source = path.read_text("utf-8")
    lines = source.count("\n")

    found = changes(source)

    assert found
    for one in found:
        made = changed(source, one)
        assert made.count("\n") == lines
        assert made != source


def test_every_test_and_module_that_is_named_is_there() -> None:
    for group in groups():
        for path in (*group.modules.values(), *(ROOT / test for test in group.tests)):
            assert path.is_file(), path


def test_what_is_explained_is_a_change_that_can_be_made_still() -> None:
    there = {
        shown(path, source, one)
        for path in MODULES
        if path.stem in {one.module for one in explained()}
        for source in [path.read_text("utf-8")]
        for one in changes(source)
    }

    assert [one for one in explained() if one not in there] == []


# -- taking effect --------------------------------------------------------------------------------

SOURCE = """
import functools

LIMIT = 5

class Box:
    @property
    def full(self):
        return self.size > LIMIT

    @functools.cache
    def kept(self):
        return self.size == 3

def holds(size):
    def inner():
        return size == 4
    return inner()
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "boxes.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("hardpoint_boxes", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def the(function: str, kind: str = "compare") -> Change:
    (found,) = (one for one in changes(SOURCE) if (one.function, one.kind) == (function, kind))
    return found


def test_a_change_is_true_in_a_property_of_an_object_that_is_there(
    module: ModuleType, tmp_path: Path
) -> None:
    box = module.Box()
    box.size = 5
    assert not box.full

    assert take_effect(tmp_path / "boxes.py", SOURCE, the("Box.full"))

    assert box.full


def test_a_change_is_true_below_a_wrapper_and_in_an_inner_function(
    module: ModuleType, tmp_path: Path
) -> None:
    box = module.Box()
    box.size = 3

    assert take_effect(tmp_path / "boxes.py", SOURCE, the("Box.kept"))
    assert take_effect(tmp_path / "boxes.py", SOURCE, the("holds.inner"))

    assert not box.kept()
    assert not module.holds(4)


def test_a_number_is_another_for_who_imported_it(module: ModuleType, tmp_path: Path) -> None:
    assert take_effect(tmp_path / "boxes.py", SOURCE, the("", "own"))

    assert module.LIMIT == 6


# -- a whole run ----------------------------------------------------------------------------------

RUN = """
import json, sys
from pathlib import Path
import pytest
from mutation.changes import changes
from mutation.inside import Forks, Tried

path = Path(sys.argv[1])
source = path.read_text()
picked = [Tried(path, one) for one in changes(source)]
forks = Forks(picked, {path: source}, 2, lambda fate: None)
pytest.main(["-q", "-s", "-p", "no:randomly", "-p", "no:cacheprovider", sys.argv[2]],
            plugins=[forks])
said = [(one.tried.change.function, one.ending) for one in forks.fates]
print("SAID" + json.dumps([forks.why, sorted(said)]))
"""


def run(root: Path, code: str, tests: str) -> tuple[str, list[list[str]]]:
    (root / "pytest.ini").write_text(f"[pytest]\npythonpath = {root}\n")
    (root / "answers.py").write_text(textwrap.dedent(code))
    (root / "test_answers.py").write_text("import answers\n" + textwrap.dedent(tests))
    ended = subprocess.run(
        [sys.executable, "-c", RUN, str(root / "answers.py"), str(root / "test_answers.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    why, said = json.loads(ended.stdout.rpartition("SAID")[2])
    return why, said


def test_what_a_test_notices_is_killed_and_what_none_does_survives(tmp_path: Path) -> None:
    code = """
        def looked_at(a):
            return a > 3

        def called(a):
            return a > 3

        def forgotten(a):
            return a > 3
    """
    tests = """
        def test_three_is_not_enough():
            assert not answers.looked_at(3)
            assert answers.looked_at(4)

        def test_it_can_be_called():
            answers.called(9)
    """
    why, said = run(tmp_path, code, tests)

    assert not why
    assert said == [
        ["called", "survived"],
        ["called", "survived"],
        ["forgotten", "run by no test"],
        ["forgotten", "run by no test"],
        ["looked_at", "killed"],
        ["looked_at", "killed"],
    ]


def test_nothing_is_tried_on_tests_that_fail_anyway(tmp_path: Path) -> None:
    why, said = run(tmp_path, "def f(a): return a > 3\n", "def test_f(): assert answers.f(1)\n")

    assert "test_f" in why
    assert said == []
