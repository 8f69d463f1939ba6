"""A driver's advice on which devices go together is advice: it is never waited for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import anyio

from hardpoint import Offer, RankRequest, hookimpl
from hardpoint._core.plugins.ranking import Ranking

OFFER = Offer(generation=1)
ASKED = RankRequest(count=2, available=("a", "b", "c", "d"))


class Plain:
    def __init__(self, node: Any, settings: None) -> None:
        pass


class Backwards(Plain):
    @hookimpl
    def rank_devices(self, request: RankRequest) -> Iterator[str]:
        yield from reversed(request.available)


class Strange(Plain):
    @hookimpl
    def rank_devices(self) -> list[str]:
        return ["z", "c", "c", "a", "b"]


class Broken(Plain):
    @hookimpl
    def rank_devices(self) -> list[str]:
        raise OSError("no topology today")


class Wrong(Plain):
    @hookimpl
    def rank_devices(self) -> Any:
        return [3]


class Slow(Plain):
    asked = 0
    let_go = threading.Event()

    @hookimpl
    def rank_devices(self) -> list[str]:
        Slow.asked += 1
        self.let_go.wait(10)
        return ["d"]


async def test_a_driver_says_which_of_its_devices_go_together(relay_of: Any) -> None:
    ranking = Ranking(await relay_of(backwards=Backwards))

    assert await ranking.rank("backwards", ASKED, OFFER) == ("d", "c")


async def test_a_driver_without_an_opinion_gives_no_advice(relay_of: Any) -> None:
    ranking = Ranking(await relay_of(plain=Plain))

    assert await ranking.rank("plain", ASKED, OFFER) == ()
    assert await ranking.rank("nobody", ASKED, OFFER) == ()


async def test_only_what_may_be_chosen_is_advised_and_what_is_required_comes_first(
    relay_of: Any,
) -> None:
    ranking = Ranking(await relay_of(strange=Strange))
    asked = RankRequest(count=3, available=("a", "b", "c"), required=("b",))

    assert await ranking.rank("strange", asked, OFFER) == ("b", "c", "a")


async def test_a_driver_that_fails_is_on_the_board_and_costs_the_advice_alone(
    relay_of: Any,
) -> None:
    relay = await relay_of(broken=Broken, wrong=Wrong)
    ranking = Ranking(relay)

    assert await ranking.rank("broken", ASKED, OFFER) == ()
    assert await ranking.rank("wrong", ASKED, OFFER) == ()
    assert {e.source for e in relay.board.entries} == {
        "driver/broken rank_devices",
        "driver/wrong rank_devices",
    }


async def test_a_question_is_never_answered_with_what_an_earlier_one_asked(relay_of: Any) -> None:
    Slow.asked, Slow.let_go = 0, threading.Event()
    ranking = Ranking(await relay_of(slow=Slow))
    try:
        assert await ranking.rank("slow", ASKED, OFFER) == ()  # it is late
        with anyio.fail_after(0.5):
            assert await ranking.rank("slow", RankRequest(count=1, available=("d",)), OFFER) == ()
        assert Slow.asked == 1
    finally:
        Slow.let_go.set()
