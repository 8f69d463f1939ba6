"""Prepare and unprepare: one entry for each UID, one claim's failure its own, an answer in time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import anyio
import pytest
from dra_node import DRIVER, KEY, NODE, running

from hardpoint.errors import HoldDenied, KubeUnreachable, TryAgain
from hardpoint.kubelet import dra_v1_pb2, dra_v1beta1_pb2
from hardpoint.kubelet.work import Workshop
from hardpoint.model import ClaimKey, PreparedDevice
from hardpoint_dra.server import NodeService

BOTH = [dra_v1_pb2, dra_v1beta1_pb2]


class Work:
    """A claim's work, which a test bends."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.meet: Callable[[ClaimKey], Awaitable[None]] = self._nothing
        self.devices: tuple[PreparedDevice, ...] = (_prepared(),)

    async def _nothing(self, key: ClaimKey) -> None:
        return None

    async def prepare(self, key: ClaimKey) -> tuple[PreparedDevice, ...]:
        self.seen.append(("prepare", key.uid))
        await self.meet(key)
        return self.devices

    async def unprepare(self, key: ClaimKey) -> None:
        self.seen.append(("unprepare", key.uid))
        await self.meet(key)


def _prepared(request: str = "main/sub", share_id: str = "s") -> PreparedDevice:
    return PreparedDevice(
        request=request,
        pool=NODE,
        device="pci-0",
        cdi_ids=("hardpoint.dev/device=a", "hardpoint.dev/device=b"),
        share_id=share_id,
    )


def _request(messages: ModuleType, what: str, *uids: str) -> Any:
    claims = [messages.Claim(namespace="default", uid=uid, name=f"claim-{uid}") for uid in uids]
    return getattr(messages, f"Node{what}ResourcesRequest")(claims=claims)


class Node:
    """The service with its workshop."""

    def __init__(self, work: Work, deadline: float = 5.0) -> None:
        self.workshop = Workshop()
        self.service = NodeService(DRIVER, work, self.workshop, deadline=deadline)

    async def call(self, what: str, *uids: str, messages: ModuleType = dra_v1_pb2) -> Any:
        handler = self.service.methods(messages)[f"Node{what}Resources"]
        return (await handler(_request(messages, what, *uids))).claims


@pytest.mark.parametrize("messages", BOTH)
async def test_devices_are_answered_under_the_base_name_of_their_request(
    messages: ModuleType,
) -> None:
    node = Node(Work())
    async with running(node.workshop.run):
        entries = await node.call("Prepare", "1", messages=messages)

    (device,) = entries["1"].devices
    assert list(device.request_names) == ["main"]
    assert (device.pool_name, device.device_name) == (NODE, "pci-0")
    assert list(device.cdi_device_ids) == ["hardpoint.dev/device=a", "hardpoint.dev/device=b"]
    assert entries["1"].error == ""
    assert getattr(device, "share_id", "s") == "s"


async def test_a_device_that_is_not_shared_has_no_share_id() -> None:
    work = Work()
    work.devices = (_prepared("r", share_id=""),)
    node = Node(work)
    async with running(node.workshop.run):
        entries = await node.call("Prepare", "1")

    assert not entries["1"].devices[0].HasField("share_id")


@pytest.mark.parametrize("messages", BOTH)
@pytest.mark.parametrize("what", ["Prepare", "Unprepare"])
async def test_every_uid_has_one_entry_and_there_is_no_other(
    messages: ModuleType, what: str
) -> None:
    work = Work()
    node = Node(work)
    async with running(node.workshop.run):
        entries = await node.call(what, "1", "2", "1", "3", messages=messages)
        none = await node.call(what, messages=messages)

    assert sorted(entries) == ["1", "2", "3"]
    assert dict(none) == {}
    assert sorted(work.seen) == [(what.lower(), uid) for uid in ("1", "2", "3")]


@pytest.mark.field_case("K04")
@pytest.mark.parametrize("what", ["Prepare", "Unprepare"])
async def test_one_bad_claim_costs_no_other(what: str) -> None:
    work = Work()

    async def meet(key: ClaimKey) -> None:
        if key.uid == "bad":
            raise HoldDenied("device pci-0 is not offered")

    work.meet = meet
    node = Node(work)
    async with running(node.workshop.run):
        entries = await node.call(what, "bad", "good")

    assert entries["bad"].error == "device pci-0 is not offered"
    assert entries["good"].error == ""
    if what == "Prepare":
        assert (len(entries["bad"].devices), len(entries["good"].devices)) == (0, 1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KubeUnreachable("GET claims: connection refused"), "GET claims: connection refused"),
        (HoldDenied("x" * 5000), "x" * 1000),
        (
            ZeroDivisionError("secret"),
            "internal error in prepare of claim default/claim-1: ZeroDivisionError",
        ),
    ],
)
async def test_an_error_becomes_a_sentence_for_the_pods_events(
    error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()

    async def meet(key: ClaimKey) -> None:
        raise error

    work.meet = meet
    node = Node(work)
    async with running(node.workshop.run):
        entries = await node.call("Prepare", "1")

    assert entries["1"].error == said
    assert "claim=default/claim-1 uid=1" in caplog.text


@pytest.mark.field_case("B19", "K02")
async def test_claims_do_not_wait_for_each_other() -> None:
    """Preparing one may need what preparing another brings (dra-driver-nvidia-gpu pull 374)."""
    work, came = Work(), anyio.Event()

    async def meet(key: ClaimKey) -> None:
        if key.uid == "b":
            came.set()
        await came.wait()

    work.meet = meet
    node = Node(work)
    async with running(node.workshop.run):
        together = await node.call("Prepare", "a", "b")
        came = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.call, "Prepare", "a")
            await anyio.wait_all_tasks_blocked()
            apart = await node.call("Prepare", "b")

    assert [together["a"].error, together["b"].error, apart["b"].error] == ["", "", ""]


@pytest.mark.field_case("B19")
async def test_what_takes_too_long_is_answered_with_try_again_and_goes_on() -> None:
    work, gate, finished = Work(), anyio.Event(), anyio.Event()

    async def meet(key: ClaimKey) -> None:
        if key.uid == "slow":
            await gate.wait()
            finished.set()

    work.meet = meet
    node = Node(work, deadline=0.05)
    async with running(node.workshop.run):
        entries = await node.call("Prepare", "slow", "quick")
        assert entries["slow"].error == (
            "prepare of claim default/claim-slow is still running; try again"
        )
        assert len(entries["quick"].devices) == 1
        gate.set()
        with anyio.fail_after(5):
            await finished.wait()


async def test_work_goes_on_when_the_caller_hangs_up() -> None:
    work, gate, finished = Work(), anyio.Event(), anyio.Event()

    async def meet(key: ClaimKey) -> None:
        await gate.wait()
        finished.set()

    work.meet = meet
    node = Node(work)
    async with running(node.workshop.run):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.call, "Prepare", "1")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        gate.set()
        with anyio.fail_after(5):
            await finished.wait()


async def test_a_stopping_agent_answers_try_again() -> None:
    work = Work()
    work.meet = lambda key: anyio.sleep_forever()
    node = Node(work)
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await node.call("Prepare", "1"))

    async with anyio.create_task_group() as tasks, running(node.workshop.run):
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
    answers.append(await node.call("Unprepare", "1"))

    assert [entries["1"].error for entries in answers] == ["the agent is stopping; try again"] * 2


async def test_work_that_was_not_begun_when_the_agent_stopped_is_answered_too() -> None:
    workshop, failed = Workshop(), anyio.Event()

    async def ask() -> None:
        with pytest.raises(TryAgain, match="stopping"):
            await workshop.do(anyio.sleep_forever, within=60)
        failed.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await workshop.run()
        with anyio.fail_after(5):
            await failed.wait()


async def test_the_key_carries_what_the_kubelet_said_and_our_driver() -> None:
    keys: list[ClaimKey] = []
    work = Work()

    async def meet(key: ClaimKey) -> None:
        keys.append(key)

    work.meet = meet
    node = Node(work)
    request = dra_v1_pb2.NodeUnprepareResourcesRequest(
        claims=[dra_v1_pb2.Claim(namespace="default", uid="uid-1", name="gpu")]
    )
    async with running(node.workshop.run):
        await node.service.methods(dra_v1_pb2)["NodeUnprepareResources"](request)

    assert keys == [KEY]
