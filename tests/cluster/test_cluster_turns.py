"""Which modules run on a day. Needs no cluster."""

from __future__ import annotations

import datetime

import pytest
from cluster.turns import CORE, DAYS, MODULES, UnknownTurn, chosen, in_turn

DAY = datetime.date(2026, 3, 1)


def days(count: int = DAYS) -> list[frozenset[str]]:
    return [in_turn(DAY + datetime.timedelta(days=number)) for number in range(count)]


def test_what_matters_most_is_there_and_runs_every_day() -> None:
    assert set(MODULES) > CORE
    assert all(day > CORE for day in days())


def test_every_module_has_run_after_some_days_and_once_beside_the_core() -> None:
    runs = [name for day in days() for name in day - CORE]

    assert sorted(runs) == sorted(set(MODULES) - CORE)


def test_days_have_equal_shares() -> None:
    sizes = {len(day) for day in days(2 * DAYS)}

    assert max(sizes) - min(sizes) <= 1


def test_everything_runs_where_no_turn_is_named() -> None:
    assert chosen({}, DAY) == chosen({"TURN": ""}, DAY) == set(MODULES)
    assert chosen({"TURN": "today"}, DAY) == in_turn(DAY)


def test_a_turn_that_there_is_not_is_refused() -> None:
    with pytest.raises(UnknownTurn, match="TURN=friday: there is only today"):
        chosen({"TURN": "friday"}, DAY)
