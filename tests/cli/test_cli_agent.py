"""Commands beside an agent that runs: status, holds, quarantine, doctor; and without one."""

from __future__ import annotations

import getpass
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import anyio
import anyio.to_thread
import pytest
from shell import Answer, Cluster, Shell, agent_of, cluster_of, ended

from hardpoint._core.ledger.ledger import Ledger
from hardpoint.testing.kubelet import Pod, PodFailed

DRIVER = "hardpoint.dev"


@dataclass(frozen=True, slots=True)
class Node:
    """A shell on a node whose agent runs, with two radios."""

    shell: Shell
    cluster: Cluster
    agent: anyio.abc.Process

    async def says(self, *words: str) -> Answer:
        return await anyio.to_thread.run_sync(lambda: self.shell(*words))

    async def until(self, true: Callable[[Answer], bool], *words: str) -> Answer:
        """Ask again and again; what the agent says of itself is a second old at most."""
        with anyio.fail_after(15):
            while True:
                answer = await self.says(*words)
                if true(answer):
                    return answer

    async def hold(self, device: str, name: str = "claim") -> Pod:
        pod = self.cluster.allocate(device, name=name)
        await self.cluster.kubelet.prepare(pod)
        return pod


@pytest.fixture
async def node(shell: Shell) -> AsyncIterator[Node]:
    shell.install_radios("radio0", "radio1")
    async with cluster_of(shell) as cluster, agent_of(shell) as agent:
        await cluster.server.until(lambda: cluster.published == ["radio0", "radio1"], 15)
        await cluster.kubelet.until_registered(DRIVER)
        yield Node(shell, cluster, agent)


# -- status ---------------------------------------------------------------------------------------


async def test_status_says_what_the_agent_offers_and_who_holds_it(node: Node) -> None:
    await node.hold("radio1")
    answer = await node.until(lambda a: "default/claim" in a.out, "status")

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("node node-1, ready, since ")
    assert "\n2 devices offered, 0 not (devices --why)\n" in answer.out
    rows = [line.split() for line in answer.out.splitlines() if line.startswith("radio")]
    assert ["radio0", "radio", DRIVER, "Healthy"] in rows
    assert ["radio1", "radio", DRIVER, "Healthy", "held"] in rows
    assert ["radio1", "default/claim", "held"] in rows


async def test_status_as_json_names_everything(node: Node) -> None:
    status = (await node.until(lambda a: a.json.get("ready"), "status", "--json")).json

    assert set(status) == {
        *("running", "pid", "instance", "node", "started", "writing", "ready", "generation"),
        *("devices", "not_offered", "holds", "quarantine", "faults", "plugins", "notes"),
        *("withdrawn", "grants", "releases", "conditions"),
    }
    assert (status["running"], status["writing"], status["node"]) == (True, True, "node-1")
    assert status["pid"] == node.agent.pid
    assert status["notes"][f"frontend/dra registration of {DRIVER}"]["state"] == "registered"


async def test_status_shows_no_row_of_which_there_is_nothing_to_say(node: Node) -> None:
    await node.until(lambda a: a.code == 0, "status", "--ready")
    await ended(node.agent)
    file = node.shell.state / "status.json"
    notes = {"policy/drain": {"asked": "", "why": None}, "policy/x": {"count": 0, "why": ""}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"notes": notes}))

    shown = (await node.says("status")).out

    assert "policy/drain" not in shown
    assert shown.split("policy/x\n")[1].splitlines()[0].split() == ["count", "0"]
    assert "why" not in shown.split("policy/x\n")[1]


async def test_readiness_is_an_exit_status(node: Node) -> None:
    await node.until(lambda a: a == Answer(0, "", ""), "status", "--ready")
    await ended(node.agent)

    assert await node.says("status", "--ready") == Answer(1, "", "")


async def test_after_the_agent_ended_its_last_words_are_shown_as_such(node: Node) -> None:
    await node.until(lambda a: a.code == 0, "status", "--ready")
    await ended(node.agent)
    plain, as_json = await node.says("status"), await node.says("status", "--json")

    assert (plain.code, as_json.code) == (1, 1)
    assert plain.out.startswith("The agent does not run. What it said last:\n")
    assert as_json.json["running"] is False


def test_without_an_agent_ever_status_says_so(shell: Shell) -> None:
    plain, as_json = shell("status"), shell("status", "--json")

    said = f"hardpoint: no agent has run with {shell.state}; start it with `hardpoint run`\n"
    assert plain == Answer(1, "", said)
    assert (as_json.code, as_json.json) == (1, {"running": False})


# -- holds ----------------------------------------------------------------------------------------


async def test_holds_say_which_claim_has_what(node: Node) -> None:
    pod = await node.hold("radio0")
    plain, as_json = await node.says("holds"), await node.says("holds", "--json")

    assert plain.out.splitlines()[1].split()[:4] == ["radio0", "default/claim", "r", "held"]
    (hold,) = as_json.json
    assert (hold["device"], hold["driver"], hold["domain"]) == ("radio0", "radios", DRIVER)
    assert (hold["claim"]["namespace"], hold["claim"]["name"]) == ("default", pod.claims[0])
    assert (hold["state"], hold["releasing"], hold["why"]) == ("held", False, "")
    assert any(part.startswith("char:240:0") for part in hold["parts"])


async def test_holds_of_a_device_answer_by_exit_status(node: Node) -> None:
    pod = await node.hold("radio0")

    assert (await node.says("holds", "--device", "radio0")).code == 0
    assert await node.says("holds", "--device", "radio1") == Answer(3, "Nobody holds radio1.\n", "")
    await node.cluster.kubelet.unprepare(pod)
    await node.until(lambda a: a.code == 3, "holds", "--device", "radio0")


async def test_holds_outlive_the_agent(node: Node) -> None:
    await node.hold("radio0")
    await ended(node.agent)

    assert (await node.says("holds", "--device", "radio0")).code == 0


def test_without_a_ledger_nobody_holds_anything(shell: Shell) -> None:
    assert shell("holds") == Answer(0, "No claim holds a device.\n", "")
    assert shell("holds", "--json").json == []
    assert shell("holds", "--device", "radio0").code == 3
    assert not shell.state.exists()


@pytest.mark.parametrize("words", [("holds",), ("quarantine",), ("holds", "--device", "radio0")])
def test_a_damaged_ledger_is_not_an_empty_one(shell: Shell, words: tuple[str, ...]) -> None:
    shell.state.mkdir()
    (shell.state / "ledger.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)

    answer = shell(*words)

    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"hardpoint: {shell.state}/ledger.db is damaged: ")
    assert (shell.state / "ledger.db").read_bytes().startswith(b"SQLite format 3\0\xff")


# -- quarantine -----------------------------------------------------------------------------------


async def quarantined(node: Node) -> None:
    """Let the driver fail to take back radio0 until its pod may end without it."""
    pod = await node.hold("radio0")
    node.shell.tell_radios("unprepare", "it does not answer")
    for _ in range(2):
        with pytest.raises(PodFailed, match="it does not answer"):
            await node.cluster.kubelet.unprepare(pod)
    await node.cluster.kubelet.unprepare(pod)


async def test_a_device_that_was_not_given_back_is_quarantined_until_cleared(node: Node) -> None:
    await quarantined(node)
    await node.cluster.server.until(lambda: node.cluster.published == ["radio1"])
    shown = await node.says("quarantine")

    assert shown.code == 0
    (row,) = shown.out.splitlines()[1:]
    assert row.split()[:3] == ["radio0", "quarantined", "default/claim"]
    assert "it does not answer" in row
    assert (await node.says("holds", "--device", "radio0")).code == 0

    cleared = await node.says("quarantine", "clear", "radio0")

    assert cleared == Answer(
        0, "radio0 is cleared; the agent offers it again within seconds.\n", ""
    )
    await node.cluster.server.until(lambda: node.cluster.published == ["radio0", "radio1"])
    assert await node.says("quarantine") == Answer(0, "Nothing is quarantined.\n", "")
    assert (await node.says("holds", "--device", "radio0")).code == 3


async def test_a_device_that_its_driver_still_scrubs_is_shown_and_can_be_cleared(
    node: Node,
) -> None:
    pod = await node.hold("radio0")
    node.shell.tell_radios("release", "still warm")
    await node.cluster.kubelet.unprepare(pod)
    shown = await node.until(lambda a: "still warm" in a.out, "quarantine")

    assert shown.out.splitlines()[1].split()[:3] == ["radio0", "releasing", "default/claim"]
    assert (await node.says("holds", "--device", "radio0")).code == 0
    await node.cluster.server.until(lambda: node.cluster.published == ["radio1"])
    assert (await node.says("quarantine", "clear", "radio0")).code == 0
    await node.cluster.server.until(lambda: node.cluster.published == ["radio0", "radio1"])


async def test_clearing_is_written_to_the_audit_trail(node: Node) -> None:
    await quarantined(node)
    await node.says("quarantine", "clear", "radio0")
    await ended(node.agent)

    ledger = Ledger(node.shell.state)
    try:
        (entry,) = await ledger.audits()
    finally:
        ledger.close()
    assert (entry.who, entry.what) == (getpass.getuser(), "quarantine clear")
    assert entry.facts["device"] == "radio0"


async def test_a_device_that_is_not_quarantined_is_not_cleared(node: Node) -> None:
    await node.hold("radio0")

    answer = await node.says("quarantine", "clear", "radio0")

    assert answer == Answer(1, "", "hardpoint: radio0 is not quarantined\n")
    assert (await node.says("holds", "--device", "radio0")).code == 0


# -- doctor ---------------------------------------------------------------------------------------


async def test_the_doctor_of_a_node_that_works_finds_nothing_wrong(node: Node) -> None:
    await node.until(lambda a: a.code == 0, "status", "--ready")
    answer = await node.says("doctor", "--json")

    found = {one["subject"]: one for one in answer.json}
    assert answer.code == 0, answer.out
    assert (found["agent"]["level"], found["agent"]["found"]) == ("ok", "runs")
    assert found["kubelet"]["level"] == found["drivers"]["level"] == "ok"
    assert found["state"]["level"] == "ok"


async def test_the_doctor_names_what_the_agent_suffers_from(node: Node) -> None:
    await quarantined(node)
    node.shell.tell_radios("publish", "no reception")
    node.cluster.server.down = True

    def tells(answer: Answer) -> bool:
        failed = [one for one in answer.json if one["level"] == "fail"]
        return {"radio0", f"watch of slices of {DRIVER}"} <= {one["subject"] for one in failed}

    answer = await node.until(tells, "doctor", "--json")

    assert answer.code == 1
    (device,) = [one for one in answer.json if one["subject"] == "radio0"]
    assert device["do"] == "hardpoint quarantine clear radio0"
