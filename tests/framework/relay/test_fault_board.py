"""What the log has of failures that last."""

from __future__ import annotations

import pytest

from hardpoint._core.plugins.faults import MOST_WAYS, FaultBoard


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def test_a_server_that_fails_now_this_way_now_that_is_logged_once_for_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = FaultBoard()

    for _ in range(100):
        board.record("watch", "refused")
        board.record("watch", "broke off")

    assert len(warnings(caplog)) == 2
    [entry] = board.entries
    assert (entry.message, entry.count) == ("broke off", 200)


def test_a_failure_with_a_number_in_it_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = FaultBoard()

    for number in range(10 * MOST_WAYS):
        board.record("watch", f"attempt {number}")

    assert len(warnings(caplog)) == MOST_WAYS


def test_what_worked_in_between_is_logged_again_when_it_fails_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = FaultBoard()
    board.record("watch", "refused")
    board.clear("watch")
    board.record("prepare of ns/c/uid", "busy")
    board.clear_about("uid")

    board.record("watch", "refused")
    board.record("prepare of ns/c/uid", "busy")

    assert len(warnings(caplog)) == 4
