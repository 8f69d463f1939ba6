"""Which pods have a device, as `hardpoint holds` shows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from shell import Shell

from hardpoint._core.ledger.ledger import Ledger, Want
from hardpoint._core.state import mark_running, write_status
from hardpoint.allocation import allocation_key
from hardpoint.model import Allotment, Claim, Device

KEY = allocation_key("hardpoint.dev/radio", "radio0@grant", "hardpoint.dev")


def hold(shell: Shell) -> None:
    device = Device(name="radio0", kind="radio", driver="radios")
    want = Want(
        allotment=Allotment(request="", device="radio0", pool="node-1"),
        device=device,
        cdi_vendor="hardpoint.dev",
        cdi_name=f"{KEY.uid}-radio0",
        parts=(),
        undo=False,
    )
    ledger = Ledger(shell.state)
    anyio.run(ledger.take, Claim(key=KEY), [want], "boot-1")
    ledger.close()


@contextmanager
def agent(shell: Shell, pods: list[str] | None) -> Iterator[None]:
    """An agent that runs, and has said who has the radio."""
    running = mark_running(shell.state)
    hold = {"device": "radio0", "claim": str(KEY), "uid": KEY.uid, "state": "held", "pods": pods}
    write_status(shell.state, {"holds": [hold]})
    try:
        yield
    finally:
        os.close(running)


def test_holds_show_resource_id_and_pods(shell: Shell) -> None:
    hold(shell)
    with agent(shell, ["ml/train", "ml/eval"]):
        plain, as_json = shell("holds"), shell("holds", "--json")

    row = plain.out.splitlines()[1].split()
    assert row[:2] == ["radio0", "hardpoint.dev/radio/radio0@grant"]
    assert row[-3:] == ["ml/train", "ml/eval", KEY.uid]
    (found,) = as_json.json
    assert found["claim"]["namespace"] == "hardpoint.dev/radio"
    assert found["claim"]["name"] == "radio0@grant"
    assert found["pods"] == ["ml/train", "ml/eval"]


def test_that_nobody_has_it_is_not_the_same_as_that_nobody_knows(shell: Shell) -> None:
    hold(shell)
    with agent(shell, []):
        assert shell("holds").out.splitlines()[1].split()[-2] == "none"
        assert shell("holds", "--json").json[0]["pods"] == []
    with agent(shell, None):
        assert shell("holds").out.splitlines()[1].split()[-2] == "?"


def test_what_an_agent_said_that_does_not_run_any_more_is_not_known(shell: Shell) -> None:
    hold(shell)
    with agent(shell, ["ml/train"]):
        pass
    assert shell("holds", "--json").json[0]["pods"] is None
