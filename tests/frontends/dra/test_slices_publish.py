"""Publishing against a fake API server: what is written, when, and what is left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import pytest
from slice_pool import (
    DOMAIN,
    NODE,
    ManualClock,
    OfferingAgent,
    many,
    offer,
    offered,
    published_devices,
    rivals,
    stamps,
)

from hardpoint.kube import Kube
from hardpoint.model import Taint
from hardpoint.testing.api_server import FakeApiServer
from hardpoint_dra.slices import RECHECK_SECONDS, SlicePublisher

Json = dict[str, Any]
SLICE = "node-a-hardpoint.dev"
GONE = (Taint("absent"),)


class Stage:
    """One server, one agent, and a publisher that runs; delays only as long as they must be."""

    def __init__(self, server: FakeApiServer, agent: OfferingAgent) -> None:
        self.server, self.agent, self.clock = server, agent, ManualClock()
        self.publisher: SlicePublisher
        self._scope, self._stopped = anyio.CancelScope(), anyio.Event()

    async def run(self, kube: Kube, **options: Any) -> None:
        agent: Any = self.agent
        self.publisher = SlicePublisher(agent, DOMAIN, kube, sleep=self.clock.sleep, **options)
        with anyio.CancelScope() as self._scope:
            await self.publisher.run()
        self._stopped.set()

    async def offer(self, *devices: Any) -> list[Json]:
        """Offer devices, wait until they are published, and return the slices."""
        self.agent.set(*devices)
        return await self.settled()

    async def settled(self) -> list[Json]:
        with anyio.fail_after(10):
            await self.publisher.settled()
        return self.slices

    async def stop(self) -> None:
        self._scope.cancel()
        await self._stopped.wait()

    @property
    def slices(self) -> list[Json]:
        return self.server.items("resourceslices")

    @property
    def writes(self) -> list[str]:
        return [f"{seen.method} {seen.path.rpartition('/')[2]}" for seen in self.server.writes()]


@pytest.fixture
def options() -> dict[str, Any]:
    return {}


@pytest.fixture
async def server(options: dict[str, Any]) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(**options) as server:
        server.add_node(NODE)
        yield server


@pytest.fixture
async def stage(server: FakeApiServer) -> AsyncIterator[Stage]:
    stage = Stage(server, OfferingAgent())
    async with (
        Kube.at(server.url, sleep=stage.clock.sleep) as kube,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(stage.run, kube)
        await server.until(lambda: any("watch" in seen.query for seen in server.requests))
        yield stage
        tasks.cancel_scope.cancel()


async def again(stage: Stage, kube: Kube, tasks: anyio.abc.TaskGroup) -> Stage:
    """Start another process on the same server, with the same offer."""
    another = Stage(stage.server, OfferingAgent(stage.agent.offer))
    tasks.start_soon(another.run, kube)
    await stage.server.until(lambda: hasattr(another, "publisher"))
    return another


# -- writing --------------------------------------------------------------------------------------


async def test_devices_become_one_slice_that_belongs_to_the_node(
    stage: Stage, server: FakeApiServer
) -> None:
    (item,) = await stage.offer("gpu-0", "gpu-1")

    assert item["metadata"]["name"] == SLICE
    assert (
        item["metadata"]["ownerReferences"][0]["uid"]
        == server.get("nodes", NODE)["metadata"]["uid"]
    )
    assert item["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert published_devices(server) == ["gpu-0", "gpu-1"]
    assert stage.publisher.published.devices == ("gpu-0", "gpu-1")


async def test_one_change_is_one_write(stage: Stage) -> None:
    await stage.offer("gpu-0", "gpu-1")
    (item,) = await stage.offer("gpu-0")

    assert stage.writes == ["POST resourceslices", f"PUT {SLICE}"]
    assert item["spec"]["pool"]["generation"] == 1


async def test_nothing_is_written_when_nothing_changed(stage: Stage) -> None:
    await stage.offer("gpu-0", *rivals(), offered("bad", taints=GONE))
    count = len(stage.writes)
    await stage.offer("gpu-0", *rivals(), offered("bad", taints=GONE))
    stage.publisher.look_again()
    await stage.settled()

    assert len(stage.writes) == count


async def test_a_claim_that_holds_a_device_costs_no_look_at_the_pool(stage: Stage) -> None:
    await stage.offer("gpu-0", "gpu-1")
    looks: list[object] = []
    once = stage.publisher._pool.once

    async def counted(now: Any) -> bool:
        looks.append(now)
        return await once(now)

    stage.publisher._pool.once = counted  # type: ignore[method-assign, assignment]
    await stage.offer(offered("gpu-0", held=True), "gpu-1")
    assert looks == []

    await stage.offer(offered("gpu-0", held=True), offered("gpu-1", taints=GONE))
    assert len(looks) > 0


@pytest.mark.field_case("E06")
async def test_one_unplug_of_300_devices_rewrites_one_slice(stage: Stage) -> None:
    devices = many(300)
    await stage.offer(*devices)
    before = len(stage.writes)
    await stage.offer(*(found for found in devices if found.name != "gpu-150"))

    assert stage.writes[before:] == [f"PUT {SLICE}-00001"]
    assert stamps(stage.server) == {(1, 3)}


@pytest.mark.field_case("K01")
async def test_a_change_of_several_slices_is_a_new_generation(stage: Stage) -> None:
    await stage.offer(*many(128))
    await stage.offer(*many(300))

    assert stamps(stage.server) == {(2, 3)}


async def test_no_device_is_no_slice(stage: Stage) -> None:
    await stage.offer("gpu-0")
    assert await stage.offer() == []


async def test_a_pool_that_was_empty_goes_on_counting_generations(stage: Stage) -> None:
    await stage.offer("gpu-0")
    await stage.offer()
    await stage.offer("gpu-0")

    assert stamps(stage.server) == {(2, 1)}


async def test_an_offer_that_is_not_complete_writes_nothing(
    stage: Stage, server: FakeApiServer
) -> None:
    stage.agent.offer = offer("gpu-0", complete=False)
    stage.agent.wake()
    await anyio.wait_all_tasks_blocked()
    await server.until(lambda: True)

    assert stage.slices == []


async def test_rivals_share_counters_in_a_slice_of_their_own(stage: Stage) -> None:
    devices, counters = await stage.offer(*rivals())

    assert counters["metadata"]["name"] == f"{SLICE}-counters"
    assert {d["name"] for d in devices["spec"]["devices"] if d["consumesCounters"]} == {
        "half",
        "whole",
    }
    assert stamps(stage.server) == {(1, 2)}


async def test_a_restart_writes_nothing_and_moves_no_device(
    stage: Stage, server: FakeApiServer
) -> None:
    devices = many(200)
    await stage.offer(*devices)
    await stage.offer(*devices[1:], offered("late"))
    before = stage.slices
    await stage.stop()
    count = len(stage.writes)
    async with Kube.at(server.url) as kube, anyio.create_task_group() as tasks:
        another = await again(stage, kube, tasks)
        await another.settled()
        tasks.cancel_scope.cancel()

    assert stage.slices == before
    assert len(stage.writes) == count
    assert another.publisher.published.generation == 1


@pytest.mark.field_case("B05")
async def test_only_the_first_slice_of_an_empty_pool_waits_for_the_kubelet(
    server: FakeApiServer,
) -> None:
    turn = anyio.Event()
    asked = anyio.Event()

    async def begin() -> None:
        asked.set()
        await turn.wait()

    first = Stage(server, OfferingAgent(offer("gpu-0", "gpu-1")))
    restarted = Stage(server, OfferingAgent(offer("gpu-0", generation=2)))
    async with Kube.at(server.url) as kube, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(first.run, kube, begin=begin))
        await asked.wait()
        waited = not first.writes
        turn.set()
        await server.until(lambda: published_devices(server) == ["gpu-0", "gpu-1"])
        await first.stop()
        turn = anyio.Event()
        tasks.start_soon(partial(restarted.run, kube, begin=begin))  # a device has gone meanwhile
        await server.until(lambda: published_devices(server) == ["gpu-0"])
        tasks.cancel_scope.cancel()

    assert waited


async def test_slices_stay_when_publishing_stops(stage: Stage) -> None:
    # A rolling update must not be seen (kubernetes pull request 129832).
    await stage.offer("gpu-0")
    await stage.stop()

    assert len(stage.slices) == 1


async def test_taints_keep_the_time_at_which_they_were_added(stage: Stage) -> None:
    await stage.offer(offered("bad", taints=GONE))
    old = "2026-01-01T00:00:00Z"

    def backdate(item: Json) -> None:
        item["spec"]["devices"][0]["taints"][0]["timeAdded"] = old

    stage.server.edit("resourceslices", SLICE).change(backdate)
    (item,) = await stage.offer(offered("bad", taints=GONE), "gpu-0")

    assert item["spec"]["devices"][0]["taints"][0]["timeAdded"] == old


async def test_quantities_that_the_server_spells_otherwise_are_no_difference(stage: Stage) -> None:
    await stage.offer(offered("gpu-0", capacity={"memory": "1024Mi", "cores": "1000"}))
    stage.publisher.look_again()
    await stage.settled()

    assert len(stage.writes) == 1


# -- what others do -------------------------------------------------------------------------------


@pytest.mark.field_case("B03")
async def test_a_server_that_was_restored_from_a_backup_is_told_what_it_lacks(
    stage: Stage, server: FakeApiServer
) -> None:
    backup = server.backup()
    await stage.offer(*many(3))
    for count in range(50):
        server.edit("nodes", NODE).update(metadata={"annotations": {"n": str(count)}})
    await stage.offer(*many(4))

    server.restore(backup)

    await server.until(lambda: len(published_devices(server)) == 4)


async def test_a_kubelet_that_wipes_its_nodes_slices_sees_them_come_back(
    stage: Stage, server: FakeApiServer
) -> None:
    # dra-driver-nvidia-gpu issue 330: stopping and starting the kubelet lost them for good.
    await stage.offer(*many(200))
    assert server.wipe(NODE) == 2
    await server.until(lambda: len(published_devices(server)) == 200)
    await stage.settled()

    assert stamps(server) == {(2, 2)}


async def test_one_deleted_slice_brings_back_the_whole_pool_under_a_new_generation(
    stage: Stage, server: FakeApiServer
) -> None:
    await stage.offer(*many(200))
    server.remove("resourceslices", f"{SLICE}-00001")
    await server.until(lambda: stamps(server) == {(2, 2)})
    await stage.settled()

    assert len(published_devices(server)) == 200


async def test_an_edited_slice_is_made_right(stage: Stage, server: FakeApiServer) -> None:
    await stage.offer("gpu-0")
    server.edit("resourceslices", SLICE).change(
        lambda item: item["spec"]["devices"].append({"name": "forged"})
    )
    await server.until(lambda: published_devices(server) == ["gpu-0"])


async def test_labels_and_owners_of_others_are_left_alone(
    stage: Stage, server: FakeApiServer
) -> None:
    await stage.offer("gpu-0")
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}
    server.edit("resourceslices", SLICE).change(
        lambda item: item["metadata"].update(
            labels={"audited": "yes"},
            ownerReferences=[other, *item["metadata"]["ownerReferences"]],
        )
    )
    (item,) = await stage.offer("gpu-0", "gpu-1")

    assert item["metadata"]["labels"] == {"audited": "yes"}
    assert [owner["kind"] for owner in item["metadata"]["ownerReferences"]] == ["ConfigMap", "Node"]


@pytest.mark.parametrize(
    "spec",
    [
        {"pool": {"name": "hardpoint.dev", "generation": 7, "resourceSliceCount": 1}},
        {"pool": {"name": NODE, "generation": 0, "resourceSliceCount": 1}},
    ],
)
async def test_slices_of_ours_that_we_would_not_write_are_removed(
    stage: Stage, server: FakeApiServer, spec: Json
) -> None:
    # aojea/pydra named its pool after the driver on every node, so that readers mixed nodes.
    await stage.offer("gpu-0")
    body = server.get("resourceslices", SLICE)
    body["metadata"] = {"name": "left-behind"}
    body["spec"].update(spec)
    server.add(body)
    await server.until(lambda: len(stage.slices) == 1)
    await stage.settled()

    assert published_devices(server) == ["gpu-0"]


async def test_slices_of_other_drivers_and_nodes_are_none_of_our_business(
    stage: Stage, server: FakeApiServer
) -> None:
    for name, change in (("driver", {"driver": "other.dev"}), ("node", {"nodeName": "node-b"})):
        body: Json = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {
                "driver": DOMAIN.dra_driver,
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
                **change,
            },
        }
        server.add(body)
    await stage.offer("gpu-0")
    await stage.offer()

    assert {item["metadata"]["name"] for item in stage.slices} == {"driver", "node"}


@pytest.mark.field_case("B06")
async def test_a_node_made_again_gets_slices_of_its_own(
    stage: Stage, server: FakeApiServer
) -> None:
    # kubernetes issue 123692: slices outlived their node; the new one has another UID.
    await stage.offer("gpu-0")
    old = stage.slices[0]["metadata"]["uid"]
    server.remove("nodes", NODE)
    uid = server.add_node(NODE)["metadata"]["uid"]
    stage.publisher.look_again()
    await stage.settled()
    server.remove("resourceslices", SLICE)  # the garbage collector, a little later
    await server.until(lambda: bool(stage.slices))
    (item,) = await stage.settled()

    assert item["metadata"]["ownerReferences"][0]["uid"] == uid
    assert item["metadata"]["uid"] != old


@pytest.mark.field_case("B06")
async def test_a_slice_of_the_old_node_is_replaced_not_updated(
    stage: Stage, server: FakeApiServer
) -> None:
    await stage.offer("gpu-0")
    await stage.stop()
    server.remove("nodes", NODE)
    uid = server.add_node(NODE)["metadata"]["uid"]
    async with Kube.at(server.url) as kube, anyio.create_task_group() as tasks:
        another = await again(stage, kube, tasks)
        (item,) = await another.settled()
        tasks.cancel_scope.cancel()

    assert item["metadata"]["ownerReferences"][0]["uid"] == uid
    assert stage.writes[-2:] == [f"DELETE {SLICE}", "POST resourceslices"]


async def test_without_its_node_nothing_is_published_and_it_is_said(
    stage: Stage, server: FakeApiServer
) -> None:
    server.remove("nodes", NODE)
    stage.agent.set("gpu-0")
    await stage.agent.until(lambda faults: "there is no node" in str(faults))
    server.add_node(NODE)
    await stage.settled()

    assert published_devices(server) == ["gpu-0"]
    assert stage.agent.faults == {}


@pytest.mark.field_case("B04")
async def test_an_update_that_was_deleted_before_its_reply_came_is_written_again(
    stage: Stage, server: FakeApiServer
) -> None:
    # kubernetes pull request 140011: the reply was trusted over the later deletion, and about 20
    # of 6000 nodes stayed without slices.
    await stage.offer("gpu-0")

    async def delete_and_let_it_be_heard() -> None:
        server.remove("resourceslices", SLICE)
        await anyio.wait_all_tasks_blocked()

    server.trouble(method="PUT", after=delete_and_let_it_be_heard, times=1)
    await stage.offer("gpu-0", "gpu-1")

    assert stage.writes[-2:] == [f"PUT {SLICE}", "POST resourceslices"]
    assert published_devices(server) == ["gpu-0", "gpu-1"]


@pytest.mark.field_case("B04")
async def test_a_minute_after_a_write_the_servers_list_is_compared(
    stage: Stage, server: FakeApiServer
) -> None:
    await stage.offer("gpu-0")
    lists = len(_lists(server))
    await server.until(lambda: RECHECK_SECONDS in stage.clock.asked)
    stage.clock.advance()
    await server.until(lambda: len(_lists(server)) > lists)
    await stage.settled()

    assert len(stage.writes) == 1


def _lists(server: FakeApiServer) -> list[str]:
    return [
        seen.path
        for seen in server.requests
        if seen.path.endswith("/resourceslices")
        and seen.method == "GET"
        and "watch" not in seen.query
        and seen.status == 200
    ]


@pytest.mark.field_case("B04")
async def test_a_watch_that_went_deaf_is_made_good_by_the_list(
    stage: Stage, server: FakeApiServer
) -> None:
    await stage.offer("gpu-0")
    server.trouble(path="/resourceslices", hang=True, times=0)
    server._store._objects  # noqa: B018 - the store itself is robbed below
    kind = next(k for k in server._store._objects if k.plural == "resourceslices")
    server._store._objects[kind].clear()
    await server.until(lambda: RECHECK_SECONDS in stage.clock.asked)
    stage.clock.advance()
    await server.until(lambda: bool(stage.slices))

    assert published_devices(server) == ["gpu-0"]


# -- two processes --------------------------------------------------------------------------------


async def test_only_the_process_that_holds_the_lock_writes(
    stage: Stage, server: FakeApiServer
) -> None:
    await stage.offer("gpu-0")
    stage.agent.let_write(False)
    stage.agent.set("gpu-0", "gpu-1")
    server.remove("resourceslices", SLICE)
    await anyio.wait_all_tasks_blocked()
    count = len(stage.writes)
    stage.agent.let_write(True)
    await stage.settled()

    assert count == 1
    assert published_devices(server) == ["gpu-0", "gpu-1"]


async def test_a_lock_lost_between_two_writes_ends_the_writing(
    stage: Stage, server: FakeApiServer
) -> None:
    server.trouble(method="POST", before=lambda: stage.agent.let_write(False), times=1)
    stage.agent.set(*many(300))
    await server.until(lambda: len(stage.slices) == 1)
    await anyio.wait_all_tasks_blocked()
    first = len(stage.slices)
    stage.agent.let_write(True)
    await stage.settled()

    assert first == 1
    assert len(published_devices(server)) == 300


# -- an API server that makes trouble -------------------------------------------------------------


async def test_a_server_that_is_away_is_waited_for(stage: Stage, server: FakeApiServer) -> None:
    await stage.offer("gpu-0")
    server.down = True
    stage.agent.set("gpu-0", "gpu-1")
    await stage.agent.until(lambda faults: len(faults) == 2)
    server.down = False
    await stage.settled()
    await stage.agent.until(lambda faults: not faults)

    assert published_devices(server) == ["gpu-0", "gpu-1"]


@pytest.mark.field_case("I05")
async def test_a_server_that_is_away_at_the_start_is_waited_for() -> None:
    # dranet issue 322: the API server may be away when we start.
    async with FakeApiServer() as server:
        server.add_node(NODE)
        server.down = True
        stage = Stage(server, OfferingAgent(offer("gpu-0")))
        async with (
            Kube.at(server.url, sleep=stage.clock.sleep) as kube,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(stage.run, kube)
            await stage.agent.until(lambda faults: faults)
            server.down = False
            await stage.settled()
            tasks.cancel_scope.cancel()

        assert published_devices(server) == ["gpu-0"]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_write_that_failed_is_made_again(
    stage: Stage, server: FakeApiServer, status: int
) -> None:
    server.trouble(method="POST", status=status, times=3)
    await stage.offer("gpu-0")

    assert published_devices(server) == ["gpu-0"]
    assert stage.agent.faults == {}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_a_write_whose_answer_was_lost_is_no_second_write(
    stage: Stage, server: FakeApiServer, method: str
) -> None:
    if method != "POST":
        await stage.offer("gpu-0", "gpu-1")
    server.trouble(method=method, lose=True, times=1)
    await stage.offer(*([] if method == "DELETE" else ["gpu-0"]))

    assert published_devices(server) == ([] if method == "DELETE" else ["gpu-0"])


async def test_a_conflict_is_no_fault_but_a_reason_to_look_again(
    stage: Stage, server: FakeApiServer
) -> None:
    await stage.offer("gpu-0")

    def edit() -> None:
        server.edit("resourceslices", SLICE).update(metadata={"labels": {"x": "y"}})

    server.trouble(method="PUT", before=edit, times=1)
    (item,) = await stage.offer("gpu-0", "gpu-1")

    assert published_devices(server) == ["gpu-0", "gpu-1"]
    assert item["metadata"]["labels"] == {"x": "y"}
    assert stage.agent.faults == {}


async def test_what_we_may_not_do_is_said(stage: Stage, server: FakeApiServer) -> None:
    server.deny("create", "resourceslices")
    stage.agent.set("gpu-0")
    await stage.agent.until(lambda faults: "403" in str(faults))
    server.allow("create", "resourceslices")
    await stage.settled()

    assert stage.agent.faults == {}


async def test_a_role_that_may_not_ask_for_versions_publishes_in_v1(
    server: FakeApiServer,
) -> None:
    server.trouble(path="/version", status=403)
    stage = Stage(server, OfferingAgent(offer("gpu-0")))
    async with Kube.at(server.url) as kube, anyio.create_task_group() as tasks:
        tasks.start_soon(stage.run, kube)
        await server.until(lambda: bool(stage.slices))
        tasks.cancel_scope.cancel()

    assert published_devices(server) == ["gpu-0"]


async def test_a_rival_that_always_undoes_us_is_answered_ever_more_slowly(
    stage: Stage, server: FakeApiServer
) -> None:
    await stage.offer("gpu-0")
    for _ in range(6):
        server.remove("resourceslices", SLICE)
        await server.until(lambda: bool(stage.slices))
        await stage.settled()
    repairs = [seconds for seconds in stage.clock.asked if seconds != RECHECK_SECONDS]

    assert max(repairs) >= 0.2 * 2**4 * 0.5


# -- releases -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "version"),
    [
        ({"minor": 37}, "v1"),
        ({"minor": 33}, "v1beta2"),
        ({"minor": 32}, "v1beta1"),
        ({"versions": ("v2", "v1beta2")}, "v1beta2"),
    ],
)
async def test_slices_are_written_in_the_newest_version_that_is_served(
    stage: Stage, version: str
) -> None:
    (item,) = await stage.offer("gpu-0")
    await stage.offer("gpu-0", "gpu-1")

    assert all(f"/{version}/" in seen.path for seen in stage.server.writes())
    assert stage.publisher.published.version == version
    assert item["spec"]["devices"][0]["attributes"] == {"model": {"string": "A100"}}


async def test_a_server_without_the_api_is_said_so() -> None:
    async with FakeApiServer(versions=("v1alpha3",)) as server:
        server.add_node(NODE)
        stage = Stage(server, OfferingAgent(offer("gpu-0")))
        async with (
            Kube.at(server.url, sleep=stage.clock.sleep) as kube,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(stage.run, kube)
            await stage.agent.until(lambda faults: "v1alpha3" in str(faults))
            server.versions = ("v1",)
            await server.until(lambda: bool(stage.slices))
            tasks.cancel_scope.cancel()


async def test_an_upgraded_server_is_written_to_in_its_newer_version() -> None:
    async with FakeApiServer(minor=33) as server:
        server.add_node(NODE)
        stage = Stage(server, OfferingAgent(offer("gpu-0")))
        async with (
            Kube.at(server.url, sleep=stage.clock.sleep) as kube,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(stage.run, kube)
            await server.until(lambda: bool(stage.slices))
            server.versions, server.minor = ("v1", "v1beta2"), 34
            server.compact()
            server.drop_watches()
            await server.until(
                lambda: any("/v1/" in s.path and "watch" in s.query for s in server.requests)
            )
            await stage.offer("gpu-0", "gpu-1")
            tasks.cancel_scope.cancel()

    assert "/v1/" in server.writes()[-1].path


class TestWhereGatesAreOff:
    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"minor": 35}

    async def test_an_unusable_device_leaves_unless_it_is_held(self, stage: Stage) -> None:
        held = offered("held", taints=GONE, held=True)
        await stage.offer("fine", offered("gone", taints=GONE), held)

        assert published_devices(stage.server) == ["fine", "held"]
        assert stage.publisher.published.lacks == ("taints",)

    async def test_counters_are_left_to_the_ledger(self, stage: Stage) -> None:
        (item,) = await stage.offer(*rivals())

        assert [d["name"] for d in item["spec"]["devices"]] == ["half", "whole"]
        assert stage.publisher.published.lacks == ("counters",)
        assert item["spec"]["pool"]["resourceSliceCount"] == 1

    async def test_a_device_with_binding_conditions_is_shown_without_them(
        self, stage: Stage
    ) -> None:
        """The prepare waits then: tests of ``binding``."""
        up: dict[str, Any] = {
            "binding_conditions": ("up",),
            "binding_failure_conditions": ("failed",),
        }
        (item,) = await stage.offer(offered("fabric-0", **up))

        assert [d["name"] for d in item["spec"]["devices"]] == ["fabric-0"]
        assert stage.publisher.published.lacks == ("binding",)

    async def test_what_is_dropped_is_not_written_over_and_over(self, stage: Stage) -> None:
        mixed = (
            *rivals(),
            offered("shared", shareable=True, capacity={"memory": "8Gi"}),
            offered("held", taints=GONE, held=True),
        )
        await stage.offer(*mixed)
        count = len(stage.writes)
        stage.publisher.look_again()
        await stage.settled()
        await stage.offer(*mixed)

        assert len(stage.writes) == count
        assert stage.publisher.published.lacks == ("taints", "counters", "sharing")


async def test_a_server_that_changes_what_it_stores_is_not_fought(
    stage: Stage, server: FakeApiServer
) -> None:
    # An admission webhook may rewrite a slice: what was sent is remembered with what became of it.
    rules = server._verbs._settle

    def mutated(target: Any, new: Json, old: Json | None) -> None:
        for found in new.get("spec", {}).get("devices", ()):
            found["attributes"] = {"model": {"string": "rewritten"}}
        rules(target, new, old)

    server._verbs._settle = mutated  # type: ignore[method-assign]
    await stage.offer("gpu-0")
    stage.publisher.look_again()
    await stage.settled()

    assert len(stage.writes) == 1


# -- devices that the server refuses --------------------------------------------------------------

TOO_LONG = {"model": "x" * 65}


@pytest.mark.field_case("E08")
async def test_one_refused_device_does_not_hide_the_others(stage: Stage) -> None:
    # kubernetes pull request 142218: a refused slice hid every device of its node.
    await stage.offer(*many(5), offered("odd", attributes=TOO_LONG))

    assert published_devices(stage.server) == [f"gpu-{n}" for n in range(5)]
    assert "attributes[model].string" in stage.publisher.published.refused["odd"]
    assert list(stage.agent.faults) == ["slice of device odd"]
    assert len(stage.server.writes()) == 1


async def test_a_refused_device_is_tried_again_only_when_it_changes(stage: Stage) -> None:
    odd = offered("odd", attributes=TOO_LONG)
    await stage.offer("gpu-0", odd)
    asked = len(stage.server.requests)
    await stage.offer("gpu-0", odd)
    untried = len(stage.server.requests) == asked
    await stage.offer("gpu-0", offered("odd"))

    assert untried
    assert published_devices(stage.server) == ["gpu-0", "odd"]
    assert stage.agent.faults == {}


async def test_a_refused_device_that_leaves_is_no_fault_any_more(stage: Stage) -> None:
    await stage.offer("gpu-0", offered("odd", attributes=TOO_LONG))
    await stage.offer("gpu-0")

    assert stage.agent.faults == {}
    assert stage.publisher.published.refused == {}


@pytest.mark.field_case("E08")
async def test_where_the_server_names_no_field_the_culprits_are_found_by_trial(
    stage: Stage,
) -> None:
    odd = [offered(f"odd-{n}", attributes={"big": 2**63 + n}) for n in range(2)]
    await stage.offer(*many(20), *odd)

    assert published_devices(stage.server) == [f"gpu-{n}" for n in range(20)]
    assert set(stage.publisher.published.refused) == {"odd-0", "odd-1"}
    assert len(stage.server.writes()) == 1


@pytest.mark.field_case("E08")
async def test_many_refused_devices_in_many_slices_cost_only_themselves(stage: Stage) -> None:
    odd = [offered(f"odd-{n}", attributes=TOO_LONG) for n in range(40)]
    await stage.offer(*many(300), *odd)

    assert len(published_devices(stage.server)) == 300
    assert len(stage.publisher.published.refused) == 40


async def test_a_refused_change_leaves_the_device_out_and_the_slice_right(stage: Stage) -> None:
    await stage.offer("gpu-0", "odd")
    await stage.offer("gpu-0", offered("odd", attributes=TOO_LONG, taints=GONE), "gpu-1")

    assert published_devices(stage.server) == ["gpu-0", "gpu-1"]


async def test_a_reason_does_not_quote_the_hardware(stage: Stage) -> None:
    await stage.offer("gpu-0", offered("odd", attributes={"9lives": 1, "x": "Geheim"}))

    said = stage.publisher.published.refused["odd"] + "".join(stage.agent.faults.values())
    assert "9lives" not in said


async def test_a_server_that_takes_fewer_devices_gets_smaller_slices(
    stage: Stage, server: FakeApiServer
) -> None:
    from hardpoint.testing._api_status import ApiProblem

    rules = server._verbs._settle

    def small(target: Any, new: Json, old: Json | None) -> None:
        if len(new.get("spec", {}).get("devices", ())) > 20:
            raise ApiProblem(413, "Request entity too large: limit is 3145728")
        rules(target, new, old)

    server._verbs._settle = small  # type: ignore[method-assign]
    await stage.offer(*many(50))

    assert len(published_devices(server)) == 50
    assert stage.agent.faults == {}


async def test_a_refusal_that_no_device_is_to_blame_for_is_said(server: FakeApiServer) -> None:
    from hardpoint.model import Domain

    board = OfferingAgent(offer(offered("gpu-0", domain=Domain.named("not_a_driver"))))
    agent: Any = board
    clock = ManualClock()
    async with (
        Kube.at(server.url, sleep=clock.sleep) as kube,
        anyio.create_task_group() as tasks,
    ):
        publisher = SlicePublisher(agent, Domain.named("not_a_driver"), kube, sleep=clock.sleep)
        tasks.start_soon(publisher.run)
        await board.until(lambda faults: "spec.driver" in str(faults))
        tasks.cancel_scope.cancel()

    assert publisher.published.refused == {}


# -- an administrator's policy that refuses slices ------------------------------------------------


def refuse(server: FakeApiServer, code: int, *names: str, empty: bool = False) -> None:
    """Refuse slices with these devices (``*``: any slice), as an admission policy does."""
    from hardpoint.testing._api_status import ApiProblem, Cause

    def judge(target: Any, new: Json, old: Json | None) -> None:
        found = {d["name"] for d in new.get("spec", {}).get("devices", ())}
        if "*" in names or found & set(names) or (empty and not found):
            said = "ValidatingAdmissionPolicy 'frozen' denied request: not before Monday"
            raise ApiProblem(code, said, causes=[Cause("", said, "")] if code == 422 else ())
        rules(target, new, old)

    rules = server._verbs._settle
    server._verbs._settle = judge  # type: ignore[method-assign]


@pytest.mark.parametrize("code", [403, 413, 422])
@pytest.mark.parametrize("empty", [False, True])
async def test_a_policy_against_one_device_hides_no_other(
    stage: Stage, server: FakeApiServer, code: int, empty: bool
) -> None:
    # ``object.spec.devices.all(…)`` fails on a slice without devices, and so refuses it too.
    refuse(server, code, "gpu-5", empty=empty)
    await stage.offer(*many(20))

    assert published_devices(server) == [f"gpu-{n}" for n in range(20) if n != 5]
    assert "not before Monday" in stage.agent.faults["slice of device gpu-5"]


async def test_a_policy_that_went_is_noticed_without_any_change_of_the_device(
    stage: Stage, server: FakeApiServer
) -> None:
    rules = server._verbs._settle
    refuse(server, 422, "gpu-1")
    await stage.offer(*many(3))
    stood = stage.publisher.published.refused
    server._verbs._settle = rules  # type: ignore[method-assign]
    stage.clock.advance()
    await stage.agent.until(lambda faults: not faults)

    assert set(stood) == {"gpu-1"}
    assert published_devices(server) == ["gpu-0", "gpu-1", "gpu-2"]
    assert stage.publisher.published.refused == {}


def asked_more(server: FakeApiServer, than: int) -> bool:
    return len(server.requests) > than


async def test_a_refused_device_is_tried_ever_more_seldom_and_stays_a_fault(
    stage: Stage, server: FakeApiServer
) -> None:
    refuse(server, 422, "gpu-1")
    await stage.offer(*many(3))
    for _ in range(6):
        asked = len(server.requests)
        await anyio.wait_all_tasks_blocked()
        stage.clock.advance()
        await server.until(partial(asked_more, server, asked))
        await stage.settled()

    waits = [seconds for seconds in stage.clock.asked if seconds >= RECHECK_SECONDS]
    assert max(waits) == 900
    assert list(stage.agent.faults) == ["slice of device gpu-1"]
    assert published_devices(server) == ["gpu-0", "gpu-2"]
    assert len(server.writes()) == 1


async def test_a_policy_against_all_slices_costs_neither_counters_nor_devices(
    server: FakeApiServer,
) -> None:
    refuse(server, 422, "*")
    board = OfferingAgent(offer(*rivals()))
    agent: Any = board
    clock = ManualClock()
    async with (
        Kube.at(server.url, sleep=clock.sleep) as kube,
        anyio.create_task_group() as tasks,
    ):
        publisher = SlicePublisher(agent, DOMAIN, kube, sleep=clock.sleep)
        tasks.start_soon(publisher.run)
        await board.until(lambda faults: "not before Monday" in str(faults))
        tasks.cancel_scope.cancel()

    assert list(board.faults) == [f"slices of {DOMAIN.dra_driver}"]
    assert publisher.published.refused == {}
    assert publisher.published.lacks == ()


async def test_a_refused_counters_slice_without_a_reason_is_not_taken_for_a_lack_of_counters(
    stage: Stage, server: FakeApiServer
) -> None:
    rules = server._verbs._settle
    await stage.offer("gpu-0")
    refuse(server, 403, "*")
    stage.agent.set("gpu-0", *rivals())
    await stage.agent.until(lambda faults: "not before Monday" in str(faults))
    server._verbs._settle = rules  # type: ignore[method-assign]
    await stage.settled()

    assert stage.publisher.published.lacks == ()
    assert [list(item["spec"])[-1] for item in stage.slices].count("sharedCounters") == 1
