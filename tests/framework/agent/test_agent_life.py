"""The agent as a whole, on a machine made of files, without a frontend."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from hardpoint import Event, Veto, hookimpl
from hardpoint._core.plugins.discovery import Plugin
from hardpoint._core.state import agent_runs, read_status
from hardpoint.errors import HoldDenied, HoldError
from hardpoint.model import Offer

from .conftest import World, claim, reading, until


def _names(offer: Offer) -> list[str]:
    return [o.name for o in offer.devices]


async def test_a_claim_goes_through_to_its_cdi_file_and_back(world: World) -> None:
    wanted = claim("radio0")
    async with world.agent() as agent:
        (answer,) = await agent.prepare(wanted.key, reading(wanted))

        (file,) = world.paths.cdi.glob("*.json")
        spec = json.loads(file.read_text())
        assert answer.cdi_ids == (f"hardpoint.dev/device={spec['devices'][0]['name']}",)
        (node,) = spec["devices"][0]["containerEdits"]["deviceNodes"]
        assert (node["path"], node["major"], node["minor"]) == ("/dev/radio0", 240, 0)
        assert [str(h) for h in agent.holds()] == ["ns/claim on radio0"]

        await agent.unprepare(wanted.key)

        assert not list(world.paths.cdi.glob("*.json"))
    assert world.driver.done == ["prepare radio0", "unprepare radio0 quiet"]


async def test_a_held_device_is_refused_to_another_claim_by_the_holders_name(world: World) -> None:
    first, second = claim("radio0"), claim("radio0")
    async with world.agent() as agent:
        await agent.prepare(first.key, reading(first))

        with pytest.raises(HoldError, match="ns/claim"):
            await agent.prepare(second.key, reading(second))


@pytest.mark.field_case("B18")
async def test_holds_survive_a_restart_and_are_answered_without_the_api_server(
    world: World,
) -> None:
    wanted = claim("radio0")
    async with world.agent() as agent:
        before = await agent.prepare(wanted.key, reading(wanted))

    async def no_api_server() -> Any:
        raise AssertionError("asked for a claim that is held")

    async with world.agent() as agent:
        assert await agent.prepare(wanted.key, no_api_server) == before
        assert (await until(agent, lambda o: True)).find("radio0").held  # type: ignore[union-attr]


async def test_new_hardware_is_offered_after_a_hint(world: World) -> None:
    async with world.agent() as agent:
        assert _names(agent.offer) == ["radio0", "radio1"]

        world.radio("radio2", 2)
        world.machine.node()
        agent._scanner.wake.set()

        offer = await until(agent, lambda o: len(o.devices) == 3)
        assert _names(offer) == ["radio0", "radio1", "radio2"]


@pytest.mark.field_case("F05")
async def test_a_node_without_any_device_is_served_and_offers_the_first_when_it_comes(
    world: World,
) -> None:
    shutil.rmtree(world.machine.sys / "class/radio")
    async with world.agent() as agent:
        assert (agent.offer.complete, agent.offer.devices) == (True, ())
        assert not agent.board.entries

        world.radio("radio2", 2)
        world.machine.node()
        agent._scanner.wake.set()

        await until(agent, lambda o: _names(o) == ["radio2"])


@pytest.mark.field_case("A16")
async def test_a_held_device_that_left_stays_tainted_and_its_file_injects_nothing(
    world: World,
) -> None:
    wanted = claim("radio0")
    async with world.agent() as agent:
        await agent.prepare(wanted.key, reading(wanted))
        shutil.rmtree((world.machine.sys / "class/radio/radio0").resolve())
        (world.machine.sys / "class/radio/radio0").unlink()
        agent._scanner.wake.set()

        offer = await until(agent, lambda o: not o.find("radio0").claimable)  # type: ignore[union-attr]

        assert [t.key for t in offer.find("radio0").taints] == ["absent"]  # type: ignore[union-attr]
        (file,) = world.paths.cdi.glob("*.json")
        await _eventually(lambda: "device-absent" in file.read_text())


async def _eventually(true: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not true():  # noqa: ASYNC110 - a file on disk sets no Event
            await anyio.sleep(0.01)


@pytest.mark.field_case("F02")
async def test_an_unhealthy_device_is_tainted_and_comes_back(world: World) -> None:
    world.driver.broken.add("radio1")
    async with world.agent() as agent:
        await until(agent, lambda o: not o.find("radio1").claimable)  # type: ignore[union-attr]
        wanted = claim("radio1")
        with pytest.raises(HoldDenied):
            await agent.prepare(wanted.key, reading(wanted))

        world.driver.broken.clear()
        agent._scanner.wake.set()  # the list stays as it was

        await until(agent, lambda o: o.find("radio1").claimable)  # type: ignore[union-attr]
        world.driver.broken.add("radio0")
        agent._scanner.wake.set()
        await until(agent, lambda o: not o.find("radio0").claimable)  # type: ignore[union-attr]


async def test_a_claim_that_comes_and_goes_asks_no_driver_how_its_devices_are(world: World) -> None:
    """64 claims at once on a node of 100 devices would be 6,400 calls for nothing."""
    wanted = claim("radio0")
    async with world.agent() as agent:
        await _eventually(lambda: sorted(world.driver.checked) == ["radio0", "radio1"])

        await agent.prepare(wanted.key, reading(wanted))
        await until(agent, lambda o: o.find("radio0").held)  # type: ignore[union-attr]
        await agent.unprepare(wanted.key)
        await until(agent, lambda o: not o.find("radio0").held)  # type: ignore[union-attr]
        world.radio("radio2", 2)
        agent._scanner.wake.set()
        await _eventually(lambda: "radio2" in world.driver.checked)

        before = world.driver.checked[: world.driver.checked.index("radio2")]
        assert before.count("radio0") <= 3  # listed, offered, and now that there are others


async def test_what_a_frontend_notes_is_in_the_status_though_nothing_else_changed(
    world: World,
) -> None:
    """A resource that was listed again after the kubelet's restart looked unregistered for good."""
    state = world.paths.state
    async with world.agent() as agent:
        for word in ("waiting", "registered", "listed"):
            agent.note("frontend/x", {"radio": word})
            wanted = {"frontend/x": {"radio": word}}
            await _eventually(lambda wanted=wanted: read_status(state).get("notes") == wanted)  # type: ignore[misc]


class _Policy:
    answer: list[Veto]

    def __init__(self, node: Any, settings: Any) -> None: ...


async def test_what_a_policy_vetoes_is_not_offered_and_says_why(world: World) -> None:
    class Rival(_Policy):
        @hookimpl
        def veto_devices(self) -> list[Veto]:
            return [Veto(device="radio0", reason="the radio operator offers it")]

    async with world.agent(Plugin("policy", "rival", loaded=Rival)) as agent:
        assert _names(agent.offer) == ["radio1"]
        assert agent.offer.withheld[0].reason == "the radio operator offers it"


async def test_a_policy_that_fails_keeps_its_last_verdict_and_offers_nothing_before_one(
    world: World,
) -> None:
    class Fails(_Policy):
        @hookimpl
        def veto_devices(self) -> list[Veto]:
            raise RuntimeError("no API server")

    async with world.agent(Plugin("policy", "fails", loaded=Fails)) as agent:
        assert agent.offer.devices == ()
        assert "no API server" in agent.offer.withheld[0].reason


async def test_a_policy_that_the_settings_name_and_that_cannot_run_stops_the_offer(
    world: World,
) -> None:
    missing = Plugin("policy", "isolation", state="missing", reason="no package provides it")

    async with world.agent(missing) as agent:
        assert agent.offer.devices == ()
        assert "policy isolation is named in the settings" in agent.offer.withheld[0].reason
        assert [e.source for e in agent.board.entries] == ["policy/isolation"]


async def test_admin_access_is_refused_unless_a_policy_admits_it(world: World) -> None:
    from hardpoint import Verdict

    class Admits(_Policy):
        @hookimpl
        def admit_claim(self) -> Verdict:
            return Verdict.allow("monitoring namespace")

    wanted = claim("radio0", admin=True)
    async with world.agent() as agent:
        with pytest.raises(HoldDenied, match="admin"):
            await agent.prepare(wanted.key, reading(wanted))
    async with world.agent(Plugin("policy", "admits", loaded=Admits)) as agent:
        assert await agent.prepare(wanted.key, reading(wanted))


async def test_observers_learn_of_claims_and_devices(world: World) -> None:
    seen: list[str] = []

    class Watches(_Policy):
        @hookimpl
        def observe(self, event: Event) -> None:
            seen.append(event.name)

    wanted = claim("radio0")
    async with world.agent(Plugin("policy", "watches", loaded=Watches)) as agent:
        await agent.prepare(wanted.key, reading(wanted))
        await agent.unprepare(wanted.key)
        await _eventually(lambda: {"claim-prepared", "claim-unprepared"} <= set(seen))


async def test_of_two_agents_one_writes_and_the_other_takes_over(world: World) -> None:
    async with world.agent() as first:
        assert first.writing()
        async with world.agent() as second:
            assert not second.writing()
            wanted = claim("radio0")
            await second.prepare(wanted.key, reading(wanted))
            await until(first, lambda o: o.find("radio0").held)  # type: ignore[union-attr]
            first._writer.close()
            with anyio.fail_after(10):
                await second.until_writing()


async def test_the_status_file_says_what_is_offered_held_and_wrong(world: World) -> None:
    wanted = claim("radio0")
    assert not agent_runs(world.paths.state)
    async with world.agent() as agent:
        await agent.prepare(wanted.key, reading(wanted))
        agent.on_fault("frontend/dra registration", "kubelet has not called")
        agent.note("dra hardpoint.dev", {"pool": "node-1"})
        await _eventually(lambda: bool(read_status(world.paths.state).get("faults")))

        status = read_status(world.paths.state)
        assert agent_runs(world.paths.state)
    assert not agent_runs(world.paths.state)
    assert status["holds"] == [
        {
            "device": "radio0",
            "claim": "ns/claim",
            "uid": wanted.key.uid,
            "state": "held",
            "pods": None,
            "users": None,
        }
    ]
    assert status["notes"] == {"dra hardpoint.dev": {"pool": "node-1"}}
    assert status["ready"] is False


async def test_the_state_directory_is_private(world: World) -> None:
    async with world.agent():
        assert world.paths.state.stat().st_mode & 0o777 == 0o700


async def test_a_directory_that_cannot_be_written_is_on_the_board_until_it_can(
    world: World,
) -> None:
    wanted = claim("radio0")
    world.paths.cdi.write_text("not a directory")
    async with world.agent() as agent:
        with pytest.raises(HoldError, match=str(world.paths.cdi)):
            await agent.prepare(wanted.key, reading(wanted))
        assert [fault.source for fault in agent.board.entries] == ["CDI directory"]

        world.paths.cdi.unlink()
        await agent.prepare(wanted.key, reading(wanted))
        assert not agent.board.entries


@pytest.mark.field_case("C10")
async def test_a_ledger_that_cannot_be_written_is_on_the_board_until_it_can(world: World) -> None:
    first, second = claim("radio0"), claim("radio1")
    async with world.agent() as agent:
        await agent.prepare(first.key, reading(first))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(HoldError, match=r"ledger\.db"):
                await agent.prepare(second.key, reading(second))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [fault.source for fault in agent.board.entries] == ["state directory"]

        await agent.prepare(second.key, reading(second))
        await _eventually(lambda: not agent.board.entries)


@pytest.mark.field_case("C10")
async def test_a_known_claim_is_answered_while_nothing_can_be_written(world: World) -> None:
    """Nothing has changed, so nothing needs to be written; and what is unknown costs it nothing."""
    known, unknown = claim("radio0"), claim("radio1")
    async with world.agent() as agent:
        answer = await agent.prepare(known.key, reading(known))
        file = next(world.paths.cdi.iterdir())
        before = file.read_text()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(HoldError):
                await agent.prepare(unknown.key, reading(unknown))
            assert await agent.prepare(known.key, reading(known)) == answer
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        assert [hold.device.name for hold in agent.holds()] == ["radio0"]
        assert file.read_text() == before
