"""Two engines for the same targets: coverage-guided where atheris is installed, else at random.

A target is entered as a context manager, for its directories, and called with bytes. What it raises
is a finding, and the bytes are the proof: they are kept below ``found`` until somebody has made a
test of them.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).parent
CORPUS, FINDINGS = HERE / "corpus", HERE / "findings"
LONGEST = 4096
"""Bytes of one input: what a target makes of them may be larger."""
SLOWEST = 10
"""Seconds for one input: more is a finding."""
INSTRUMENTED = ("hardpoint", "hardpoint_pci_drm", "hardpoint_usb", "hardpoint_dra")


class Target(Protocol):
    """One kind of input."""

    def __enter__(self) -> Callable[[bytes], None]: ...

    def __exit__(self, *exception: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    target: str
    engine: str
    seed: int
    executions: int
    seconds: float
    coverage: int = 0
    """Edges of our code that were reached, where the engine counts them."""
    finding: str = ""
    """The file with the input that failed."""


def names() -> tuple[str, ...]:
    """Return every target's name: modules ``target_<name>``."""
    found = (module.name for module in pkgutil.iter_modules([str(HERE)]))
    return tuple(sorted(n.removeprefix("target_") for n in found if n.startswith("target_")))


def load(name: str) -> type[Any]:
    """Return a target's class."""
    kind: type[Any] = importlib.import_module(f"fuzz.target_{name}").Fuzzed
    return kind


def seeds(name: str) -> list[Path]:
    """Return the seed corpus of a target, and what was found with it."""
    folders = (CORPUS / name, FINDINGS / name)
    return sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir())


# -- at random ------------------------------------------------------------------------------------


def inputs(corpus: list[bytes], seed: int) -> Iterator[bytes]:
    """Yield mutations of a corpus for ever; the same for the same seed."""
    dice = random.Random(seed)
    known = corpus or [b""]
    while True:
        data = bytearray(dice.choice(known))
        for _ in range(1 + dice.randrange(6)):
            _mutate(data, known, dice)
        yield bytes(data[:LONGEST])


def _mutate(data: bytearray, known: list[bytes], dice: random.Random) -> None:
    at, length = dice.randrange(len(data) + 1), 1 + dice.randrange(8)
    how = dice.randrange(6)
    if how == 0:
        data[at:at] = dice.randbytes(length)
    elif how == 1:
        del data[at : at + length]
    elif how == 2:
        data[at : at + length] = dice.randbytes(length)
    elif how == 3 and at < len(data):
        data[at] ^= 1 << dice.randrange(8)
    elif how == 4:
        other = dice.choice(known)
        start = dice.randrange(len(other) + 1)
        data[at:] = other[start:]
    else:
        data += dice.randbytes(length * 4)


def run_at_random(name: str, seconds: float, seed: int, found: Path, most: int = 0) -> Outcome:
    """Call a target with mutations of its corpus, for so long or so often."""
    corpus = [path.read_bytes() for path in seeds(name)]
    started, count = time.monotonic(), 0
    with load(name)() as target:
        for data in chain(corpus, _bounded(inputs(corpus, seed), started, seconds, most)):
            count += 1
            with at_most(SLOWEST):
                keeping(target, found, name)(data)
    return Outcome(name, "random", seed, count, time.monotonic() - started)


def _bounded(data: Iterable[bytes], started: float, seconds: float, most: int) -> Iterator[bytes]:
    for count, one in enumerate(data):
        if (most and count >= most) or time.monotonic() - started > seconds:
            return
        yield one


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise ``TimeoutError`` in what takes longer. A timer that runs already (pytest's) goes on."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not done within {seconds} s")

    started, before = time.monotonic(), signal.signal(signal.SIGALRM, late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        left = max(left - (time.monotonic() - started), 0.001) if left else 0.0
        signal.setitimer(signal.ITIMER_REAL, left, interval)


def keeping(target: Callable[[bytes], None], found: Path, name: str) -> Callable[[bytes], None]:
    """Return the target, which keeps an input that it fails for."""

    def one(data: bytes) -> None:
        try:
            target(data)
        except BaseException:
            print(f"input kept as {keep(found, name, data)}", file=sys.stderr)  # noqa: T201
            raise

    return one


def keep(found: Path, name: str, data: bytes) -> Path:
    """Keep an input that failed."""
    found.mkdir(parents=True, exist_ok=True)
    path = found / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


# -- guided by coverage ---------------------------------------------------------------------------


def run_guided(name: str, seconds: float, seed: int, found: Path, work: Path) -> None:
    """Let libFuzzer look for inputs that reach new code. Ends the process.

    ``work`` is its growing corpus; what failed is written below ``found`` under ``<name>-…``.
    """
    import atheris

    with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
        for package in INSTRUMENTED:
            _import_all(package)
        kind = load(name)
    work.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    folders = [str(f) for f in (work, CORPUS / name, FINDINGS / name) if f.is_dir()]
    options = {
        "max_total_time": int(seconds),
        "max_len": LONGEST,
        "timeout": SLOWEST,
        "rss_limit_mb": 2048,
        "seed": seed,
        "artifact_prefix": f"{found}/{name}-",
        "print_final_stats": 1,
        "verbosity": 1,
    }
    with kind() as target:
        said = [f"-{key}={value}" for key, value in options.items()]
        atheris.Setup([sys.argv[0], *said, *folders], keeping(target, found, name))
        atheris.Fuzz()


def _import_all(package: str) -> None:
    """Import what is imported late otherwise, so that its coverage counts."""
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not module.name.endswith("__main__") and ".testing" not in module.name:
            importlib.import_module(module.name)


def outcome_of(name: str, seed: int, said: str) -> Outcome:
    """Read libFuzzer's own account of a run."""
    runs = re.findall(r"^#(\d+)\s", said, re.MULTILINE)
    total = re.findall(r"number_of_executed_units: (\d+)", said)
    covered = re.findall(r"\bcov: (\d+)", said)
    passed = re.findall(r"Done \d+ runs in (\d+) second", said)
    artifact = re.findall(r"(?:input kept as|Test unit written to) (\S+)", said)
    return Outcome(
        name,
        "atheris",
        seed,
        int((total or runs or ["0"])[-1]),
        float((passed or ["0"])[-1]),
        int((covered or ["0"])[-1]),
        (artifact or [""])[-1],
    )
