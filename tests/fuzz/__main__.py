"""``make fuzz``: every target, or one, for a while; see docs/howto/fuzz.md.

    python -m fuzz [--target NAME] [--seconds N] [--seed N]

Without ``--target`` the seconds are those of all targets together.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from fuzz.engine import Outcome, names, outcome_of, run_at_random, run_guided

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"


def main() -> int:
    """Run what was asked for, each target in a process of its own."""
    arguments = _arguments()
    if arguments.inside:
        return _inside(arguments)
    chosen = [arguments.target] if arguments.target else list(names())
    each = max(1, round(arguments.seconds / len(chosen)))
    outcomes = [_run(name, each, arguments.seed) for name in chosen]
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "fuzz.json").write_text(json.dumps([asdict(one) for one in outcomes], indent=2))
    return 1 if any(one.finding for one in outcomes) else 0


def _run(name: str, seconds: int, seed: int) -> Outcome:
    command = [sys.executable, "-m", "fuzz", "--inside", "--target", name]
    command += ["--seconds", str(seconds), "--seed", str(seed)]
    started = time.monotonic()
    log = BUILD / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        ended = subprocess.run(command, stdout=out, stderr=out, env=_environment(), check=False)
    said = log.read_text("utf-8", "replace")
    if guided():
        outcome = outcome_of(name, seed, said)
    else:
        last = said.strip().splitlines()[-1] if said.strip() else "{}"
        outcome = Outcome(**json.loads(last)) if ended.returncode == 0 else _failed(name, seed)
    if ended.returncode and not outcome.finding:
        outcome = Outcome(**{**asdict(outcome), "finding": str(log)})
    print(  # noqa: T201 - a program
        f"{name:10} {outcome.engine:8} executions={outcome.executions:<8} "
        f"coverage={outcome.coverage:<6} seconds={time.monotonic() - started:<6.0f} "
        f"{'FOUND ' + outcome.finding if outcome.finding else 'nothing found'}",
        flush=True,
    )
    return outcome


def _failed(name: str, seed: int) -> Outcome:
    return Outcome(name, "random", seed, 0, 0.0)


def _inside(arguments: argparse.Namespace) -> int:
    found = BUILD / "found"
    if guided():
        work = BUILD / "corpus" / arguments.target
        run_guided(arguments.target, arguments.seconds, arguments.seed, found, work)
        return 0
    outcome = run_at_random(arguments.target, arguments.seconds, arguments.seed, found)
    print(json.dumps(asdict(outcome)))  # noqa: T201 - read by who started us
    return 0


def guided() -> bool:
    """Say whether the engine that follows coverage is installed."""
    return importlib.util.find_spec("atheris") is not None


def _environment() -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("HARDPOINT_")}
    return {**own, "PYTHONPATH": str(ROOT / "tests")}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--target", choices=names(), help="one target; all of them if left out")
    parser.add_argument("--seconds", type=float, default=300, help="how long, all together")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 31))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
