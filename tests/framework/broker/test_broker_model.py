"""The broker against a model of it: two agents, one ledger, and whatever happens to a node."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from broker_world import World, claim, reading
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from profiles import Model, stateful

from hardpoint._core.claims.broker import Broker
from hardpoint._core.claims.steps import TRIES
from hardpoint.errors import HoldError, HookFault
from hardpoint.model import HoldState, PreparedDevice

CARDS = {"card-a": 1, "card-b": 2, "card-c": 3}
UIDS = ("u1", "u2", "u3", "u4")

agents = st.sampled_from([0, 1])
uids = st.sampled_from(UIDS)
cards = st.sampled_from(sorted(CARDS))
wishes = st.lists(cards, min_size=1, max_size=2, unique=True).map(tuple)


class Node(Model):
    """``claims`` is who has what; ``ending`` counts the failures of claims being undone."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.root = Path(tempfile.mkdtemp(prefix="hp-"))
        self.stack.callback(shutil.rmtree, self.root)
        self.world = World(self.root)
        for name, minor in CARDS.items():
            self.world.card(name, minor)
        self.portal: BlockingPortal = self.stack.enter_context(start_blocking_portal())
        self.opened: list[AbstractContextManager[Broker]] = []
        self.brokers: list[Broker] = []
        for index in (0, 1):
            self._open(index)
        self.claims: dict[str, tuple[str, ...]] = {}
        self.answers: dict[str, tuple[PreparedDevice, ...]] = {}
        self.ending: dict[str, int] = {}
        self.quarantined: dict[str, str] = {}
        self.gone: set[str] = set()
        self.vetoed: set[str] = set()

    def _open(self, index: int) -> None:
        context = self.portal.wrap_async_context_manager(self.world.broker())
        broker = context.__enter__()
        self.opened[index : index + 1] = [context]
        self.brokers[index : index + 1] = [broker]
        self.portal.call(broker.restore)

    def teardown(self) -> None:
        for context in self.opened:
            context.__exit__(None, None, None)
        self.stack.close()
        super().teardown()

    def _usable(self, devices: tuple[str, ...]) -> bool:
        return not {*devices} & (self.gone | self.vetoed)

    def _try(self, function: Any, *arguments: Any) -> Any:
        try:
            return self.portal.call(function, *arguments)
        except HoldError as error:
            return error

    # -- the kubelet ------------------------------------------------------------------------------

    @rule(agent=agents, uid=uids, devices=wishes)
    def prepare(self, agent: int, uid: str, devices: tuple[str, ...]) -> None:
        wanted = claim(uid, *devices)
        answer = self._try(self.brokers[agent].prepare, wanted.key, reading(wanted))
        if uid in self.claims and uid not in self.ending:
            if self._usable(self.claims[uid]):
                assert answer == self.answers[uid], answer
            else:
                assert isinstance(answer, HoldError), answer
            return
        if uid in self.ending and not self._undo(uid):
            assert isinstance(answer, HoldError), answer
            return
        taken = {device for held in self.claims.values() for device in held}
        free = not {*devices} & (taken | self.quarantined.keys())
        if free and self._usable(devices):
            assert isinstance(answer, tuple), answer
            self.claims[uid], self.answers[uid] = devices, answer
        else:
            assert isinstance(answer, HoldError), answer

    @rule(agent=agents, uid=uids)
    def unprepare(self, agent: int, uid: str) -> None:
        answer = self._try(self.brokers[agent].unprepare, claim(uid).key)
        if uid not in self.claims or self._undo(uid):
            assert answer is None, answer  # also when quarantined: the pod may end
        else:
            assert isinstance(answer, HoldError), answer

    def _undo(self, uid: str) -> bool:
        """Undo a claim in the model; say whether nothing stands in the way of its next prepare."""
        if not self.stuck:
            del self.claims[uid]
            self.ending.pop(uid, None)
            return True
        self.ending[uid] = self.ending.get(uid, 0) + 1
        if self.ending[uid] >= TRIES:
            self.quarantined |= dict.fromkeys(self.claims.pop(uid), uid)
            del self.ending[uid]
            return True
        return False

    # -- the node ---------------------------------------------------------------------------------

    @property
    def stuck(self) -> bool:
        return "unprepare" in self.world.cards.faults

    @rule()
    def break_or_mend_the_driver(self) -> None:
        if self.stuck:
            self.world.cards.faults.clear()
        else:
            self.world.cards.faults["unprepare"] = HookFault("cards", "unprepare_device", "stuck")

    @rule(card=cards)
    def unplug_or_plug(self, card: str) -> None:
        if card in self.vetoed:
            return
        if card in self.gone:
            self.gone.discard(card)
            self.world.card(card, CARDS[card])
        else:
            self.gone.add(card)
            self.world.unplug(card)
        self._refresh()

    @rule(card=cards)
    def veto_or_allow(self, card: str) -> None:
        if card in self.gone:
            return
        if card in self.vetoed:
            self.vetoed.discard(card)
            self.world.withheld = [w for w in self.world.withheld if w.subject != card]
            self.world.card(card, CARDS[card])
        else:
            self.vetoed.add(card)
            self.world.veto(card)
        self._refresh()

    @rule(card=cards)
    def renumber(self, card: str) -> None:
        if card in self.gone | self.vetoed:
            return
        minor = (self.world.devices[card].device.nodes[0].minor or 0) + 10
        self.world.card(card, minor)
        self._refresh()

    def _refresh(self) -> None:
        self.portal.call(self.brokers[0].refresh, self.world.offer())

    @rule(uid=uids)
    def lose_a_file(self, uid: str) -> None:
        (self.world.cdi / f"hardpoint.dev-{uid}.json").unlink(missing_ok=True)
        self._refresh()

    @rule(agent=agents)
    def restart(self, agent: int) -> None:
        self.opened[agent].__exit__(None, None, None)
        self._open(agent)
        for uid in list(self.ending):
            self._undo(uid)

    @rule()
    def reboot(self) -> None:
        for context in self.opened:
            context.__exit__(None, None, None)
        self.world.reboot()
        for agent in (0, 1):
            self._open(agent)
            for uid in list(self.ending):
                self._undo(uid)

    @precondition(lambda self: self.quarantined)
    @rule()
    def wait_for_quarantines(self) -> None:
        self.world.now += 5000
        self.portal.call(self.brokers[0].attend)
        if not self.stuck:
            self.quarantined.clear()

    # -- what is always true ----------------------------------------------------------------------

    @invariant()
    def the_ledger_says_what_the_model_says(self) -> None:
        records = self.portal.call(self.brokers[1]._ledger.read)
        active = [r for r in records if not r.retired]
        found = {
            uid: tuple(r.device.name for r in active if r.claim.uid == uid)
            for uid in {r.claim.uid for r in active}
        }
        assert found == self.claims
        assert {r.device.name for r in records if r.retired} == self.quarantined.keys()
        states = {r.claim.uid for r in active if r.state is HoldState.RELEASING}
        assert states == self.ending.keys()

    @invariant()
    def no_part_has_two_owners(self) -> None:
        rows = self.brokers[0]._ledger._reader.query("SELECT part FROM owners WHERE exclusive")
        parts = [row["part"] for row in rows]
        assert len(parts) == len(set(parts))

    @invariant()
    def files_are_those_of_held_claims(self) -> None:
        held = {f"hardpoint.dev-{uid}.json" for uid in self.claims.keys() - self.ending.keys()}
        ending = {f"hardpoint.dev-{uid}.json" for uid in self.ending}
        assert held <= {*self.world.files()} <= held | ending
        for uid, devices in self.claims.items():
            if uid in self.ending:
                continue
            text = self.world.file(uid)
            for device in devices:
                offered = self.world.devices.get(device)
                if device in self.vetoed:
                    assert "device-withheld" in text
                elif device in self.gone:
                    assert "device-absent" in text
                else:
                    assert offered is not None
                    assert f'"minor": {offered.device.nodes[0].minor}' in text

    @invariant()
    def the_hardware_is_set_up_for_whoever_holds_it(self) -> None:
        holders = {device: uid for uid, devices in self.claims.items() for device in devices}
        for path in (self.root / "hw").iterdir():
            owner = holders.get(path.name) or self.quarantined.get(path.name)
            assert path.read_text() == owner


Node.TestCase.settings = stateful(examples=25, steps=25)


class TestNode(Node.TestCase):  # type: ignore[misc, valid-type]
    """Collected by pytest."""
