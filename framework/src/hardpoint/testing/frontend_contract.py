"""The tests that every frontend is held to: subclass, name the plugin, say how to look and claim.

    class TestAcme(FrontendContract):
        plugin = Acme

        def offered(self, node: FrontendNode) -> dict[str, bool]:
            return {name: usable for name, usable in ...}      # what Kubernetes may give away now

        async def claim(self, node: FrontendNode, *devices: str) -> Claimed: ...

        async def give_back(self, node: FrontendNode, claimed: Claimed) -> None: ...

It is served by a ``FakeAgent``, which makes the agent's promises; what is tested are the
frontend's. In-tree frontends pass the same class, unmodified.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from hardpoint.errors import HoldDenied, HoldFailed
from hardpoint.model import Device, Effect, Offered, Taint
from hardpoint.node import Node
from hardpoint.testing._frontend_node import (
    DOMAIN,
    NODE,
    TOKEN,
    FrontendNode,
    frontend_node,
    leave_dead,
    watching_for_blocking,
)
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.kubelet import PodFailed

OLD, NEW = "0b1d0000-0000-4000-8000-00000000000d", "0e3e0000-0000-4000-8000-00000000000e"
"""Instances of an agent, as the UIDs of two pods of a rolling update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What the kubelet got for a pod that asked for devices."""

    uid: str
    """By which the agent knows the claim."""
    devices: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()
    handle: Any = None
    """Whatever ``give_back`` wants to know of it."""


def radio(name: str, **facts: Any) -> Device:
    """Return a device to be offered."""
    return Device(name=name, kind="radio", driver="contract", attributes={"channel": 7}, **facts)


def tainted(name: str) -> Offered:
    """Return a device that no new pod may have, as the agent offers one that left its holder."""
    taint = Taint("absent", Effect.NO_EXECUTE)
    return Offered(device=radio(name), domain=DOMAIN, taints=(taint,), held=True, claimable=False)


class FrontendContract:
    """Inherit from this, give ``plugin``, and say how Kubernetes sees what it does."""

    pytestmark = pytest.mark.anyio

    plugin: ClassVar[type]
    settings: ClassVar[dict[str, Any]] = {}
    impatient: ClassVar[dict[str, Any]] = {}
    """Settings with which a kubelet that does not register it is said within a second."""
    writes_objects: ClassVar[bool] = True
    """False for a frontend that writes nothing to the API server: what it offers ends with it."""
    ends_claims: ClassVar[bool] = True
    """False for a frontend that is not told when a pod is over."""
    serves_idle: ClassVar[bool] = True
    """False for a frontend that only the one of two agents that writes registers."""

    # -- what a subclass says ---------------------------------------------------------------------

    def offered(self, node: FrontendNode) -> Mapping[str, bool]:
        """Return the devices that Kubernetes knows, and whether a new pod may have each."""
        raise AssertionError("give your FrontendContract a method `offered`")

    async def claim(self, node: FrontendNode, *devices: str) -> Claimed:
        """Let a pod of its own ask for these devices. Raises ``PodFailed``.

        Waits for the frontend's registration first. Every call is another pod and claim.
        """
        raise AssertionError("give your FrontendContract a method `claim`")

    async def claim_again(self, node: FrontendNode, claimed: Claimed) -> Claimed:
        """Let the kubelet repeat a claim's call, as after it lost its memory."""
        raise AssertionError("give your FrontendContract a method `claim_again`")

    async def give_back(self, node: FrontendNode, claimed: Claimed) -> None:
        """End the pod; again for one that has ended. Raises ``PodFailed``."""
        raise AssertionError("give your FrontendContract a method `give_back`")

    def received(self, claimed: Claimed, device: str) -> str:
        """Return what the fake agent's variable of a device says: by what it holds the device."""
        return claimed.uid

    def never_claimed(self) -> Claimed:
        """Return a claim that no pod ever had, for ``give_back``."""
        return Claimed(uid="00000000-0000-4000-8000-000000000000")

    # -- fixtures ---------------------------------------------------------------------------------

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Serve the kubelet with grpc.aio, which runs on asyncio alone."""
        return "asyncio"

    @pytest.fixture
    async def node(self, anyio_backend: str) -> AsyncIterator[FrontendNode]:
        """A node with a kubelet and an API server."""
        async with frontend_node(self.plugin, self.settings) as node:
            yield node

    # -- loading ----------------------------------------------------------------------------------

    def test_it_loads_and_serves(self, tmp_path: Path) -> None:
        record = self._record(tmp_path)

        assert record.state == "running", record.reason
        assert callable(getattr(record.instance, "serve_frontend", None))

    def test_making_it_opens_nothing(self, tmp_path: Path) -> None:
        self._record(tmp_path / "nothing-here")

        assert list(tmp_path.iterdir()) == []

    def test_a_wrong_setting_refuses_it_with_a_sentence(self, tmp_path: Path) -> None:
        record = self._record(tmp_path, no_such_key=1)

        assert record.state == "refused"
        assert "no_such_key" in record.reason

    def _record(self, root: Path, **wrong: Any) -> Any:
        from hardpoint._core.plugins.discovery import Plugin, Plugins

        node = Node(name=NODE, sys=root, dev=root, proc=root, run=root)
        record = Plugin("frontend", "contract", loaded=self.plugin)
        Plugins([record]).start(record, node, self.settings | wrong)
        return record

    # -- what it offers ---------------------------------------------------------------------------

    async def test_it_offers_exactly_what_the_agent_offers(self, node: FrontendNode) -> None:
        agent = node.agent(radio("radio-0"), radio("radio-1"), tainted("radio-2"))
        async with node.serving(agent):
            await self._until_offered(node, "radio-0", "radio-1", not_usable=["radio-2"])

    async def test_what_is_offered_follows_the_agent(self, node: FrontendNode) -> None:
        agent = node.agent(radio("radio-0"), radio("radio-1"))
        async with node.serving(agent):
            await self._until_offered(node, "radio-0", "radio-1")
            agent.show(tainted("radio-0"), radio("radio-2"))
            await self._until_offered(node, "radio-2", not_usable=["radio-0"])
            agent.show(radio("radio-0"), radio("radio-2"))
            await self._until_offered(node, "radio-0", "radio-2")
            agent.show()
            await self._until_offered(node)

    async def test_a_driver_that_has_not_answered_yet_costs_no_device(
        self, node: FrontendNode
    ) -> None:
        if not self.writes_objects:
            pytest.skip("what it offers does not outlive it")
        async with node.serving(node.agent(radio("radio-0"), radio("radio-1"))):
            await self._until_offered(node, "radio-0", "radio-1")
        agent = node.agent()
        agent.show(radio("radio-0"), complete=False)
        async with node.serving(agent):
            await self.claim(node, "radio-0")
            assert set(self.offered(node)) == {"radio-0", "radio-1"}
            agent.show(radio("radio-0"))
            await self._until_offered(node, "radio-0")

    async def test_nothing_is_written_while_nothing_changes(self, node: FrontendNode) -> None:
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent):
            await self._until_offered(node, "radio-0")
            before = len(node.server.writes())
            agent.show(radio("radio-0"))
            agent.show(radio("radio-0"), radio("radio-1"))
            await self._until_offered(node, "radio-0", "radio-1")

            assert len(node.server.writes()) - before <= 1

    # -- two agents -------------------------------------------------------------------------------

    async def test_of_two_agents_one_offers_and_the_other_takes_over(
        self, node: FrontendNode
    ) -> None:
        first = node.agent(radio("radio-0"), instance=OLD)
        second = node.agent(radio("radio-0"), radio("radio-1"), instance=NEW, writing=False)
        async with node.serving(second):
            for device in ("radio-0", "radio-1") if self.serves_idle else ():
                await self.claim(node, device)  # all the way and back: time enough to offer
            assert dict(self.offered(node)) == {}
            async with node.serving(first):
                await self._until_offered(node, "radio-0")
                second.show(radio("radio-1"))
                first.show(radio("radio-0"), radio("radio-2"))
                await self._until_offered(node, "radio-0", "radio-2")
            second.become_writer()
            await self._until_offered(node, "radio-1")

    async def test_of_two_agents_one_is_asked_for_a_claim(self, node: FrontendNode) -> None:
        agents = [
            node.agent(radio("radio-0"), instance=OLD),
            node.agent(radio("radio-0"), instance=NEW, writing=False),
        ]
        async with node.serving(agents[0]), node.serving(agents[1]):
            await self._until_offered(node, "radio-0")
            claimed = await self.claim(node, "radio-0")

            assert claimed.devices == ("radio-0",)
            assert sum(map(_asked, agents)) == 1

    async def test_the_survivor_of_two_agents_serves_claims(self, node: FrontendNode) -> None:
        second = node.agent(radio("radio-0"), instance=NEW, writing=False)
        async with node.serving(second):
            async with node.serving(node.agent(radio("radio-0"), instance=OLD)):
                await self._until_offered(node, "radio-0")
            second.become_writer()
            await self.claim(node, "radio-0")

            assert _asked(second) == 1

    # -- what fails around it ---------------------------------------------------------------------

    async def test_it_serves_a_kubelet_that_was_restarted(self, node: FrontendNode) -> None:
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent):
            await self.claim(node, "radio-0")
            await node.kubelet.restart()
            await self.claim(node, "radio-0")
            await self._until_offered(node, "radio-0")

        assert _asked(agent) == 2
        assert agent.faults == {}

    async def test_a_kubelet_that_is_not_there_is_said_until_it_is(
        self, node: FrontendNode
    ) -> None:
        await node.kubelet.stop()
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent, wait=False, **self.impatient) as ready:
            await node.until(lambda: agent.faults)
            assert not ready.is_set()
            assert any(source.startswith("frontend/") for source in agent.faults)

            await node.kubelet.start()
            await node.until(lambda: ready.is_set() and not agent.faults)
            await self._until_offered(node, "radio-0")

    async def test_an_api_server_that_is_away_is_said_until_it_is_back(
        self, node: FrontendNode
    ) -> None:
        if not self.writes_objects:
            pytest.skip("it needs no API server")
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent):
            await self._until_offered(node, "radio-0")
            node.server.down = True
            await node.until(lambda: agent.faults)
            agent.show(radio("radio-1"))
            node.server.down = False
            await self._until_offered(node, "radio-1")
            await node.until(lambda: not agent.faults)

    async def test_a_claim_that_is_known_needs_no_api_server(self, node: FrontendNode) -> None:
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent):
            claimed = await self.claim(node, "radio-0")
            node.server.down = True

            assert (await self.claim_again(node, claimed)).cdi_ids == claimed.cdi_ids
            if self.ends_claims:
                await self.give_back(node, claimed)
                assert agent.claims == {}

    # -- claims -----------------------------------------------------------------------------------

    async def test_a_claim_reaches_the_agent_once_and_its_answer_the_kubelet(
        self, node: FrontendNode
    ) -> None:
        agent = node.agent(radio("radio-0"), radio("radio-1"), radio("radio-2"))
        async with node.serving(agent):
            claimed = await self.claim(node, "radio-2", "radio-0")

        assert _asked(agent) == 1
        assert {key.uid for key in agent.prepared} <= {claimed.uid}
        assert _held(agent) == ["radio-2", "radio-0"]
        assert sorted(claimed.devices) == ["radio-0", "radio-2"]
        env = node.kubelet.runtime.inject(claimed.cdi_ids).env
        assert sorted(env) == [
            f"HARDPOINT_RADIO_0={self.received(claimed, 'radio-0')}",
            f"HARDPOINT_RADIO_2={self.received(claimed, 'radio-2')}",
        ]

    async def test_claims_do_not_wait_for_each_other(self, node: FrontendNode) -> None:
        agent = node.agent(radio("radio-0"), radio("radio-1"))
        agent.gate = anyio.Event()
        async with node.serving(agent), anyio.create_task_group() as tasks:
            tasks.start_soon(self.claim, node, "radio-0")
            tasks.start_soon(self.claim, node, "radio-1")
            await agent.until(lambda: _asked(agent) == 2)
            agent.gate.set()

    async def test_a_refused_claim_fails_in_words_and_costs_no_other(
        self, node: FrontendNode
    ) -> None:
        refused = Offered(device=radio("radio-1"), domain=DOMAIN, claimable=False)
        agent = node.agent(radio("radio-0"), refused)
        async with node.serving(agent):
            with pytest.raises(PodFailed, match="radio-1"):
                await self.claim(node, "radio-1")

            assert (await self.claim(node, "radio-0")).devices == ("radio-0",)

    async def test_each_attempt_asks_the_agent_anew(self, node: FrontendNode) -> None:
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent):
            agent.refuse = HoldFailed("the radio is still tuning in")
            with pytest.raises(PodFailed, match="the radio is still tuning in"):
                await self.claim(node, "radio-0")
            agent.refuse = None
            await self.claim(node, "radio-0")

        assert _asked(agent) == 2

    async def test_an_error_that_nobody_foresaw_ends_nothing(self, node: FrontendNode) -> None:
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent):
            agent.refuse = RuntimeError("a bug")
            with pytest.raises(PodFailed):
                await self.claim(node, "radio-0")
            agent.refuse = None

            assert (await self.claim(node, "radio-0")).devices == ("radio-0",)

    async def test_a_pod_that_ends_gives_its_claim_back(self, node: FrontendNode) -> None:
        self._need_ends()
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent):
            claimed = await self.claim(node, "radio-0")
            await self.give_back(node, claimed)
            await self.give_back(node, claimed)

        assert agent.claims == {}
        assert {key.uid for key in agent.unprepared} == {claimed.uid}

    async def test_a_claim_that_nobody_knows_is_given_back_with_success(
        self, node: FrontendNode
    ) -> None:
        self._need_ends()
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent):
            await self.claim(node, "radio-0")
            node.server.down = True
            await self.give_back(node, self.never_claimed())

        assert len(agent.claims) == 1

    async def test_a_claim_that_cannot_be_given_back_is_tried_again(
        self, node: FrontendNode
    ) -> None:
        self._need_ends()
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent):
            claimed = await self.claim(node, "radio-0")
            agent.refuse = HoldDenied("the radio does not let go")
            with pytest.raises(PodFailed, match="the radio does not let go"):
                await self.give_back(node, claimed)
            agent.refuse = None
            await self.give_back(node, claimed)

        assert agent.claims == {}

    # -- its end and its next life ----------------------------------------------------------------

    async def test_its_end_removes_its_sockets_and_leaves_what_it_published(
        self, node: FrontendNode
    ) -> None:
        before = node.sockets
        async with node.serving(node.agent(radio("radio-0"))):
            await self._until_offered(node, "radio-0")
            assert node.sockets > before

        assert node.sockets == before
        if self.writes_objects:
            assert set(self.offered(node)) == {"radio-0"}

    @pytest.mark.parametrize("instance", ["", OLD])
    async def test_it_starts_after_a_crash(self, node: FrontendNode, instance: str) -> None:
        before = node.sockets
        async with node.serving(node.agent(radio("radio-0"), instance=instance)):
            claimed = await self.claim(node, "radio-0")
            left = node.sockets - before
        for path in left:
            leave_dead(path)

        agent = node.agent(radio("radio-0"), instance=instance)
        async with node.serving(agent):
            await self._until_offered(node, "radio-0")
            assert (await self.claim_again(node, claimed)).devices == ("radio-0",)
        assert node.sockets == before

    async def test_sockets_of_others_are_left_alone(self, node: FrontendNode) -> None:
        other = node.root / "kubelet/plugins_registry/other.example-reg.sock"
        leave_dead(other)
        async with node.serving(node.agent(radio("radio-0"))):
            await self._until_offered(node, "radio-0")

        assert other in node.sockets

    # -- manners ----------------------------------------------------------------------------------

    async def test_nothing_it_does_blocks_the_event_loop(self, node: FrontendNode) -> None:
        async with node.serving(node.agent(radio("radio-0"))):
            await self._until_offered(node, "radio-0")  # imports are over
        agent = node.agent(radio("radio-0"))
        with watching_for_blocking(self.plugin) as seen:
            async with node.serving(agent):
                await self._whole_life(node, agent)

        assert seen == []

    async def test_no_secret_reaches_the_log(
        self, node: FrontendNode, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        agent = node.agent(radio("radio-0"))
        async with node.serving(agent):
            await self._whole_life(node, agent)
            node.server.require_token("another")
            agent.show(radio("radio-2"))
            if self.writes_objects:
                await node.until(lambda: agent.faults)

        said = [caplog.text, *map(str, agent.faults.items()), *map(str, agent.notes.items())]
        assert TOKEN not in " ".join(said)

    async def _whole_life(self, node: FrontendNode, agent: FakeAgent) -> None:
        await self._until_offered(node, "radio-0")
        claimed = await self.claim(node, "radio-0")
        agent.show(radio("radio-0"), radio("radio-1"))
        await self._until_offered(node, "radio-0", "radio-1")
        if self.ends_claims:
            await self.give_back(node, claimed)

    # -- small things -----------------------------------------------------------------------------

    def _need_ends(self) -> None:
        if not self.ends_claims:
            pytest.skip("it is not told when a pod is over")

    async def _until_offered(
        self, node: FrontendNode, *usable: str, not_usable: tuple[str, ...] | list[str] = ()
    ) -> None:
        """Wait until exactly these are offered; says what is, if that does not come."""
        wanted = dict.fromkeys(usable, True) | dict.fromkeys(not_usable, False)
        try:
            await node.until(lambda: dict(self.offered(node)) == wanted)
        except TimeoutError:
            assert dict(self.offered(node)) == wanted


def _asked(agent: FakeAgent) -> int:
    """Return how often the agent was asked to hold devices."""
    return len(agent.prepared) + len(agent.allocated)


def _held(agent: FakeAgent) -> list[str]:
    """Return the devices that it holds, in the order in which they were asked for."""
    claimed = [one.device for claim in agent.claims.values() for one in claim.allotments]
    return claimed + [one.device for one in agent.allocations()]


__all__ = ["Claimed", "FrontendContract", "FrontendNode", "radio", "tainted"]
