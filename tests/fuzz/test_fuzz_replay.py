"""Every target over its corpus, over what was found, and for a moment over mutations of both.

The same inputs each time; looking for new ones is ``make fuzz``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.engine import keeping, load, names, run_at_random, seeds

ROUNDS = {"cdi": 40, "grpc": 40, "ledger": 40}
"""Inputs of a target that opens a ledger for each; the others take more in the same time."""


@pytest.mark.parametrize("name", names())
def test_the_corpus_and_mutations_of_it_are_harmless(name: str, tmp_path: Path) -> None:
    outcome = run_at_random(name, 8.0, seed=1, found=tmp_path, most=ROUNDS.get(name, 150))

    assert outcome.executions > len(seeds(name)) > 3
    assert not list(tmp_path.iterdir())


def test_without_coverage_a_target_runs_for_as_long_as_it_is_told(tmp_path: Path) -> None:
    outcome = run_at_random("uevents", 0.2, seed=1, found=tmp_path)

    assert outcome.executions > 10 * len(seeds("uevents"))


def test_an_input_that_fails_is_kept(tmp_path: Path) -> None:
    def fails(data: bytes) -> None:
        assert data != b"bad"

    tried = keeping(fails, tmp_path, "x")
    tried(b"good")
    with pytest.raises(AssertionError):
        tried(b"bad")

    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"bad"]


def test_every_kind_of_input_has_a_target() -> None:
    assert names() == (
        "answers",
        "api",
        "archive",
        "cdi",
        "claims",
        "grants",
        "grpc",
        "ledger",
        "settings",
        "sysfs",
        "uevents",
    )
    assert all(callable(load(name)) for name in names())
