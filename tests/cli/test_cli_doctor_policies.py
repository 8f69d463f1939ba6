"""What the doctor says of policies, grants and releases."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import anyio
import pytest
from shell import Shell
from strange_policies import run

from hardpoint._core.ledger.grantrows import (
    KnownGrant,
    KnownRelease,
    Meant,
    keep_grant,
    keep_release,
)
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.state import mark_running, write_status
from hardpoint.grants import Grant, GrantOutcome, Outcome
from hardpoint.model import Device


def findings(shell: Shell) -> dict[str, tuple[str, str, str]]:
    """By subject: level, what was found, and what to do."""
    machine = shell.machine.save()
    answer = shell("doctor", "--json", HARDPOINT_PATHS__SYS=str(machine / "sys"))
    return {one["subject"]: (one["level"], one["found"], one["do"]) for one in answer.json}


def test_a_node_that_can_grant_release_and_reap_is_well(shell: Shell) -> None:
    run(shell, "evident", "radios", "reaping")

    found = findings(shell)

    assert found["policies"][:2] == ("ok", "evident, radios, reaping run")
    assert found["policy/radios"][:2] == ("ok", "governs what is here of radio")
    assert found["evidence"][:2] == ("ok", "evident say who uses what is released")
    assert found["reaper"][:2] == ("ok", "reaping")


def test_without_policies_all_is_granted(shell: Shell) -> None:
    run(shell)

    found = findings(shell)

    assert found["policies"][:2] == ("ok", "none is named: all is granted, and nobody is reaped")
    assert not {"evidence", "reaper"} & set(found)


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ([], "no source of evidence can be asked here"),
        (["blind"], "no source of evidence can be asked here"),
        (["broken"], "no source of evidence can be asked here"),
        (["ofgpus"], "no source of evidence is about radio"),
    ],
)
def test_where_nobody_could_say_that_a_device_is_free_is_a_fault(
    shell: Shell, policies: Sequence[str], said: str
) -> None:
    run(shell, "radios", *policies)

    found = findings(shell)

    level, what, remedy = found["evidence"]
    assert (level, what) == ("fail", said)
    assert "pod_resources" in remedy
    assert found["reaper"][0] == "warn"
    if policies == ["blind"]:
        sentence = "does not apply here: the processes of other pods are not seen here"
        assert found["policy/blind"][:2] == ("warn", sentence)


def test_a_section_of_a_policy_that_is_not_named_is_said_to_have_no_effect(shell: Shell) -> None:
    shell.config.write_text('policies = ["drain"]\n[policy.metrics]\nlisten = "0.0.0.0:9479"\n')
    why = "not named in the settings: [policy.metrics] has no effect"

    found = [one for one in shell("doctor", "--json").json if one["subject"] == "policy/metrics"]
    listed = {one["name"]: one["reason"] for one in shell("plugins", "--json").json}

    remedy = 'policies = ["drain", "metrics"], if it is to run on this node'
    assert found == [{"level": "warn", "subject": "policy/metrics", "found": why, "do": remedy}]
    assert (listed["metrics"], listed["node_status"]) == (why, "not named in the settings")


def test_a_source_that_governs_nothing_here_is_said(shell: Shell) -> None:
    run(shell, "gpus", "evident")

    level, what, there = findings(shell)["policy/gpus"]

    assert (level, there) == ("warn", "here are: radio")
    assert what == "governs gpu, and no device of this node is of such a kind"


def test_a_kubelet_that_cannot_be_asked_is_a_fault_where_releases_wait_for_it(
    shell: Shell,
) -> None:
    run(shell, "radios", "pod_resources")

    assert findings(shell)["pod-resources"][0] == "fail"


def release(id_: str, *, since: float, over: bool = False) -> KnownRelease:
    radio = Meant("hardpoint.dev", Device(name=f"radio-{id_}", kind="radio"))
    grant = Grant(allocation=id_, source="policy/radios")
    return KnownRelease(id=id_, grant=grant, devices=(radio,), since=since, over=over)


def test_what_does_not_go_on_by_itself_is_said_with_the_lever(shell: Shell) -> None:
    known = KnownGrant(
        grant=Grant(allocation="c-1", source="policy/radios"),
        devices=(),
        outcome=GrantOutcome(Outcome.OVERLAP, "device radio1 is granted under allocation b-1"),
    )
    ledger = Ledger(shell.state)

    async def write() -> None:
        await ledger.write(lambda db: keep_grant(db, known))
        for one in (
            release("old", since=1.0),
            release("new", since=time.time()),
            release("over", since=1.0, over=True),
        ):
            await ledger.write(lambda db, one=one: keep_release(db, one))  # type: ignore[misc]

    anyio.run(write)
    ledger.close()
    (shell.state / "releases.unreadable").write_text("{}")
    running = mark_running(shell.state)
    condition = {"type": "PodResourcesUnavailable", "reason": "KubeletSilent", "message": "hm"}
    stuck = {"type": "ReleaseStuck", "reason": "PodsHoldDevices", "message": "said by the ledger"}
    released = {"type": "Released", "reason": "Drained", "message": "nobody", "trouble": False}
    write_status(shell.state, {"conditions": [condition, stuck, released]})

    found = findings(shell)

    os.close(running)
    assert found["grant c-1"][1].startswith("refused, overlap: device radio1 is granted")
    level, what, remedy = found["release old"]
    assert level == "fail"
    assert what.startswith("radio-old: pending for ")
    assert "hardpoint release" in remedy
    assert "release new" not in found
    assert found["release over"][0] == "warn"
    assert "hardpoint release --clear-lost" in found["releases"][2]
    assert found["PodResourcesUnavailable"][:2] == ("fail", "KubeletSilent: hm")
    assert "ReleaseStuck" not in found
    assert found["Released"][:2] == ("ok", "Drained: nobody")


def test_a_damaged_ledger_costs_no_other_finding(shell: Shell) -> None:
    shell.state.mkdir(mode=0o700)
    (shell.state / "ledger.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)

    found = findings(shell)

    assert found["ledger"][0] == "fail"
    assert "sysfs" in found
