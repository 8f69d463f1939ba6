"""Whatever happens to the offer and to the server: when it is quiet, the pool is what it should be.

Hypothesis plays the hardware, the kubelet, other clients and a bad network, over real HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from profiles import Model, stateful
from slice_pool import (
    DOMAIN,
    NODE,
    ManualClock,
    OfferingAgent,
    device,
    published_devices,
    stamps,
)

from hardpoint.kube import Kube
from hardpoint.model import Offered, Part, Taint
from hardpoint.testing._api_status import ApiProblem
from hardpoint.testing.api_server import FakeApiServer
from hardpoint_dra.slices import SlicePublisher

NUMBERS = st.integers(0, 9)
VERBS = ("create", "update", "delete", "list", "watch")
ABSENT = Taint("absent")


def suppressed(act: Callable[[], object]) -> None:
    """Do what the server may refuse somebody else."""
    with suppress(ApiProblem):
        act()


class World:
    """A server and a publisher in one event loop; every method runs there."""

    def __init__(self, minor: int) -> None:
        self.minor = minor
        self.agent, self.clock = OfferingAgent(), ManualClock()
        self.server = FakeApiServer(minor=minor)
        self.devices: dict[str, Offered] = {}
        self.publisher: SlicePublisher

    async def live(self, ready: Callable[[], None], over: anyio.Event) -> None:
        agent: Any = self.agent
        async with (
            self.server,
            Kube.at(self.server.url, sleep=self.clock.sleep) as kube,
            anyio.create_task_group() as tasks,
        ):
            self.server.add_node(NODE)
            self.publisher = SlicePublisher(agent, DOMAIN, kube, sleep=self.clock.sleep)
            tasks.start_soon(self.publisher.run)
            self.agent.set()
            await self.quiet()
            ready()
            await over.wait()
            tasks.cancel_scope.cancel()

    async def call(self, act: Callable[[], object]) -> None:
        act()

    def mend(self) -> None:
        """Let everything that was broken work again."""
        for trouble in self.server._troubles:
            trouble.end()
        for verb in VERBS:
            self.server.allow(verb, "resourceslices")
        self.server.down = False

    async def quiet(self) -> int:
        """Let everything settle, compare with a fresh list, and return how often it then wrote."""
        self.mend()
        self.publisher.look_again()
        with anyio.fail_after(15):
            await self.publisher.settled()
            await self.server.until(self.as_offered)
            await self.publisher.settled()
        writes = len(self.server.writes())
        self.publisher.look_again()
        with anyio.fail_after(15):
            await self.publisher.settled()
        return len(self.server.writes()) - writes

    # -- what should be ---------------------------------------------------------------------------

    def as_offered(self) -> bool:
        return sorted(published_devices(self.server)) == self.expected()

    def expected(self) -> list[str]:
        tainted = self.minor >= 36
        return sorted(
            name
            for name, found in self.devices.items()
            if found.device.attributes["model"] != "refused"
            and (tainted or found.held or not found.taints)
        )


class Pool(Model):
    """The rules of what may happen, in any order."""

    @initialize(minor=st.sampled_from([34, 37]))
    def begin(self, minor: int) -> None:
        self.context = start_blocking_portal()
        self.portal: BlockingPortal = self.context.__enter__()
        self.world = World(minor)
        self.over = self.portal.call(anyio.Event)
        ready = self.portal.call(anyio.Event)
        self.running = self.portal.start_task_soon(self.world.live, ready.set, self.over)
        self.portal.call(ready.wait)

    def teardown(self) -> None:
        if not hasattr(self, "portal"):
            return
        try:
            self.when_it_is_quiet_the_pool_is_right()
        finally:
            self.portal.call(self.over.set)
            self.running.result(timeout=10)
            self.context.__exit__(None, None, None)
            super().teardown()

    def do(self, act: Callable[[], object]) -> None:
        self.portal.call(self.world.call, act)

    def offer(self) -> None:
        self.do(lambda: self.world.agent.set(*self.world.devices.values()))

    # -- the hardware -----------------------------------------------------------------------------

    @rule(
        number=NUMBERS,
        model=st.sampled_from(["A100", "H200", "refused"]),
        taints=st.sampled_from([(), (ABSENT,)]),
        held=st.booleans(),
        part=st.sampled_from([(), (Part("usb:1", True),), (Part("usb:1", False),)]),
    )
    def plug(
        self,
        number: int,
        model: str,
        taints: tuple[Taint, ...],
        held: bool,
        part: tuple[Part, ...],
    ) -> None:
        attributes: dict[str, Any] = {"model": model}
        if model == "refused":
            attributes["serial"] = "x" * 65
        found = device(f"gpu-{number}", attributes=attributes, parts=part)
        self.world.devices[found.name] = Offered(
            device=found, domain=DOMAIN, taints=taints, held=held
        )
        self.offer()

    @rule(count=st.sampled_from([60, 130, 200]))
    def plug_many(self, count: int) -> None:
        for number in range(10, 10 + count):
            found = device(f"gpu-{number}")
            self.world.devices[found.name] = Offered(device=found, domain=DOMAIN)
        self.offer()

    @rule(number=NUMBERS)
    def unplug(self, number: int) -> None:
        self.world.devices.pop(f"gpu-{number}", None)
        self.offer()

    @rule(odd=st.booleans())
    def unplug_many(self, odd: bool) -> None:
        for name in [n for n in self.world.devices if int(n[4:]) > 9 and int(n[4:]) % 2 == odd]:
            del self.world.devices[name]
        self.offer()

    # -- other clients ----------------------------------------------------------------------------

    @rule()
    def the_kubelet_wipes(self) -> None:
        self.do(lambda: self.world.server.wipe(NODE))

    @rule(which=NUMBERS)
    def somebody_deletes_a_slice(self, which: int) -> None:
        self.do(lambda: self._at(which, lambda name: self.world.server.remove(*name)))

    @rule(which=NUMBERS, generation=st.integers(1, 9))
    def somebody_edits_a_slice(self, which: int, generation: int) -> None:
        def forge(item: dict[str, Any]) -> None:
            item["spec"]["pool"]["generation"] += generation
            item["spec"].pop("devices", None)

        self.do(lambda: self._at(which, lambda name: self.world.server.edit(*name).change(forge)))

    @rule(which=NUMBERS)
    def somebody_labels_a_slice(self, which: int) -> None:
        labels = {"labels": {"seen": str(which)}}
        self.do(
            lambda: self._at(
                which, lambda name: self.world.server.edit(*name).update(metadata=labels)
            )
        )

    def _at(self, which: int, act: Callable[[tuple[str, str]], object]) -> None:
        items = self.world.server.items("resourceslices")
        if items:
            act(("resourceslices", items[which % len(items)]["metadata"]["name"]))

    @rule(which=NUMBERS, field=st.sampled_from(["taints", "attributes", "capacity"]))
    def somebody_drops_a_field_of_devices(self, which: int, field: str) -> None:
        """As a webhook does, or a server of an older release in a rolling upgrade."""

        def drop(item: dict[str, Any]) -> None:
            for found in item["spec"].get("devices", ()):
                found.pop(field, None)

        self.do(lambda: self._at(which, lambda name: self.world.server.edit(*name).change(drop)))

    @rule(which=NUMBERS)
    def somebody_copies_a_slice(self, which: int) -> None:
        """Under another name, in our pool: devices would be there twice."""

        def copy(name: tuple[str, str]) -> None:
            body = self.world.server.get(*name)
            body["metadata"] = {
                "name": f"{NODE}-hardpoint.dev-copy{which}",
                "ownerReferences": body["metadata"]["ownerReferences"],
            }
            self.world.server.add(body)

        self.do(lambda: self._at(which, lambda name: suppressed(lambda: copy(name))))

    @rule()
    def the_node_is_made_again(self) -> None:
        def renew() -> None:
            self.world.server.remove("nodes", NODE)
            self.world.server.add_node(NODE)

        self.do(renew)

    # -- the network ------------------------------------------------------------------------------

    @rule(
        method=st.sampled_from(["POST", "PUT", "DELETE", "GET"]),
        how=st.sampled_from(
            [{"status": 409}, {"status": 500}, {"status": 429}, {"drop": True}, {"lose": True}]
        ),
        times=st.integers(1, 3),
    )
    def requests_fail(self, method: str, how: dict[str, Any], times: int) -> None:
        self.do(lambda: self.world.server.trouble(method=method, times=times, **how))

    @rule(verb=st.sampled_from(VERBS))
    def a_right_is_taken_away(self, verb: str) -> None:
        self.do(lambda: self.world.server.deny(verb, "resourceslices"))

    @rule()
    def the_server_goes_down(self) -> None:
        self.do(lambda: setattr(self.world.server, "down", True))

    @rule()
    def everything_works_again(self) -> None:
        self.do(self.world.mend)

    @rule()
    def the_watch_ends(self) -> None:
        self.do(self.world.server.close_watches)

    @rule()
    def a_bookmark_comes(self) -> None:
        self.do(self.world.server.bookmark)

    @rule()
    def the_watch_breaks(self) -> None:
        self.do(self.world.server.drop_watches)

    @rule()
    def the_watch_is_too_old(self) -> None:
        self.do(self.world.server.compact)
        self.do(self.world.server.drop_watches)

    @rule()
    def the_lock_is_lost_and_found(self) -> None:
        self.do(lambda: self.world.agent.let_write(False))
        self.do(lambda: self.world.agent.let_write(True))

    # -- the truth --------------------------------------------------------------------------------

    @rule()
    def it_becomes_quiet(self) -> None:
        self.when_it_is_quiet_the_pool_is_right()

    def when_it_is_quiet_the_pool_is_right(self) -> None:
        further = self.portal.call(self.world.quiet)

        assert further == 0
        assert sorted(published_devices(self.world.server)) == self.world.expected()
        slices = self.world.server.items("resourceslices")
        assert len(stamps(self.world.server)) == (1 if slices else 0)
        assert {count for _, count in stamps(self.world.server)} <= {len(slices)}
        uid = self.world.server.get("nodes", NODE)["metadata"]["uid"]
        owners = {o["uid"] for s in slices for o in s["metadata"]["ownerReferences"]}
        assert owners <= {uid}

    @invariant()
    def no_device_is_published_twice_and_no_name_is_a_strangers(self) -> None:
        if not hasattr(self, "world"):
            return
        for item in self.world.server.items("resourceslices"):
            assert item["metadata"]["name"].startswith(f"{NODE}-hardpoint.dev")


Pool.TestCase.settings = stateful(examples=25, steps=25)


class TestPoolModel(Pool.TestCase):  # type: ignore[misc, valid-type]
    """Collected by pytest."""
