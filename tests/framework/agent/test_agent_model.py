"""Two agents on one node against a model whose only question is: who may use which device?

Hardware comes, goes, changes its numbers and cannot be read; claims come in every order, also all
at once; agents restart and the node reboots.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from broker_world import claim, reading
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from node_model import PARTS, ModelNode, contend, eventually
from profiles import Model, limit, stateful

from hardpoint._core.agent import HardpointAgent
from hardpoint.errors import HoldError
from hardpoint.model import PreparedDevice

pytestmark = limit(120)

UIDS = ("u1", "u2", "u3", "u4")

agents = st.sampled_from([0, 1])
uids = st.sampled_from(UIDS)
names = st.sampled_from(sorted(PARTS))
wishes = (
    st.lists(names, min_size=1, max_size=2, unique=True)
    .map(tuple)
    .filter(lambda devices: len(devices) < 2 or not contend(devices[:1], devices[1:]))
)
calls = st.tuples(agents, uids, st.none() | wishes)


class Users(Model):
    """``granted`` is who may use what: the kubelet was answered, and has not ended the claim."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        root = Path(tempfile.mkdtemp(prefix="hp-"))
        self.stack.callback(shutil.rmtree, root)
        self.node = ModelNode(root)
        self.portal: BlockingPortal = self.stack.enter_context(start_blocking_portal())
        self.opened: list[AbstractContextManager[HardpointAgent]] = []
        self.agents: list[HardpointAgent] = []
        self.granted: dict[str, tuple[str, ...]] = {}
        self.answers: dict[str, tuple[PreparedDevice, ...]] = {}
        for index in (0, 1):
            self._open(index)

    def _open(self, index: int) -> None:
        context = self.portal.wrap_async_context_manager(self.node.agent())
        self.agents[index : index + 1] = [context.__enter__()]
        self.opened[index : index + 1] = [context]

    def teardown(self) -> None:
        for context in self.opened:
            context.__exit__(None, None, None)
        self.stack.close()
        super().teardown()

    # -- the kubelet ------------------------------------------------------------------------------

    @rule(agent=agents, uid=uids, devices=wishes)
    def prepare(self, agent: int, uid: str, devices: tuple[str, ...]) -> None:
        if uid in self.granted:
            self._again(agent, uid)
            return
        rivals = [u for u, has in self.granted.items() if contend(has, devices)]
        there = all(self.node.usable(device) for device in devices)
        answer = self.portal.call(self._prepare, agent, uid, devices)
        if isinstance(answer, HoldError):
            assert rivals or not there or not self.node.hardware.readable, answer
            return
        assert not rivals, f"{devices} for {uid}, and {rivals} have them"
        assert there, f"{devices} are not there"
        self._grant(uid, devices, answer)

    def _again(self, agent: int, uid: str) -> None:
        """A repeated call gets the same answer, or none while the device cannot be used."""
        devices = self.granted[uid]
        answer = self.portal.call(self._prepare, agent, uid, devices)
        if isinstance(answer, HoldError):
            there = all(self.node.usable(device) for device in devices)
            assert not there or not self.node.hardware.readable, answer
        else:
            assert answer == self.answers[uid]

    def _grant(
        self, uid: str, devices: tuple[str, ...], answer: tuple[PreparedDevice, ...]
    ) -> None:
        self.granted[uid], self.answers[uid] = devices, answer
        numbers = {device: self.node.hardware.minors[device] for device in devices}
        assert self.node.delivered()[uid] == numbers

    async def _prepare(
        self, agent: int, uid: str, devices: tuple[str, ...]
    ) -> tuple[PreparedDevice, ...] | HoldError:
        wanted = claim(uid, *devices)
        try:
            return await self.agents[agent].prepare(wanted.key, reading(wanted))
        except HoldError as error:
            return error

    @rule(agent=agents, uid=uids)
    def unprepare(self, agent: int, uid: str) -> None:
        self.portal.call(self.agents[agent].unprepare, claim(uid).key)
        self.granted.pop(uid, None)
        assert uid not in self.node.delivered()

    @rule(wanted=st.lists(calls, min_size=2, max_size=5, unique_by=lambda call: call[1]))
    def all_at_once(self, wanted: list[tuple[int, str, tuple[str, ...] | None]]) -> None:
        """Calls for different claims, to both agents; who wins is open, that both do is not."""
        before = dict(self.granted)
        answers = self.portal.call(self._race, wanted, before)
        for _, uid, devices in wanted:
            if devices is None:
                self.granted.pop(uid, None)
        for _, uid, devices in wanted:
            answer = answers.get(uid)
            if devices is None or answer is None or isinstance(answer, HoldError):
                continue
            mine = before.get(uid, devices)
            rivals = [u for u, has in self.granted.items() if u != uid and contend(has, mine)]
            assert not rivals, f"{mine} for {uid}, and {rivals} have them"
            self._grant(uid, mine, answer)

    async def _race(self, wanted: list[Any], before: dict[str, tuple[str, ...]]) -> dict[str, Any]:
        answers: dict[str, Any] = {}

        async def one(agent: int, uid: str, devices: tuple[str, ...] | None) -> None:
            if devices is None:
                await self.agents[agent].unprepare(claim(uid).key)
            else:
                answers[uid] = await self._prepare(agent, uid, before.get(uid, devices))

        async with anyio.create_task_group() as tasks:
            for agent, uid, devices in wanted:
                tasks.start_soon(one, agent, uid, devices)
        return answers

    @rule(uid=uids, devices=wishes)
    def both_agents_are_asked_for_one_claim(self, uid: str, devices: tuple[str, ...]) -> None:
        """The kubelet gave up on the old agent and asks the new one: both say the same."""
        if uid in self.granted:
            devices = self.granted[uid]
        self.portal.call(self._both, uid, devices)
        self.prepare(0, uid, devices)

    async def _both(self, uid: str, devices: tuple[str, ...]) -> None:
        async with anyio.create_task_group() as tasks:
            for agent in (0, 1):
                tasks.start_soon(self._prepare, agent, uid, devices)

    # -- the node ---------------------------------------------------------------------------------

    @rule(device=names)
    def unplug_or_plug(self, device: str) -> None:
        self.node.hardware.gone ^= {device}
        self._scan()

    @rule(device=names)
    def renumber(self, device: str) -> None:
        self.node.hardware.minors[device] += len(PARTS)
        self._scan()

    @rule(one=names, other=names)
    def swap_numbers(self, one: str, other: str) -> None:
        minors = self.node.hardware.minors
        minors[one], minors[other] = minors[other], minors[one]
        self._scan()

    @rule()
    def the_bus_fails_or_answers(self) -> None:
        self.node.hardware.deaf = not self.node.hardware.deaf
        self._scan()

    @rule(device=names)
    def an_entry_fails_or_can_be_read(self, device: str) -> None:
        self.node.hardware.unread ^= {device}
        self._scan()

    def _scan(self) -> None:
        self.portal.call(self.node.scan, self.agents)

    @rule(agent=agents)
    def restart(self, agent: int) -> None:
        self.opened[agent].__exit__(None, None, None)
        self._open(agent)
        self._scan()

    @rule()
    def reboot(self) -> None:
        for context in self.opened:
            context.__exit__(None, None, None)
        self.node.hardware.reboot()
        shutil.rmtree(self.node.root / "cdi", ignore_errors=True)
        for agent in (0, 1):
            self._open(agent)
        self._scan()

    # -- what is always true ----------------------------------------------------------------------

    @invariant()
    def files_deliver_what_is_granted_and_nothing_else(self) -> None:
        """Where all can be read, they deliver all of it, soon; a number is never another's."""
        hardware = self.node.hardware
        if hardware.readable:
            wanted = {
                uid: {d: hardware.minors[d] for d in devices if d not in hardware.gone}
                for uid, devices in self.granted.items()
            }
            self.portal.call(eventually, lambda: self._delivered() == wanted, wanted)
        for uid, numbers in self._delivered().items():
            assert numbers.keys() <= set(self.granted[uid]), f"{uid} is delivered {numbers}"

    def _delivered(self) -> dict[str, dict[str, int]]:
        return self.node.delivered()

    @invariant()
    def no_driver_saw_two_claims_on_one_device(self) -> None:
        assert not self.node.hardware.wrong, self.node.hardware.wrong

    @invariant()
    def the_ledger_says_who_is_granted(self) -> None:
        records = self.portal.call(self.agents[0]._ledger.read)
        held: dict[str, set[str]] = {}
        for record in records:
            held.setdefault(record.claim.uid, set()).add(record.device.name)
        assert held == {uid: set(devices) for uid, devices in self.granted.items()}


Users.TestCase.settings = stateful(examples=8, steps=20)


class TestUsers(Users.TestCase):  # type: ignore[misc, valid-type]
    """Collected by pytest."""
