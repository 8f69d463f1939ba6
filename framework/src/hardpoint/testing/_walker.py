"""``python -m hardpoint.testing._walker``: walk a run in a process that has no threads to lose."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from hardpoint.testing import durable
from hardpoint.testing._rounds import Failed, Round
from hardpoint.testing.durable import DurableRun, Fail, Fault, Reboot, Step

_MOST_PROBLEMS = 20


def main() -> None:
    """Read an order, walk, and answer with one line of JSON."""
    order = json.load(sys.stdin)
    sys.path[:] = order["path"]
    answer, sys.stdout = sys.stdout, sys.stderr
    name, facts = order["fault"]
    fault = getattr(durable, name)(**facts)
    found = Walker(_load(order["file"], order["name"]), Path(order["directory"]), fault)
    answer.write(json.dumps(found.walk(order["sample"])) + "\n")


def _load(file: str, name: str) -> DurableRun:
    module = Path(file).stem
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module] = loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part)
    run = found()
    assert isinstance(run, DurableRun)
    return run


class Walker:
    """Walks one run with one fault."""

    def __init__(self, run: DurableRun, directory: Path, fault: Fault) -> None:
        self._run, self._directory, self._fault = run, directory, fault
        self._problems: list[str] = []
        self._restarts: dict[str, int] = {}

    def walk(self, sample: int | None) -> dict[str, Any]:
        """Play a round without a fault, and one for each of its steps."""
        clean = self._round(0)
        rounds = 0
        chosen = choose([s for s in clean.steps if self._fault.concerns(s)], sample)
        if isinstance(self._fault, Reboot):
            chosen = [*chosen, Step(len(clean.steps) + 1, "end", "")]
        for step in chosen if not self._problems else ():
            played = self._round(step.number)
            rounds += played.reached is not None
            if len(self._problems) >= _MOST_PROBLEMS:
                break
        return {
            "steps": [[s.number, s.call, s.path] for s in clean.steps],
            "rounds": rounds,
            "restarts": self._restarts,
            "problems": self._problems,
        }

    def _round(self, at: int) -> Round:
        played = Round(self._run, self._directory / f"{os.getpid()}-{at}", self._fault, at)
        try:
            played.play()
        except Failed as failed:
            where = f"{self._fault} at {played.reached}" if at else "with no fault"
            self._problems.append(f"{where} ({played.root}): {failed}")
        if played.restarts and isinstance(self._fault, Fail):
            self._restarts[str(played.reached)] = played.restarts
        return played


def choose(steps: list[Step], sample: int | None) -> list[Step]:
    """Return as many of these steps: the first of each sort, and the rest evenly."""
    if sample is None or sample >= len(steps):
        return steps
    first: dict[tuple[str, str], Step] = {}
    for step in steps:
        first.setdefault((step.call, re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", step.path)), step)
    sorts = list(first.values())
    sorts = (
        [sorts[i * len(sorts) // sample] for i in range(sample)] if len(sorts) > sample else sorts
    )
    rest = [step for step in steps if step not in sorts]
    left = sample - len(sorts)
    return sorted(
        (*sorts, *(rest[i * len(rest) // left] for i in range(left))), key=lambda s: s.number
    )


if __name__ == "__main__":
    main()
