"""Which tests run on a day. Needs no cluster."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cluster.turns import CORE, DAYS, UnknownTurn, in_turn, wants_all

HERE = Path(__file__).parent
WEEK = [datetime.date(2026, 3, 1) + datetime.timedelta(days=number) for number in range(DAYS)]
OTHERS = [f"tests/cluster/test_node_{module}.py::test_{n}" for module in "abcde" for n in range(40)]


def test_what_matters_most_is_there_and_runs_every_day() -> None:
    core = {f"tests/cluster/{module}.py::test_it" for module in CORE}

    assert {path.stem for path in HERE.glob("test_node_*.py")} > CORE
    assert all(in_turn([*core, *OTHERS], day) > core for day in WEEK)


def test_every_other_test_has_its_turn_once_in_so_many_days() -> None:
    runs = [test for day in WEEK for test in in_turn(OTHERS, day)]

    assert sorted(runs) == sorted(OTHERS)


def test_days_have_equal_shares_and_some_of_every_module() -> None:
    for day in WEEK:
        run = in_turn(OTHERS, day)
        assert len(run) == len(OTHERS) / DAYS
        assert len({test.partition("::")[0] for test in run}) == 5


def test_everything_runs_where_no_turn_is_named() -> None:
    assert wants_all({})
    assert wants_all({"TURN": ""})
    assert not wants_all({"TURN": "today"})


def test_a_turn_that_there_is_not_is_refused() -> None:
    with pytest.raises(UnknownTurn, match="TURN=friday: there is only today"):
        wants_all({"TURN": "friday"})
