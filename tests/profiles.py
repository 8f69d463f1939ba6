"""How long property tests run, and how much they did.

``ci``, the default, is short and the same every time. ``nightly`` is long and another every time:

    pytest -s --hypothesis-profile=nightly --timeout=0 --hypothesis-seed=20240607 -k model

It plays 75 times as many examples, or ``HARDPOINT_MODEL_TIMES`` as many, of twice the length. With
a seed it is repeatable; a failure prints the steps that lead to it.
"""

from __future__ import annotations

import os
import sys
import time
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant

NIGHTLY = "nightly"
_LONGER = int(os.environ.get("HARDPOINT_MODEL_TIMES", "75"))


def register() -> None:
    """Register both profiles; for ``conftest``."""
    settings.register_profile(
        "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile(
        NIGHTLY,
        deadline=None,
        print_blob=True,
        max_examples=100 * _LONGER,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.load_profile("ci")


def stateful(examples: int, steps: int) -> settings:
    """Return how long a state machine runs: so many examples of so many steps, or far more."""
    nightly = settings.get_current_profile_name() == NIGHTLY
    return settings(
        max_examples=examples * (_LONGER if nightly else 1),
        stateful_step_count=2 * steps if nightly else steps,
        suppress_health_check=list(HealthCheck),
    )


def limit(seconds: float) -> pytest.MarkDecorator:
    """Return the mark for a machine that needs longer than other tests; at night it has no end."""
    nightly = settings.get_current_profile_name() == NIGHTLY
    return pytest.mark.timeout(0 if nightly else seconds)


class Model(RuleBasedStateMachine):
    """A state machine that counts what it did, and says so in the end."""

    examples: ClassVar[int] = 0
    steps: ClassVar[int] = 0
    began: ClassVar[float] = 0.0

    def __init__(self) -> None:
        super().__init__()
        cls = type(self)
        cls.began = cls.began or time.monotonic()
        cls.examples += 1

    @invariant()
    def counted(self) -> None:
        type(self).steps += 1

    def teardown(self) -> None:
        sys.stdout.write(f"\r{self.said()}")

    @classmethod
    def said(cls) -> str:
        """Return what was done, for whoever reads the output."""
        seconds = time.monotonic() - cls.began
        return f"{cls.__name__}: {cls.examples} examples, {cls.steps} steps, {seconds:.0f} s"
