"""What the relay promises of every call into a plugin."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hardpoint import Delivery, Device, DeviceNode, Health, Refuse, TryAgain, Verdict, hookimpl
from hardpoint._core.plugins.relay import Relay, backoff
from hardpoint.contract import Spec
from hardpoint.errors import HookFault, HookLate
from hardpoint.model import ClaimKey, Condition, Hold


class _Base:
    def __init__(self, node: Any, settings: Any) -> None:
        self.node = node


class Live(_Base):
    @hookimpl
    def publish_devices(self) -> Iterator[Device]:
        yield Device(name="cam-0", kind="cam")


class Dead(_Base):
    @hookimpl
    def publish_devices(self) -> list[Device]:
        raise OSError("bus gone")


class Exits(_Base):
    @hookimpl
    def publish_devices(self) -> list[Device]:
        raise SystemExit(3)


class Rubbish(_Base):
    @hookimpl
    def publish_devices(self) -> Any:
        return ["cam-1"]


class Async(_Base):
    @hookimpl
    async def publish_devices(self) -> list[Device]:
        await anyio.lowlevel.checkpoint()
        return [Device(name="cam-a", kind="cam")]


async def test_a_dead_bus_costs_only_its_own_devices(relay_of: Any) -> None:
    relay = await relay_of(dead=Dead, live=Live)

    answers = await relay.gather("publish_devices")

    assert [d.name for d in answers["driver/live"]] == ["cam-0"]
    assert "driver/dead" not in answers
    assert [e.source for e in relay.board.entries] == ["driver/dead publish_devices"]
    assert "bus gone" in relay.board.entries[0].message


@pytest.mark.parametrize("bad", [Exits, Rubbish])
async def test_a_plugin_that_exits_or_answers_rubbish_is_a_fault_like_any_other(
    relay_of: Any, bad: type
) -> None:
    relay = await relay_of(bad=bad, live=Live)

    answers = await relay.gather("publish_devices")

    assert list(answers) == ["driver/live"]
    assert len(relay.board.entries) == 1


async def test_async_and_plain_hooks_answer_alike(relay_of: Any) -> None:
    relay = await relay_of(slow=Async, live=Live)

    answers = await relay.gather("publish_devices")

    names = {plugin: [d.name for d in listed] for plugin, listed in answers.items()}
    assert names == {"driver/live": ["cam-0"], "driver/slow": ["cam-a"]}


async def test_what_works_again_leaves_the_fault_board(relay_of: Any) -> None:
    class Flaky(_Base):
        broken = True

        @hookimpl
        def publish_devices(self) -> list[Device]:
            if Flaky.broken:
                raise OSError("once")
            return []

    relay = await relay_of(flaky=Flaky)
    await relay.gather("publish_devices")
    assert relay.board.entries

    Flaky.broken = False
    await relay.gather("publish_devices")

    assert relay.board.entries == ()


def _hurry(monkeypatch: pytest.MonkeyPatch, budget: float = 0.02) -> None:
    """Give every hook a budget that a test can wait for."""
    from hardpoint._core.plugins import relay as module

    real = module._spec

    def hurried(hook: str, dispatch: Any) -> Spec:
        spec = real(hook, dispatch)
        return Spec(spec.dispatch, spec.on_fault, budget)

    monkeypatch.setattr(module, "_spec", hurried)


async def test_a_late_call_is_joined_rather_than_repeated(
    relay_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(monkeypatch)
    calls, gate = [], threading.Event()

    class Hung(_Base):
        @hookimpl
        def publish_devices(self) -> list[Device]:
            calls.append(1)
            gate.wait(10)
            return [Device(name="cam-9", kind="cam")]

    relay = await relay_of(hung=Hung)
    for _ in range(5):
        with pytest.raises(HookLate):
            await relay.plugin("publish_devices", "driver/hung")
    assert len(calls) == 1

    gate.set()
    while True:
        try:
            answer = await relay.plugin("publish_devices", "driver/hung")
            break
        except HookLate:
            continue
    assert [d.name for d in answer] == ["cam-9"]
    assert len(calls) == 1


async def test_a_hung_plugin_takes_threads_from_no_other(
    relay_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(monkeypatch)
    gate = threading.Event()

    class Hung(_Base):
        @hookimpl
        def check_device(self, device: Device) -> Health:
            gate.wait(10)
            return Health(Condition.HEALTHY)

    relay = await relay_of(hung=Hung, live=Live)
    try:
        for number in range(80):
            device = Device(name=f"d-{number}", kind="k")
            with pytest.raises(HookLate):
                await relay.owner("check_device", "hung", device.name, device=device)
        answers = await relay.gather("publish_devices")
    finally:
        gate.set()

    assert [d.name for d in answers["driver/live"]] == ["cam-0"]


async def test_only_the_publisher_of_a_device_is_asked(relay_of: Any) -> None:
    class Mine(_Base):
        @hookimpl
        def deliver_device(self, device: Device) -> Delivery:
            return Delivery(env={"OWNER": device.name})

    class Theirs(_Base):
        @hookimpl
        def deliver_device(self) -> Delivery:
            raise AssertionError("asked for a device of another driver")

    relay = await relay_of(mine=Mine, theirs=Theirs, live=Live)
    device = Device(name="x", kind="k")

    mine = await relay.owner("deliver_device", "mine", "x", device=device, parameters=None)
    none = await relay.owner("deliver_device", "live", "x", device=device, parameters=None)

    assert mine.env == {"OWNER": "x"}
    assert none is None


@pytest.mark.parametrize("said", [TryAgain("no node yet"), Refuse("never", reason="policy")])
async def test_what_a_plugin_means_to_say_reaches_the_caller_and_is_no_fault(
    relay_of: Any, said: Exception
) -> None:
    class Says(_Base):
        @hookimpl
        def deliver_device(self) -> Delivery:
            raise said

    relay = await relay_of(says=Says)

    with pytest.raises(type(said), match=str(said)):
        await relay.owner("deliver_device", "says", "x", device=None, parameters=None)
    assert relay.board.entries == ()


async def test_a_refusing_gather_fails_when_one_policy_fails(relay_of: Any) -> None:
    class Admits(_Base):
        @hookimpl
        def admit_claim(self) -> Verdict:
            return Verdict.allow()

    class Fails(_Base):
        @hookimpl
        def admit_claim(self) -> Verdict:
            raise RuntimeError("no idea")

    relay = await relay_of("policy", admits=Admits, fails=Fails)

    with pytest.raises(HookFault, match="no idea"):
        await relay.gather("admit_claim", "uid", claim=None, devices=(), holds=())


def _hold() -> Hold:
    key = ClaimKey("u", "ns", "c", "hardpoint.dev")
    return Hold(claim=key, device=Device(name="d", kind="k"), request="r")


async def test_each_policy_narrows_what_the_one_before_left(relay_of: Any) -> None:
    class First(_Base):
        @hookimpl
        def isolate_delivery(self, delivery: Delivery) -> Delivery:
            return Delivery(nodes=delivery.nodes[1:])

    relay = await relay_of("policy", a=First, b=First)
    whole = Delivery(nodes=tuple(DeviceNode(path=f"/dev/n{i}") for i in range(3)))

    left = await relay.fold(
        "isolate_delivery", "d", "delivery", hold=_hold(), device=None, delivery=whole
    )

    assert [node.path for node in left.nodes] == ["/dev/n2"]


@pytest.mark.field_case("A03")
async def test_a_supervised_hook_that_ends_is_started_again_and_others_live_on(
    relay_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hardpoint._core.plugins import relay as module

    monkeypatch.setattr(module, "backoff", lambda: iter([0.0] * 100))
    starts: list[str] = []
    both = anyio.Event()

    class Crashes(_Base):
        @hookimpl
        async def watch_devices(self) -> None:
            starts.append("crashes")
            if starts.count("crashes") == 3:
                both.set()
                await anyio.sleep_forever()
            raise RuntimeError("died")

    class Lives(_Base):
        @hookimpl
        async def watch_devices(self, hint: Any) -> None:
            starts.append("lives")
            hint()
            await anyio.sleep_forever()

    hints: list[str] = []
    relay: Relay = await relay_of(crashes=Crashes, lives=Lives)
    relay.supervise("watch_devices", lambda plugin: {"hint": lambda: hints.append(plugin)})
    await both.wait()

    assert starts.count("crashes") == 3
    assert starts.count("lives") == 1
    assert hints == ["driver/lives"]
    assert relay.board.entries[0].count == 2


def test_back_off_doubles_stays_below_its_ceiling_and_is_never_zero() -> None:
    delays = backoff(first=1.0, last=8.0)

    found = [next(delays) for _ in range(20)]

    assert all(0.5 <= delay <= 8.0 for delay in found)
    assert max(found[4:]) > 4.0
