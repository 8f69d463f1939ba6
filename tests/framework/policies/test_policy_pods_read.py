"""What policies read of the API server's pods, and what they take for no answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from hardpoint.errors import KubeUnreachable
from hardpoint.kube import PODS, Json, Kube
from hardpoint.node import Node
from hardpoint.policies import _pod_names
from hardpoint.policies._pod_names import PodName, PodNames, pods_by_uid
from hardpoint.policies._pods import read_pod, seconds
from hardpoint.testing import FakeAgent
from hardpoint.testing.api_server import FakeApiServer

NAMED = {"name": "train", "namespace": "media", "uid": "u1"}


def asked(**spec: Any) -> list[str]:
    return list(read_pod({"metadata": NAMED, "spec": spec}).spec.asked)


def test_a_pod_asks_as_a_whole_and_in_each_of_its_containers() -> None:
    found = asked(
        resources={"limits": {"whole": "1"}},
        containers=[
            {"resources": {"limits": {"limit": "1"}, "requests": {"request": "1"}}},
            {"resources": {}},
            {},
        ],
        initContainers=[{"resources": {"requests": {"before": "1"}}}],
    )
    assert found == ["whole", "limit", "request", "before"]
    assert asked() == []
    assert asked(initContainers=[{"resources": {"limits": {"before": "1"}}}]) == ["before"]


def test_a_pod_is_called_by_its_namespace_and_name() -> None:
    assert str(read_pod({"metadata": NAMED})) == "media/train"


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "train", "namespace": "media", "uid": ""},
        {"name": "train", "namespace": "", "uid": "u1"},
        {"name": "train", "uid": "u1"},
        {"name": "train", "namespace": "media"},
        {"name": 7, "namespace": "media", "uid": "u1"},
    ],
)
def test_a_pod_of_which_it_is_not_said_which_it_is_is_no_answer(metadata: Any) -> None:
    with pytest.raises(KubeUnreachable):
        read_pod({"metadata": metadata})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-01-02T03:04:05Z", 1767323045.0),
        ("2026-01-02T03:04:05.250000Z", 1767323045.25),
        ("2026-01-02T03:04:05", None),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_a_time_without_its_zone_is_none(text: str | None, found: float | None) -> None:
    assert seconds(text) == found


# -- names ----------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.add_node("node-1")
        yield server


async def create(server: FakeApiServer, name: str, **metadata: Any) -> Json:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "busybox"}]},
    }
    async with Kube.at(server.url) as kube:
        return await kube.create(PODS, body, namespace="default")


def agent(tmp_path: Path, server: FakeApiServer) -> FakeAgent:
    return FakeAgent(tmp_path, node=Node(name="node-1"), kube=lambda: Kube.at(server.url))


async def test_a_static_pod_is_known_by_its_mirror_and_by_the_kubelets_own_uid(
    tmp_path: Path, server: FakeApiServer
) -> None:
    plain = await create(server, "train")
    hash_ = {"kubernetes.io/config.hash": "0123456789abcdef0123456789abcdef"}
    mirror = await create(server, "etcd-node-1", annotations=hash_)

    assert await pods_by_uid(agent(tmp_path, server)) == {
        plain["metadata"]["uid"]: PodName("default", "train"),
        mirror["metadata"]["uid"]: PodName("default", "etcd-node-1"),
        "0123456789abcdef0123456789abcdef": PodName("default", "etcd-node-1"),
    }


async def test_names_are_not_waited_for(
    tmp_path: Path, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are for people: who uses a device is said without them."""
    monkeypatch.setattr(_pod_names, "_PATIENCE", 0.01)
    server.trouble(hang=True)
    with anyio.fail_after(4):
        assert await pods_by_uid(agent(tmp_path, server)) == {}


async def test_names_are_asked_for_once_and_what_has_none_now_and_then(
    tmp_path: Path, server: FakeApiServer
) -> None:
    """A release may be stuck for hours, and an API server away for as long."""
    now = 0.0
    names, asking = PodNames(clock=lambda: now), agent(tmp_path, server)
    first = (await create(server, "exporter"))["metadata"]["uid"]
    before = len(server.requests)
    for _ in range(100):
        found = await names.of(asking, [first, ""])
    assert found[first] == PodName("default", "exporter")
    assert len(server.requests) == before + 1

    second = (await create(server, "train"))["metadata"]["uid"]
    before = len(server.requests)
    for _ in range(100):
        assert second not in await names.of(asking, [first, second])
    assert len(server.requests) == before
    now = 30.0
    assert (await names.of(asking, [second]))[second] == PodName("default", "train")

    before, now = len(server.requests), 90.0
    assert second in await names.of(asking, [first, second])
    assert len(server.requests) == before
    server.down = True
    assert first in await names.of(asking, [first, "another"]), "a name is one for ever"
