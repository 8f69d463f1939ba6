"""Others who write what is ours, or beside us: slices edited and deleted, a driver, the node."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cluster import pods
from cluster.waiting import until
from cluster.witness import RESOURCES, Namespace, Witness
from cluster.world import ADAPTER, FIRST, LIKEN, WHOLE, World
from kubernetes.client.exceptions import ApiException

FOREIGN = "gpu.vendor.example.com"
FIGHT = 8.0
"""Seconds; our delays before a repair are 0.2, 0.4, 0.8 … s, or half of that."""
MOST_WRITES = 16


def writes(world: World) -> int:
    """Count what the agent wrote of slices, by the audit log."""
    lines = (world.cluster.logs / "audit.log").read_text().splitlines()
    found = (json.loads(line) for line in lines)
    changing = ("create", "update", "delete")
    return sum(
        one["verb"] in changing and one["objectRef"]["resource"] == "resourceslices"
        for one in found
    )


@contextmanager
def rival(world: World, act: Callable[[Witness, str], object]) -> Iterator[list[float]]:
    """Do something to our slice the moment it is there, again and again; yields when it was."""
    over, acted = threading.Event(), list[float]()
    witness = Witness(world.cluster.kubeconfig)

    def fight() -> None:
        while not over.wait(0.02):
            for one in witness.slices(LIKEN):
                with contextlib.suppress(ApiException):
                    if act(witness, one["metadata"]["name"]) is not None:
                        acted.append(time.monotonic())

    thread = threading.Thread(target=fight)
    thread.start()
    try:
        yield acted
    finally:
        over.set()
        thread.join()
        witness.close()


def delete(witness: Witness, name: str) -> object:
    witness.delete("ResourceSlice", name)
    return True


def edit(witness: Witness, name: str) -> object:
    found = witness.get("ResourceSlice", name)
    if found is None or len(found["spec"]["devices"]) == 1:
        return None
    return witness.patch("ResourceSlice", name, {"spec": {"devices": found["spec"]["devices"][:1]}})


@pytest.mark.parametrize("act", [delete, edit])
def test_a_rival_that_undoes_every_write_is_outlasted_not_fought(
    world: World, foreign: dict[str, Any], act: Callable[[Witness, str], object]
) -> None:
    before = writes(world)

    with rival(world, act) as acted:
        ends = time.monotonic() + FIGHT
        until("a fight", lambda: time.monotonic() > ends)
    during = writes(world) - before

    assert len(acted) >= 3
    assert during <= MOST_WRITES
    world.until_published(WHOLE)
    assert world.witness.get("ResourceSlice", foreign["metadata"]["name"]) == foreign
    world.agent.kill()  # it is patient with rivals by now: the next test gets a new one


@pytest.fixture
def foreign(world: World) -> Iterator[dict[str, Any]]:
    """A slice of another driver, which offers our first card under its own name."""
    address = {"string": world.witness.devices(LIKEN)[FIRST]["attributes"]["address"]["string"]}
    device = {"name": "gpu-0", "attributes": {"resource.kubernetes.io/pciBusID": address}}
    pool = {"name": "n0", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": FOREIGN, "nodeName": "n0", "pool": pool, "devices": [device]}
    metadata = {"name": "n0-gpu.vendor.example.com"}
    body = {"apiVersion": RESOURCES, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    yield world.witness.create(body)
    world.witness.delete("ResourceSlice", metadata["name"])


def test_a_foreign_driver_of_the_same_card_is_left_alone_and_costs_us_nothing(
    world: World, namespace: Namespace, foreign: dict[str, Any]
) -> None:
    namespace.create(pods.claim("gpu", gpu="gpu-render"))
    namespace.create(pods.pod("p", {"gpu": "gpu"}))
    namespace.until_running("p")
    world.agent.kill()
    world.agent.start()
    world.until_registered()
    world.machine.unplug_adapter()

    world.until_published(WHOLE - {ADAPTER})
    namespace.until_running("p")
    assert world.witness.get("ResourceSlice", foreign["metadata"]["name"]) == foreign


def test_a_node_that_is_deleted_and_made_again_gets_slices_of_its_own(
    world: World, namespace: Namespace
) -> None:
    namespace.create(pods.claim("adapter", adapter="zigbee-adapter"))
    namespace.create(pods.pod("p", {"adapter": "adapter"}))
    namespace.until_running("p")
    old = uid_of_node(world)

    world.witness.delete("Node", "n0")
    until("its slices went with it", lambda: world.published() == {})
    until("it is said", lambda: "no node n0" in str(world.agent.says("status")["faults"]))
    assert world.holds() == {ADAPTER: "held"}
    world.cluster.restart("n0-kubelet")  # registers the node anew

    until("a new node", lambda: uid_of_node(world) not in ("", old))
    until("published again", lambda: set(world.published()) == WHOLE)
    [found] = world.witness.slices(LIKEN)
    owners = [one["uid"] for one in found["metadata"]["ownerReferences"]]
    assert owners == [uid_of_node(world)]
    until("no faults", lambda: world.agent.says("status")["faults"] == [])
    namespace.delete_pods("p")
    assert world.holds() == {}
    assert world.cdi_files() == []


def uid_of_node(world: World) -> str:
    found = world.witness.get("Node", "n0")
    return str(found["metadata"]["uid"]) if found else ""
