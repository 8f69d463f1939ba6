"""``make mutants``: does a test notice when the code is wrong? See docs/howto/mutants.md.

    python -m mutation [--module NAME ...] [--sample N] [--seed N] [--jobs N]

Exits with 1 where a change survives that ``explained.toml`` does not name.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import pytest
from mutation.account import ROOT, Group, Shown, explained, groups, shown
from mutation.changes import changes
from mutation.inside import KILLED, NOT_MADE, SLOW, SURVIVED, UNCOVERED, Fate, Forks, Tried

BUILD = ROOT / "build"


@dataclass(frozen=True, slots=True)
class Line:
    """One change's account, as in ``build/mutants.json``."""

    module: str
    place: str
    kind: str
    function: str
    was: str
    becomes: str
    ending: str
    seconds: float
    by: str
    why: str
    """Why it may survive; empty where that is not explained."""


def main() -> int:
    """Try what was asked for, each group in a process of its own."""
    arguments = _arguments()
    if arguments.inside:
        return _inside(arguments)
    wanted, lines, code = set(arguments.module), list[Line](), 0
    for group in groups():
        if wanted and not wanted & set(group.modules):
            continue
        answer = BUILD / f"mutants-{group.name}.json"
        answer.parent.mkdir(exist_ok=True)
        answer.unlink(missing_ok=True)
        command = [sys.executable, "-m", "mutation", "--inside", group.name, *sys.argv[1:]]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode or code
        if answer.exists():
            lines += [Line(**one) for one in json.loads(answer.read_text())]
            answer.unlink()
    (BUILD / "mutants.json").write_text(json.dumps([asdict(one) for one in lines], indent=1))
    _sum_up(lines)
    return code or (1 if any(_is_open(one) for one in lines) else 0)


def _inside(arguments: argparse.Namespace) -> int:
    (group,) = (one for one in groups() if one.name == arguments.inside)
    names = [name for name in group.modules if not arguments.module or name in arguments.module]
    sources = {group.modules[name]: group.modules[name].read_text("utf-8") for name in names}
    picked = [Tried(path, one) for path, text in sources.items() for one in changes(text)]
    if arguments.sample:
        chance = random.Random(arguments.seed)
        picked = chance.sample(picked, min(arguments.sample, len(picked)))
    known, lines = explained(), list[Line]()

    def told(fate: Fate) -> None:
        line = _line(fate, sources[fate.tried.path], known)
        lines.append(line)
        if _is_open(line):
            _print(f"{line.place}: {line.ending}\n  - {line.was}\n  + {line.becomes}")

    forks = Forks(picked, sources, arguments.jobs, told)
    quiet = ["-q", "-s", "-p", "no:randomly", "-p", "no:cacheprovider", "--no-header"]
    ended = pytest.main([*quiet, *_tests(group, arguments.test)], plugins=[forks])
    if forks.why:
        _print(f"{group.name}: nothing is tried: {forks.why}")
        return 2
    answer = BUILD / f"mutants-{group.name}.json"
    answer.write_text(json.dumps([asdict(one) for one in lines]))
    return 0 if ended in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 2


def _tests(group: Group, more: Iterable[str]) -> list[str]:
    return [str(ROOT / test) for test in (*group.tests, *more)]


def _line(fate: Fate, source: str, known: dict[Shown, str]) -> Line:
    change, path = fate.tried.change, fate.tried.path
    seen = shown(path, source, change)
    return Line(
        module=path.stem,
        place=f"{path.relative_to(ROOT)}:{change.line}",
        kind=change.kind,
        function=change.function,
        was=seen.was,
        becomes=seen.becomes,
        ending=fate.ending,
        seconds=round(fate.seconds, 2),
        by=fate.by,
        why=known.get(seen, ""),
    )


def _is_open(line: Line) -> bool:
    """Say whether a change survives for no reason that is known."""
    return line.ending in (SURVIVED, UNCOVERED) and not line.why


def _sum_up(lines: list[Line]) -> None:
    _print(f"{'module':20}{'made':>6}{'killed':>8}{'timed out':>11}{'explained':>11}{'open':>6}")
    for module in dict.fromkeys(one.module for one in lines):
        own = [one for one in lines if one.module == module and one.ending != NOT_MADE]
        ends = Counter(one.ending for one in own)
        still = sum(_is_open(one) for one in own)
        said = sum(one.ending in (SURVIVED, UNCOVERED) for one in own) - still
        counts = f"{len(own):6}{ends[KILLED]:8}{ends[SLOW]:11}{said:11}{still:6}"
        _print(f"{module:20}{counts}")


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a program


def _arguments() -> argparse.Namespace:
    names = [name for group in groups() for name in group.modules]
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("--module", action="append", choices=names, default=[])
    parser.add_argument("--sample", type=int, default=0, help="so many changes of each group")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--jobs", type=int, default=2, help="changes tried at a time")
    parser.add_argument("--test", action="append", default=[], help="one more file of tests")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
