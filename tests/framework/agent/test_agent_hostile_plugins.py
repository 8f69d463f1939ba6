"""A stranger's plugin beside a good driver: whatever it does costs only itself, and is said."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from hardpoint import Device, DeviceNode, Health, Hold, Veto, Withheld, hookimpl
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.plugins.discovery import Plugin
from hardpoint._core.state import read_status
from hardpoint.errors import HoldError
from hardpoint.grants import NodeCondition
from hardpoint.model import (
    Addition,
    Capacity,
    Condition,
    Delivery,
    Part,
    Taint,
    Topology,
    Unread,
    Version,
)

from .conftest import World, claim, reading, until

GOOD = ["radio0", "radio1"]


def _bad(role: str = "driver", /, **hooks: Callable[..., Any]) -> Plugin:
    """Make a plugin of functions named for their hooks."""

    def init(self: Any, node: Any, settings: Any) -> None:
        self.node = node

    methods = {}
    for name, function in hooks.items():
        function.__name__ = name
        methods[name] = hookimpl(function)
    return Plugin(role, "bad", loaded=type("Bad", (), {"__init__": init, **methods}))


def _x(**fields: Any) -> Device:
    """A device of radio0's node, with one field that is rubbish."""
    node = DeviceNode(path="/dev/radio0", major=240, minor=0)
    return Device(**{"name": "x", "kind": "x", "nodes": (node,), **fields})


def _node(**fields: Any) -> Device:
    return _x(nodes=(DeviceNode(**{"path": "/dev/radio0", "major": 240, "minor": 0, **fields}),))


class _Mine(Device):
    def __init__(self) -> None:
        super().__init__(name="x", kind="x")


RUBBISH: dict[str, tuple[Callable[[], Any], str]] = {
    "no name": (lambda: _x(name=None), "name: found NoneType, want str"),
    "a name of bytes": (lambda: _x(name=b"x"), "name: found bytes, want str"),
    "a list for a kind": (lambda: _x(kind=["x"]), "kind: found list, want str"),
    "paths for nodes": (lambda: _x(nodes=["/dev/x"]), "nodes[0]: found str, want DeviceNode"),
    "a node without a path": (lambda: _node(path=None), "nodes[0].path: found NoneType, want str"),
    "a Path": (lambda: _node(path=Path("/dev/x")), "nodes[0].path: found PosixPath, want str"),
    "a major of text": (lambda: _node(major="240"), "nodes[0].major: found str, want int"),
    "no permissions": (lambda: _node(permissions=None), "permissions: found NoneType, want str"),
    "a part by name": (lambda: _x(parts=["usb:1"]), "parts[0]: found str, want Part"),
    "a part half exclusive": (
        lambda: _x(parts=[Part("usb:1", "yes")]),  # type: ignore[arg-type]
        "parts[0].exclusive: found str, want bool",
    ),
    "a word for shareable": (lambda: _x(shareable="no"), "shareable: found str, want bool"),
    "a taint by name": (lambda: _x(taints=["hot"]), "taints[0]: found str, want Taint"),
    "an effect by name": (
        lambda: _x(taints=[Taint("hot", effect="NoSchedule")]),  # type: ignore[arg-type]
        "taints[0].effect: found str, want Effect",
    ),
    "no topology": (lambda: _x(topology=None), "topology: found NoneType, want Topology"),
    "a NUMA node of text": (
        lambda: _x(topology=Topology(numa_node="0")),  # type: ignore[arg-type]
        "topology.numa_node: found str, want int",
    ),
    "a number in its origin": (lambda: _x(origin={"n": 1}), "origin['n']: found int, want str"),
    "a class of its own": (_Mine, "found _Mine, want Device"),
    "a subject that is a list": (
        lambda: Withheld(["x"], "r", "s"),  # type: ignore[arg-type]
        "subject: found list, want str",
    ),
    "an entry that is a list": (
        lambda: Unread(["x"], "r"),  # type: ignore[arg-type]
        "entry: found list, want str",
    ),
}


async def _still_works(agent: HardpointAgent) -> None:
    wanted = claim("radio1")
    await agent.prepare(wanted.key, reading(wanted))
    await agent.unprepare(wanted.key)
    names = {offered.name for offered in agent.offer.devices}
    assert names >= set(GOOD)


@pytest.mark.parametrize("what", RUBBISH)
async def test_a_device_that_is_rubbish_is_withheld_alone_and_says_what_is_wrong(
    world: World, what: str
) -> None:
    make, wrong = RUBBISH[what]
    fine = Device(name="fine", kind="x")
    async with world.agent(_bad(publish_devices=lambda self: [make(), fine])) as agent:
        assert [o.name for o in agent.offer.devices] == ["fine", *GOOD]
        (withheld,) = agent.offer.withheld
        assert (withheld.rule, withheld.driver) == ("bad-device", "bad")
        assert wrong in withheld.reason
        assert any(wrong in fault.message for fault in agent.board.entries)
        await _still_works(agent)


@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": {None: "x"}},
        {"attributes": {"a": Version(None)}},  # type: ignore[arg-type]
        {"attributes": {"a": Version("9" * 5000)}},
        {"attributes": {"a": float("nan")}},
        {"attributes": {"a": "\ud800"}},
        {"capacity": {None: "1"}},
        {"capacity": {"a": Capacity(value="lots")}},
    ],
    ids=repr,
)
async def test_an_attribute_that_is_rubbish_is_left_out_alone(
    world: World, fields: dict[str, Any]
) -> None:
    async with world.agent(_bad(publish_devices=lambda self: [_x(**fields)])) as agent:
        wanted = claim("x")
        assert await agent.prepare(wanted.key, reading(wanted))


class _Odd(BaseException):
    """Neither an ``Exception`` nor anything that anybody knows."""


class _Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


VIOLENCE = [
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
    _Odd,
    _Speechless,
    lambda: ValueError("half a pair \ud800"),
    lambda: BaseExceptionGroup("two", [KeyboardInterrupt()]),
]


def _raising(make: Callable[[], BaseException], *, later: bool) -> Callable[..., Any]:
    def now(self: Any) -> Any:
        raise make()

    async def then(self: Any) -> Any:
        raise make()

    return then if later else now


@pytest.mark.parametrize("later", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize("make", VIOLENCE, ids=lambda made: getattr(made, "__name__", "?"))
async def test_what_would_end_a_program_ends_only_the_hook_that_raised_it(
    world: World, make: Callable[[], BaseException], later: bool
) -> None:
    def publish(self: Any) -> list[Device]:
        return [_x()]

    raising: dict[str, Any] = {
        hook: _raising(make, later=later)
        for hook in ("check_device", "watch_devices", "prepare_device", "release_device")
    }
    async with world.agent(_bad(publish_devices=publish, **raising)) as agent:
        wanted = claim("x")
        with pytest.raises(HoldError, match="prepare_device"):
            await agent.prepare(wanted.key, reading(wanted))
        hooks = {fault.source.split()[1] for fault in agent.board.entries}
        await agent.unprepare(wanted.key)
        await agent._broker.attend()
        await _still_works(agent)
        hooks |= {fault.source.split()[1] for fault in agent.board.entries}
        assert hooks >= {"prepare_device", "release_device", "watch_devices"}


@pytest.mark.parametrize("make", VIOLENCE, ids=lambda made: getattr(made, "__name__", "?"))
async def test_a_walk_that_would_end_a_program_is_a_walk_that_failed(
    world: World, make: Callable[[], BaseException]
) -> None:
    async with world.agent(_bad(publish_devices=_raising(make, later=True))) as agent:
        await _still_works(agent)
        assert [f.source for f in agent.board.entries] == ["driver/bad publish_devices"]


async def test_a_driver_that_cancels_its_own_task_has_not_prepared_anything(world: World) -> None:
    async def prepare(self: Any) -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await anyio.lowlevel.checkpoint()

    bad = _bad(publish_devices=lambda self: [_x()], prepare_device=prepare)
    async with world.agent(bad) as agent:
        wanted = claim("x")
        with pytest.raises(HoldError, match="prepare_device"):
            await agent.prepare(wanted.key, reading(wanted))
        assert not agent.holds()
        await _still_works(agent)


async def test_a_driver_may_remember_on_the_event_loop_itself(world: World) -> None:
    """The ledger's thread told the loop of the change and waited for it, while it waited."""

    async def prepare(self: Any, hold: Hold) -> None:
        hold.remember(image="fft")

    bad = _bad(publish_devices=lambda self: [_x()], prepare_device=prepare)
    async with world.agent(bad) as agent:
        wanted = claim("x")
        await agent.prepare(wanted.key, reading(wanted))
        assert [dict(h.remembered) for h in agent.holds()] == [{"image": "fft"}]


async def test_a_listing_without_an_end_is_a_walk_that_failed(world: World) -> None:
    def publish(self: Any) -> Iterator[Device]:
        return (Device(name=f"d-{i}", kind="x") for i in itertools.count())

    async with world.agent(_bad(publish_devices=publish)) as agent:
        with anyio.fail_after(20):
            while not agent.board.entries:  # noqa: ASYNC110 - the board sets no Event
                await anyio.sleep(0.05)
        assert "more than 16384" in agent.board.entries[0].message
        await _still_works(agent)


@pytest.mark.parametrize(
    "health",
    [Health("Unhealthy"), Health(None), Health(Condition.UNHEALTHY, 5)],  # type: ignore[arg-type]
)
async def test_health_that_is_rubbish_is_unknown_health(world: World, health: Any) -> None:
    bad = _bad(publish_devices=lambda self: [_x()], check_device=lambda self: health)
    async with world.agent(bad) as agent:
        offer = await until(
            agent,
            lambda o: o.find("x").health.condition is Condition.UNKNOWN,  # type: ignore[union-attr]
        )
        assert offer.find("x").claimable  # type: ignore[union-attr]
        assert "found" in agent.board.entries[0].message


@pytest.mark.parametrize(
    "delivery",
    [
        Delivery(nodes=("/dev/x",)),  # type: ignore[arg-type]
        Delivery(env={"A": 1}),  # type: ignore[dict-item]
        Delivery(mounts=("/x",)),  # type: ignore[arg-type]
        Delivery(cdi_devices=(5,)),  # type: ignore[arg-type]
    ],
)
async def test_a_delivery_that_is_rubbish_refuses_the_claim_in_a_sentence(
    world: World, delivery: Delivery
) -> None:
    bad = _bad(publish_devices=lambda self: [_x()], deliver_device=lambda self: delivery)
    async with world.agent(bad) as agent:
        wanted = claim("x")
        with pytest.raises(HoldError, match=r"deliver_device of plugin 'driver/bad'.*found"):
            await agent.prepare(wanted.key, reading(wanted))
        assert not agent.holds()


VETO = {"device": "radio0", "reason": "x"}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        ["radio0"],
        [Veto(device=None, reason="x")],  # type: ignore[arg-type]
        [Veto(**VETO, condition=("Rival",))],  # type: ignore[arg-type]
        [Veto(**VETO, condition=("Rival", "Radios", "and more"))],  # type: ignore[arg-type]
        [Veto(**VETO, condition=())],  # type: ignore[arg-type]
    ],
)
async def test_a_policy_that_answers_rubbish_withholds_and_says_so(
    world: World, answer: Any
) -> None:
    bad = _bad("policy", veto_devices=lambda self: answer)
    async with world.agent(bad) as agent:
        assert not agent.offer.devices
        assert {w.rule for w in agent.offer.withheld} == {"vetoed"}
        assert "veto_devices" in agent.board.entries[0].source


async def test_a_frontend_may_note_what_is_no_json_without_ending_the_report(world: World) -> None:
    async def serve(self: Any, agent: HardpointAgent, ready: Callable[[], None]) -> None:
        agent.note("theirs", {"a": object(), "b": {1: {2}}})
        agent.on_fault("theirs", RuntimeError("lost"))  # type: ignore[arg-type]
        ready()
        await anyio.sleep_forever()

    async with world.agent(_bad("frontend", serve_frontend=serve)):
        with anyio.fail_after(10):
            while "theirs" not in read_status(world.paths.state).get("notes", {}):  # noqa: ASYNC110 - nor does a file
                await anyio.sleep(0.05)
        assert read_status(world.paths.state)["faults"][0]["message"] == "lost"


async def test_a_policy_that_raises_very_many_conditions_keeps_none_of_the_agents_own_off_the_node(
    world: World,
) -> None:
    many = [Veto(**VETO, condition=(f"Type{number}", "Why")) for number in range(100)]
    bad = _bad("policy", veto_devices=lambda self: many)
    async with world.agent(bad) as agent:
        for number in range(100):
            agent.raise_condition(NodeCondition(type=f"Other{number}", reason="Why", message="so"))
        assert len(agent.conditions()) == 64
        assert "conditions" in {one.source for one in agent.board.entries}

        agent.policies.conditions.set("ReleaseStuck", "PodsHoldDevices", "a-1")  # as releases do
        again = NodeCondition(type="Type1", reason="Why", message="other words")
        agent.raise_condition(again)
        assert again in agent.conditions()
        assert "ReleaseStuck" in {one.type for one in agent.conditions()}

        for one in agent.conditions():
            agent.clear_condition(one.type)
        agent.raise_condition(again)
        assert "conditions" not in {one.source for one in agent.board.entries}


async def test_vetoes_of_one_condition_with_two_reasons_are_one_that_does_not_flap(
    world: World,
) -> None:
    both = [
        Veto(device="radio0", reason="a rival has it", condition=("Exposed", "Rival")),
        Veto(device="radio1", reason="so has this one", condition=("Exposed", "Runtime")),
    ]
    bad = _bad("policy", veto_devices=lambda self: both)
    async with world.agent(bad) as agent:
        await until(agent, lambda offer: not offer.devices)
        said = NodeCondition(
            type="Exposed", reason="Rival", message="a rival has it so has this one"
        )
        assert agent.conditions() == (said,)


@pytest.mark.parametrize("env", [{"A": "x" * 10**7}, {f"A{n}": "x" * 99 for n in range(1000)}])
async def test_variables_with_which_no_container_starts_cost_only_themselves(
    world: World, env: dict[str, str]
) -> None:
    bad = _bad("policy", annotate_delivery=lambda self: Addition(env=env))
    async with world.agent(bad) as agent:
        wanted = claim("radio0")
        await agent.prepare(wanted.key, reading(wanted))

        written = b"".join(path.read_bytes() for path in world.paths.cdi.glob("*.json"))
        assert b"/dev/radio0" in written
        assert len(written) < 10_000


async def test_the_end_of_a_veto_ends_no_condition_that_somebody_else_says_by_then(
    world: World,
) -> None:
    vetoes = [Veto(**VETO, condition=("Exposed", "Rival"))]
    bad = _bad("policy", veto_devices=lambda self: tuple(vetoes))
    async with world.agent(bad) as agent:
        await until(agent, lambda offer: offer.find("radio0") is None)
        assert [one.reason for one in agent.conditions()] == ["Rival"]

        agent.raise_condition(NodeCondition(type="Exposed", reason="Runtime", message="too"))
        vetoes.clear()
        agent.policies.hint()
        await until(agent, lambda offer: offer.find("radio0") is not None)
        assert [one.reason for one in agent.conditions()] == ["Runtime"]
