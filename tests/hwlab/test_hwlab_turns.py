"""Which machines are booted, and what is said where none can be. Needs no lab."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hwlab.boots import A_DAY, BOOTS, UnknownMachine, chosen, in_turn

DAY = datetime.date(2026, 3, 1)
ROOT = Path(__file__).parents[2]


def test_every_machine_has_its_turn_within_five_days() -> None:
    days = [in_turn(DAY + datetime.timedelta(days=number)) for number in range(5)]

    assert all(len(set(day)) == A_DAY for day in days)
    assert {name for day in days for name in day} == set(BOOTS)


@pytest.mark.parametrize("number", [3, 7])
def test_turns_come_round_for_any_number_of_machines(number: int) -> None:
    names = [f"machine-{n}" for n in range(number)]
    days = [in_turn(DAY + datetime.timedelta(days=day), names) for day in range(number)]

    assert all(sum(name in day for day in days) == A_DAY for name in names)


def test_who_names_machines_gets_these() -> None:
    assert chosen({"PROFILE": "many, disks"}, DAY) == ("many", "disks")
    assert chosen({"PROFILE": "all"}, DAY) == tuple(BOOTS)
    assert chosen({}, DAY) == chosen({"PROFILE": "today"}, DAY) == in_turn(DAY)
    assert set(chosen({"PROFILE": "today desktop"}, DAY)) == {*in_turn(DAY), "desktop"}


def test_a_machine_that_there_is_not_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownMachine, match="PROFILE=laptop: there are desktop, virtual"):
        chosen({"PROFILE": "desktop,laptop"}, DAY)


@pytest.mark.parametrize(
    ("ci", "said", "status"),
    [("", "no lab at /nowhere", 0), ("1", "HARDPOINT_CI=1, and there is no lab at /nowhere", 1)],
)
def test_without_a_lab_they_skip_and_in_ci_they_fail(ci: str, said: str, status: int) -> None:
    variables = {"HARDPOINT_HWLAB": "/nowhere", "HARDPOINT_CI": ci, "PROFILE": "desktop"}
    words = [sys.executable, "-m", "pytest", "-m", "hwlab", "tests/hwlab/test_lab_every.py", "-rsf"]
    done = subprocess.run(
        [*words, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )

    assert done.returncode == status, done.stdout
    assert said in done.stdout
    assert (" skipped" in done.stdout, " failed" in done.stdout) == (not ci, bool(ci))
