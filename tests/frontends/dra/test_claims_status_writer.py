"""status.devices of a claim is written beside the answer, and given up without harm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from dra_node import DRIVER, NODE, device, result, running

from hardpoint.kube import Kube, Resource
from hardpoint.model import ClaimKey, PreparedDevice
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.api_server import FakeApiServer
from hardpoint_dra import status as status_module
from hardpoint_dra.claims import ClaimReader
from hardpoint_dra.status import StatusWriter

SOURCE = f"dra claim status of {DRIVER}"


class World:
    """A claim on an API server, and the writer of its status."""

    def __init__(self, root: Path, server: FakeApiServer, kube: Kube) -> None:
        self.server, self.agent = server, FakeAgent(root)
        reader = ClaimReader(lambda: kube, NODE)
        self.writer = StatusWriter(self.agent, DRIVER, lambda: kube, reader.version)
        self.key = self.add("gpu")

    def add(self, name: str) -> ClaimKey:
        request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
        added = self.server.add(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            }
        )
        self.server.allocate("default", name, [result()])
        return ClaimKey(added["metadata"]["uid"], "default", name, DRIVER)

    def prepared(self, key: ClaimKey | None = None) -> None:
        one = PreparedDevice(request="r", pool=NODE, device="pci-0", cdi_ids=())
        self.writer.prepared(key or self.key, [one], {"pci-0": device()})

    def entries(self, name: str = "gpu") -> list[dict[str, Any]]:
        claim = self.server.get("resourceclaims", name, "default")
        return list(claim["status"].get("devices") or [])

    def tried(self) -> int:
        return sum(seen.method == "PATCH" for seen in self.server.requests)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def world(short_path: Path, server: FakeApiServer) -> AsyncIterator[World]:
    async with Kube.at(server.url) as kube:
        yield World(short_path, server, kube)


async def test_what_was_unprepared_before_it_was_written_is_not_written(world: World) -> None:
    world.prepared()
    world.writer.unprepared(world.key)
    async with running(world.writer.run):
        await world.server.until(lambda: world.tried() == 1)

    assert world.entries() == []


async def test_another_claim_of_the_same_name_is_left_alone(world: World) -> None:
    world.prepared(ClaimKey("uid-of-the-old-one", "default", "gpu", DRIVER))
    other = world.add("other")
    async with running(world.writer.run):
        world.prepared(other)
        await world.server.until(lambda: len(world.entries("other")) == 1)

    assert world.entries() == []
    assert world.agent.faults == {}


@pytest.mark.field_case("A10")
async def test_fields_that_somebody_else_owns_are_taken_over_and_not_fought_for(
    world: World,
) -> None:
    """As after a reboot, or under a name that this driver had before: the entry has an owner."""
    theirs = {"driver": DRIVER, "pool": NODE, "device": "pci-0", "data": {"from": "before"}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "gpu", "namespace": "default", "uid": world.key.uid},
        "status": {"devices": [theirs]},
    }
    async with Kube.at(world.server.url) as kube:
        resource = Resource("resource.k8s.io", "v1", "resourceclaims")
        for manager in ("unknown", "before-the-reboot"):
            await kube.apply(
                resource, body, namespace="default", subresource="status", manager=manager
            )
    before = world.tried()
    async with running(world.writer.run):
        world.prepared()
        await world.server.until(lambda: bool(world.entries()[0].get("conditions")))

    assert [entry["data"]["kind"] for entry in world.entries()] == ["GivenDevice"]
    assert world.tried() == before + 1
    assert world.agent.faults == {}


async def test_a_server_that_has_just_been_restarted_is_asked_again(world: World) -> None:
    world.server.deny("patch", "resourceclaims/status")  # it knows no roles for a moment
    async with running(world.writer.run):
        world.prepared()
        await world.server.until(lambda: world.tried() == 1)
        world.server.allow("patch", "resourceclaims/status")
        await world.server.until(lambda: len(world.entries()) == 1)

    assert world.agent.faults == {}


async def test_a_claim_that_is_gone_holds_up_no_other(world: World) -> None:
    world.prepared(ClaimKey("gone", "default", "gone", DRIVER))
    world.prepared()
    async with running(world.writer.run):
        await world.server.until(lambda: len(world.entries()) == 1)


async def test_a_server_that_drops_the_field_is_noticed_and_left_in_peace(
    short_path: Path,
) -> None:
    gates = {"DRAResourceClaimDeviceStatus": False}
    async with FakeApiServer(gates=gates) as server, Kube.at(server.url) as kube:
        world = World(short_path, server, kube)
        async with running(world.writer.run):
            world.prepared()
            await world.agent.until(lambda: SOURCE in world.agent.faults)
            world.prepared()
            await anyio.wait_all_tasks_blocked()

        assert "drops status.devices" in world.agent.faults[SOURCE][0]
        assert world.tried() == 1


async def test_a_claim_whose_status_is_refused_holds_up_no_other(world: World) -> None:
    one = PreparedDevice(request="r", pool=NODE, device="not-allocated", cdi_ids=())
    world.writer.prepared(world.key, [one], {})
    other = world.add("other")
    world.prepared(other)
    async with running(world.writer.run):
        await world.server.until(lambda: len(world.entries("other")) == 1)

    assert world.entries() == []


async def test_a_server_that_stays_away_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status_module, "_TRIES", 2)
    trouble = world.server.trouble(method="PATCH", status=503)
    async with running(world.writer.run):
        world.prepared()
        await world.server.until(lambda: trouble.met == 2)
        trouble.end()
        other = world.add("other")
        world.prepared(other)
        await world.server.until(lambda: len(world.entries("other")) == 1)

    assert world.entries() == []
    assert "status given up claim=default/gpu" in caplog.text
