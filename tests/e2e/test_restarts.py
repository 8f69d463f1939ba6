"""A claim's life goes on whatever is restarted, at whatever step: the agent, the kubelet, both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from e2e_node import ADAPTER, DISPLAY, LIKEN, RENDER, EndToEnd

from hardpoint._core.agent import HardpointAgent
from hardpoint.testing.kubelet import Pod, PodFailed

Restart = Callable[["Life"], Awaitable[None]]


class Life:
    """One claim on the node, and the agent that serves it now."""

    def __init__(self, node: EndToEnd) -> None:
        self.node = node
        self.pod, self.uid = node.claim("mine", DISPLAY, RENDER)
        self._stop, self._stopped = anyio.Event(), anyio.Event()
        self.agent: HardpointAgent

    @asynccontextmanager
    async def lived(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as self._tasks:
            await self.start()
            yield
            await self.stop()

    async def start(self) -> None:
        self._stop, self._stopped = anyio.Event(), anyio.Event()
        await self._tasks.start(self._serve)

    async def _serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with self.node.agent() as self.agent:
            task_status.started()
            await self._stop.wait()
        self._stopped.set()

    async def stop(self) -> None:
        self._stop.set()
        await self._stopped.wait()

    async def prepare(self) -> None:
        """As the kubelet does: again and again, until it works."""
        await self._retried(self.node.kubelet.prepare)

    async def unprepare(self) -> None:
        await self._retried(self.node.kubelet.unprepare)

    async def _retried(self, act: Callable[[Pod], Awaitable[object]]) -> None:
        with anyio.fail_after(10):
            while True:
                await self.node.until_served(LIKEN)
                try:
                    await act(self.pod)
                except PodFailed:
                    continue
                return

    def is_delivered(self) -> bool:
        paths = self.node.inside(self.pod).paths
        return sorted(paths) == ["/dev/dri/card0", "/dev/dri/renderD128"]


async def _agent(life: Life) -> None:
    await life.stop()
    await life.start()


async def _kubelet(life: Life) -> None:
    await life.node.kubelet.restart()
    await life.node.until_served(LIKEN)


async def _kubelet_without_memory(life: Life) -> None:
    await life.node.kubelet.restart(forget=True)
    await life.node.until_served(LIKEN)


async def _agent_while_the_kubelet_is_away(life: Life) -> None:
    await life.node.kubelet.stop()
    await life.stop()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(life.start)
        await life.node.kubelet.start()


async def _reboot(life: Life) -> None:
    """Everything ends; /run is new, and so is the boot."""
    await life.node.kubelet.stop()
    await life.stop()
    for file in life.node.cdi.iterdir():
        file.unlink()
    life.node.cdi.rmdir()
    boot = life.node.machine.proc / "sys/kernel/random/boot_id"
    boot.write_text("6b1d3a52-0000-4000-8000-0000000000b2\n")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(life.start)
        await life.node.kubelet.start()


RESTARTS = [_agent, _kubelet, _agent_while_the_kubelet_is_away, _reboot]


@pytest.fixture(params=RESTARTS, ids=lambda restart: restart.__name__.strip("_"))
def restart(request: pytest.FixtureRequest) -> Restart:
    found: Restart = request.param
    return found


async def test_restarted_before_its_claim_was_prepared(node: EndToEnd, restart: Restart) -> None:
    life = Life(node)
    async with life.lived():
        if restart is _reboot:
            node.cdi.mkdir()
        await restart(life)
        await life.prepare()

        assert life.is_delivered()
        await _ends_clean(life)


@pytest.mark.field_case("B18", "C06")
async def test_restarted_while_its_claim_is_held(node: EndToEnd, restart: Restart) -> None:
    life = Life(node)
    async with life.lived():
        await life.prepare()
        await restart(life)

        assert life.is_delivered()  # for a container that starts now, before any call
        await life.prepare()
        assert life.is_delivered()
        await _ends_clean(life)


@pytest.mark.field_case("A08", "B11")
async def test_a_kubelet_that_forgot_its_claims_is_answered_as_before(node: EndToEnd) -> None:
    life = Life(node)
    async with life.lived():
        first = await node.kubelet.prepare(life.pod)
        await _kubelet_without_memory(life)

        assert await node.kubelet.prepare(life.pod) == first
        await _ends_clean(life)


async def test_restarted_while_the_claim_is_being_read(node: EndToEnd, restart: Restart) -> None:
    life = Life(node)
    async with life.lived():
        answered = anyio.Event()
        stuck = node.server.trouble(before=answered.wait, path="resourceclaims/mine")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_fails, node.kubelet.prepare, life.pod)
            await node.server.until(lambda: stuck.met)
            if restart is _reboot:
                node.cdi.mkdir(exist_ok=True)
            await restart(life)
            answered.set()
        await life.prepare()

        assert life.is_delivered()
        await _ends_clean(life)


async def test_restarted_while_it_is_given_back(node: EndToEnd, restart: Restart) -> None:
    life = Life(node)
    async with life.lived():
        await life.prepare()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_may_fail, node.kubelet.unprepare, life.pod)
            if restart is _reboot:
                await _agent(life)
            else:
                await restart(life)
        await _ends_clean(life)


async def test_restarted_after_it_was_given_back(node: EndToEnd, restart: Restart) -> None:
    life = Life(node)
    async with life.lived():
        await life.prepare()
        await life.unprepare()
        await restart(life)
        assert node.files == []

        await life.prepare()  # the same claim again, as a Recreate deployment does
        assert life.is_delivered()
        await _ends_clean(life)


async def _fails(act: Callable[[Pod], Awaitable[object]], pod: Pod) -> None:
    with pytest.raises(PodFailed):
        await act(pod)


async def _may_fail(act: Callable[[Pod], Awaitable[object]], pod: Pod) -> None:
    try:
        await act(pod)
    except PodFailed:
        return


async def _ends_clean(life: Life) -> None:
    """End the claim, and let another have the devices."""
    node = life.node
    await life.unprepare()
    assert node.files == []
    assert life.agent.holds() == ()
    other, _ = node.claim("other", DISPLAY)
    await node.kubelet.prepare(other)
    assert node.inside(other).paths == ("/dev/dri/card0",)
    await node.server.until(lambda: set(node.published) == {*_GUIDE, ADAPTER})


_GUIDE = (RENDER, DISPLAY, "pci-0000-00-02-0-i2c-dev")


# -- without an API server ------------------------------------------------------------------------


@pytest.mark.field_case("I05")
@pytest.mark.parametrize("restart", [_agent, _kubelet_without_memory], ids=["agent", "kubelet"])
async def test_a_known_claim_lives_on_while_the_api_server_is_away(
    node: EndToEnd, restart: Restart
) -> None:
    life = Life(node)
    async with life.lived():
        first = await node.kubelet.prepare(life.pod)
        node.server.down = True
        await restart(life)
        (node.cdi / f"{LIKEN}-{life.uid}.json").unlink()

        wire = [{"namespace": "default", "name": "mine", "uid": life.uid}]
        answer = await node.kubelet.call(LIKEN, "NodePrepareResources", wire)

        assert answer.claims[life.uid].error == ""
        names = [name for one in answer.claims[life.uid].devices for name in one.cdi_device_ids]
        assert names == [name for one in first for name in one.cdi_ids]
        assert node.files == [f"{LIKEN}-{life.uid}.json"]
        ended = await node.kubelet.call(LIKEN, "NodeUnprepareResources", wire)
        assert ended.claims[life.uid].error == ""
        assert node.files == []


async def test_a_claim_that_is_not_known_waits_for_the_api_server(node: EndToEnd) -> None:
    life = Life(node)
    async with life.lived():
        node.server.down = True
        with pytest.raises(PodFailed, match="ResourceClaim mine: GET "):
            await node.kubelet.prepare(life.pod)
        assert life.agent.holds() == ()
        node.server.down = False
        await node.server.until_settled()

        await life.prepare()
        assert life.is_delivered()


async def test_slices_are_there_again_when_the_api_server_is_back(node: EndToEnd) -> None:
    life = Life(node)
    async with life.lived():
        await node.server.until(lambda: len(node.published) == 4)
        node.server.down = True
        await life.node.kubelet.restart()  # which wipes the node's slices
        node.server.down = False

        await node.server.until(lambda: len(node.published) == 4)


# -- two agents of a rolling update ---------------------------------------------------------------

OLD, NEW = "0b1d0000-0000-4000-8000-00000000000d", "0e3e0000-0000-4000-8000-00000000000e"


async def test_a_claim_lives_through_a_rolling_update(node: EndToEnd) -> None:
    pod, _ = node.claim("mine", RENDER)
    async with node.agent(NEW) as new:
        async with node.agent(OLD):
            await node.kubelet.prepare(pod)
            await node.eventually(lambda: len(new.holds()) == 1)
        await node.kubelet.until(lambda: len(node.kubelet.instances(LIKEN)) == 1)
        await node.until_served(LIKEN)

        assert node.inside(pod).paths == ("/dev/dri/renderD128",)
        await node.kubelet.unprepare(pod)
        assert new.holds() == ()
        assert node.files == []


async def test_two_agents_give_one_device_to_one_claim(node: EndToEnd) -> None:
    first, _ = node.claim("first", DISPLAY)
    second, _ = node.claim("second", DISPLAY)
    async with node.agent(OLD) as old, node.agent(NEW) as new:
        outcomes: list[str] = []

        async def prepare(pod: Pod) -> None:
            try:
                await node.kubelet.prepare(pod)
            except PodFailed:
                outcomes.append("refused")
            else:
                outcomes.append("held")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prepare, first)
            tasks.start_soon(prepare, second)

        assert sorted(outcomes) == ["held", "refused"]
        await node.eventually(lambda: len(old.holds()) == len(new.holds()) == 1)
        assert len(node.files) == 1
