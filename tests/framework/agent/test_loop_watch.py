"""A loop that stands still is noticed from outside, with the code that keeps it."""

from __future__ import annotations

import logging
import threading

import anyio
import pytest

from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.loopwatch import LoopWatch


class _Heard(logging.Handler):
    """Ends a blocking call once its being blocked was said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.word = threading.Event()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
        self.word.set()


def a_plugin_that_blocks(until: threading.Event) -> bool:
    return until.wait(10)


@pytest.mark.field_case("K05")
async def test_a_plugin_that_blocks_the_loop_is_named_while_it_does_and_afterwards() -> None:
    board, heard = FaultBoard(), _Heard()
    said = anyio.Event()
    board.on_change(said.set)
    watch = LoopWatch(board, every=0.01, patience=0.05)
    log = logging.getLogger("hardpoint.agent")
    log.addHandler(heard)
    watch.start()
    try:
        assert a_plugin_that_blocks(heard.word)
        with anyio.fail_after(10):
            await said.wait()
    finally:
        watch.stop()
        log.removeHandler(heard)

    assert "a_plugin_that_blocks" in heard.text
    (fault,) = board.entries
    assert (fault.source, "a_plugin_that_blocks" in fault.message) == ("event loop", True)
