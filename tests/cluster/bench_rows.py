"""What `make bench-cluster` prints and writes, and how the kernel and the kubelet count."""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster.witness import Witness

OUT = Path(__file__).parents[2] / "build/bench-cluster.json"
BESIDE = {
    "start to slice visible": "Go example driver, 8 devices: 1.05 s",
    "prepare, the kubelet's mean": "Go example driver: 10.2 ms",
    "unprepare, the kubelet's mean": "Go example driver: 20.6 ms",
    "agent, RSS idle": "Go example driver: 43 MiB; a small Go device plugin: 15 MiB",
}
"""Measured earlier on such a cluster, with eight devices, on a busy machine."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure; ``bound`` is the most it may be."""

    name: str
    value: float
    unit: str
    bound: float | None = None

    @property
    def ok(self) -> bool:
        return self.bound is None or self.value <= self.bound


class Report:
    """Prints each figure when it is there, and keeps all for the file."""

    def __init__(self, suffix: str = "") -> None:
        self.rows: list[Row] = []
        self._suffix = suffix

    def head(self, title: str) -> None:
        sys.stdout.write(f"\n{title}\n")
        self._suffix = f" ({title.partition(':')[0]})"

    def add(self, name: str, value: float, unit: str, bound: float | None = None) -> None:
        row = Row(name + self._suffix, round(value, 3), unit, bound)
        self.rows.append(row)
        limit = f"  bound {bound:g}" if bound is not None else ""
        known = next((said for key, said in BESIDE.items() if name.startswith(key)), "")
        beside = f"  [{known}]" if known and self._suffix == " (real node)" else ""
        missed = "" if row.ok else "  MISSED"
        sys.stdout.write(f"  {name:<58}{value:10.1f} {unit}{limit}{missed}{beside}\n")
        sys.stdout.flush()

    def spread(
        self, name: str, seconds: Sequence[float], bound: float | None = None, unit: str = "ms"
    ) -> None:
        """Add the median, and the slowest beside it."""
        scale = 1000 if unit == "ms" else 1
        self.add(
            f"{name}, median of {len(seconds)}", statistics.median(seconds) * scale, unit, bound
        )
        self.add(f"{name}, slowest", max(seconds) * scale, unit)

    def write(self) -> None:
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(json.dumps([asdict(row) | {"ok": row.ok} for row in self.rows], indent=1))
        sys.stdout.write(f"\nrows: {OUT}\n")


# -- what the kubelet counts ----------------------------------------------------------------------

_LINE = re.compile(r"^dra_grpc_operations_duration_seconds_(bucket|sum|count)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Calls:
    """A kubelet's histogram of one method: seconds in all, and how many calls within each."""

    count: float = 0
    seconds: float = 0
    within: Mapping[float, float] | None = None

    def since(self, old: Calls) -> Calls:
        before = old.within or {}
        within = {le: n - before.get(le, 0) for le, n in (self.within or {}).items()}
        return Calls(self.count - old.count, self.seconds - old.seconds, within)

    def bucket(self, share: float) -> float:
        """Return the smallest bucket, in seconds, that has this share of the calls."""
        found = sorted(le for le, n in (self.within or {}).items() if n >= share * self.count)
        return found[0] if found else float("inf")


def calls(witness: Witness, driver: str, method: str, node: str = "n0") -> Calls:
    """Read the kubelet's metrics of a driver's method: ``NodePrepareResources``."""
    text = witness.ask("GET", f"/api/v1/nodes/{node}/proxy/metrics")
    totals, within = {"sum": 0.0, "count": 0.0}, dict[float, float]()
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        labels = dict(_LABEL.findall(match[2]))
        if labels["driver_name"] != driver or not labels["method_name"].endswith(f"/{method}"):
            continue
        if match[1] == "bucket":
            le = float(labels["le"].replace("+Inf", "inf"))
            within[le] = within.get(le, 0) + float(match[3])
        else:
            totals[match[1]] += float(match[3])
    return Calls(totals["count"], totals["sum"], within)


# -- what the kernel counts -----------------------------------------------------------------------


def memory(pid: int) -> tuple[float, float]:
    """Return a process's RSS and PSS in MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = dict(re.findall(r"^(Rss|Pss):\s+(\d+) kB$", text, re.MULTILINE))
    return int(found["Rss"]) / 1024, int(found["Pss"]) / 1024


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def processes(state: Path) -> dict[str, list[int]]:
    """Return a cluster's programs by name, as this machine numbers their processes."""
    found: dict[str, list[int]] = {}
    about = str(state)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        program = Path(words[0]).name
        if program in ("nsenter", "unshare", "setpriv") or about not in " ".join(words):
            continue
        name = words[1] if program == "kube" else program
        found.setdefault(name, []).append(int(path.parent.name))
    return found


def now() -> float:
    return time.perf_counter()


def durable_writes(directory: Path, times: int = 20) -> list[float]:
    """Return how long three durable writes take on a disk: a prepare makes as many."""
    took = []
    for number in range(times):
        began = now()
        for step in range(3):
            with (directory / f"disk-{number}-{step}").open("wb") as file:
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
        took.append(now() - began)
    return took


def ready_since(log: Path, offset: int, words: bytes) -> bool:
    """Say whether a log has these words behind an offset."""
    with log.open("rb") as file:
        file.seek(offset)
        return words in file.read()


def load() -> float:
    """Return how many processes wanted to run in the last minute."""
    return float(Path("/proc/loadavg").read_text().split()[0])


Json = dict[str, Any]
