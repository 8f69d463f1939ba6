"""Prometheus' text format, version 0.0.4: families of samples in, text out. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = {"\\": r"\\", "\n": r"\n", '"': r"\""}
_LONGEST_VALUE = 200
"""Characters of a label's value: names are shorter."""

Labels: TypeAlias = "Mapping[str, str]"


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a value under labels. ``suffix`` is for parts of a histogram."""

    value: float
    labels: Labels = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """Everything under one name: what it means, of which type it is, and its samples."""

    name: str
    type: str
    help: str
    samples: tuple[Sample, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield its lines."""
        yield f"# HELP {self.name} {_escaped(self.help, quotes=False)}"
        yield f"# TYPE {self.name} {self.type}"
        for sample in self.samples:
            yield f"{self.name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}"


def text(families: Iterable[Family]) -> str:
    """Return what is answered to a scrape; a family without samples is left out."""
    return "".join(f"{line}\n" for one in families if one.samples for line in one.lines())


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value[:_LONGEST_VALUE])}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}"


def _escaped(value: str, *, quotes: bool = True) -> str:
    plain = value.encode("utf-8", "replace").decode()
    return "".join(_ESCAPES.get(c, c) if quotes or c != '"' else c for c in plain)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:+}".replace("inf", "Inf")
    return str(int(value)) if value == int(value) else repr(float(value))


class Histogram:
    """Counts how often something took how long, cumulatively as Prometheus wants it."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(sorted(bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """Yield its buckets, sum and count."""
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            le = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield Sample(total, {**labels, "le": le}, "_bucket")
        yield Sample(self._sum, labels, "_sum")
        yield Sample(total, labels, "_count")
