"""The client for the API server: objects, errors, tokens and watches, over real HTTP."""

from __future__ import annotations

import logging
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute

from hardpoint.errors import (
    KubeBusy,
    KubeConflict,
    KubeDenied,
    KubeError,
    KubeGone,
    KubeInvalid,
    KubeNotFound,
    KubeUnreachable,
)
from hardpoint.kube import NODES, PODS, Backoff, Change, Json, Kube, Listing, Resource, dropped
from hardpoint.testing.api_server import FakeApiServer

SLICES = Resource("resource.k8s.io", "v1", "resourceslices")
CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims")


def a_slice(name: str = "slice-1", *, node: str = "node-a", **spec: Any) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "hardpoint.dev",
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "nodeName": node,
            "devices": [{"name": "gpu-0"}],
            **spec,
        },
    }


def a_claim(name: str = "claim-1") -> Json:
    request = {"name": "main", "exactly": {"deviceClassName": "gpu"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }


def test_importing_the_module_imports_no_client() -> None:
    code = "import sys, hardpoint.kube; print([m for m in sys.modules if 'lightkube' in m])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"


# -- objects --------------------------------------------------------------------------------------


async def test_an_object_is_created_read_replaced_and_deleted(kube: Kube) -> None:
    made = await kube.create(SLICES, a_slice())
    made["spec"]["devices"].append({"name": "gpu-1"})
    await kube.replace(SLICES, made)
    read = await kube.get(SLICES, "slice-1")
    gone = await kube.delete(SLICES, "slice-1", uid=read["metadata"]["uid"])

    assert [device["name"] for device in read["spec"]["devices"]] == ["gpu-0", "gpu-1"]
    assert gone
    with pytest.raises(KubeNotFound):
        await kube.get(SLICES, "slice-1")


async def test_deleting_what_is_gone_is_a_success(kube: Kube) -> None:
    assert await kube.delete(SLICES, "never-there") is False


async def test_a_replacement_made_from_an_old_state_is_a_conflict(kube: Kube) -> None:
    made = await kube.create(SLICES, a_slice())
    await kube.replace(SLICES, {**made, "spec": {**made["spec"], "devices": []}})

    with pytest.raises(KubeConflict):
        await kube.replace(SLICES, made)


async def test_a_replacement_without_a_version_is_a_mistake(kube: Kube) -> None:
    with pytest.raises(ValueError, match="resourceVersion"):
        await kube.replace(SLICES, a_slice())


async def test_a_namesake_is_not_deleted(kube: Kube, server: FakeApiServer) -> None:
    await kube.create(SLICES, a_slice())

    with pytest.raises(KubeConflict):
        await kube.delete(SLICES, "slice-1", uid="another")
    with pytest.raises(KubeConflict):
        await kube.delete(SLICES, "slice-1", version="1")
    assert len(server.items("resourceslices")) == 1


async def test_creating_twice_is_a_conflict(kube: Kube) -> None:
    await kube.create(SLICES, a_slice())

    with pytest.raises(KubeConflict):
        await kube.create(SLICES, a_slice())


async def test_a_dry_run_is_judged_and_not_stored(kube: Kube, server: FakeApiServer) -> None:
    await kube.create(SLICES, a_slice(), dry_run=True)
    with pytest.raises(KubeInvalid):
        await kube.create(SLICES, a_slice(devices=[{"name": "GPU"}]), dry_run=True)

    assert server.items("resourceslices") == []


async def test_a_refusal_names_the_field_that_was_refused(kube: Kube) -> None:
    bad = {"name": "gpu-0", "attributes": {"bad": {"string": "x" * 65}}}

    with pytest.raises(KubeInvalid) as refused:
        await kube.create(SLICES, a_slice(devices=[bad]))

    path, message = refused.value.causes[0]
    assert path == "spec.devices[0].attributes[bad].string"
    assert "64 bytes" in message


async def test_a_value_that_cannot_be_decoded_is_invalid_without_a_field(kube: Kube) -> None:
    bad = {"name": "gpu-0", "capacity": {"memory": {"value": "lots"}}}

    with pytest.raises(KubeInvalid) as refused:
        await kube.create(SLICES, a_slice(devices=[bad]))

    assert refused.value.causes == ()


async def test_a_merge_changes_some_fields_and_removes_others(
    kube: Kube, server: FakeApiServer
) -> None:
    node = await kube.get(NODES, "node-a")
    changes = {"metadata": {"annotations": {"a": "1"}}, "spec": {"unschedulable": True}}
    first = await kube.merge(NODES, "node-a", changes, version=version_of(node))
    undo = {"metadata": {"annotations": {"a": None}}, "spec": {"unschedulable": None}}
    second = await kube.merge(NODES, "node-a", undo, version=version_of(first))

    assert first["spec"]["unschedulable"]
    assert first["metadata"]["annotations"] == {"a": "1"}
    assert second["spec"] == {}
    assert not second["metadata"].get("annotations")
    assert server.get("nodes", "node-a")["spec"] == {}


async def test_a_merge_that_somebody_overtook_changes_nothing(
    kube: Kube, server: FakeApiServer
) -> None:
    old = version_of(await kube.get(NODES, "node-a"))
    server.edit("nodes", "node-a").change(lambda node: node["spec"].update(unschedulable=True))

    with pytest.raises(KubeConflict):
        await kube.merge(NODES, "node-a", {"spec": {"unschedulable": None}}, version=old)

    assert server.get("nodes", "node-a")["spec"]["unschedulable"]


def version_of(found: Json) -> str:
    return str(found["metadata"]["resourceVersion"])


def a_pod(**spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod-1", "namespace": "default"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "c"}], **spec},
    }


async def test_a_pod_is_evicted_with_a_grace_of_its_own(kube: Kube, server: FakeApiServer) -> None:
    uid = server.add(a_pod())["metadata"]["uid"]
    with pytest.raises(KubeConflict):
        await kube.evict("pod-1", namespace="default", uid="another", grace=20)
    asked = await kube.evict("pod-1", namespace="default", uid=uid, grace=20)
    server.remove("pods", "pod-1", "default")

    assert asked
    assert not await kube.evict("pod-1", namespace="default", uid=uid, grace=20)


async def test_a_disruption_budget_says_not_now(kube: Kube, server: FakeApiServer) -> None:
    uid = server.add(a_pod())["metadata"]["uid"]
    server.trouble(path="/eviction", status=429, message="a disruption budget")

    with pytest.raises(KubeBusy, match="budget"):
        await kube.evict("pod-1", namespace="default", uid=uid, grace=20)

    assert "deletionTimestamp" not in server.get("pods", "pod-1", "default")["metadata"]


async def test_status_is_applied_beside_that_of_other_drivers(
    kube: Kube, server: FakeApiServer
) -> None:
    server.add(a_claim())
    results = [
        {"request": "main", "driver": driver, "pool": "node-a", "device": "gpu-0"}
        for driver in ("hardpoint.dev", "other.example")
    ]
    server.allocate("default", "claim-1", results)
    ours, theirs = (
        {"driver": result["driver"], "pool": "node-a", "device": "gpu-0", "data": {"serial": "1"}}
        for result in results
    )
    server.edit("resourceclaims", "claim-1", "default").change(
        lambda claim: claim["status"].update(devices=[theirs])
    )
    said = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "claim-1"},
        "status": {"devices": [ours]},
    }

    await kube.apply(CLAIMS, said, namespace="default", subresource="status")
    both = server.get("resourceclaims", "claim-1", "default")["status"]["devices"]
    said["status"] = {"devices": []}
    await kube.apply(CLAIMS, said, namespace="default", subresource="status")
    rest = server.get("resourceclaims", "claim-1", "default")["status"]["devices"]

    assert sorted(device["driver"] for device in both) == ["hardpoint.dev", "other.example"]
    assert [device["driver"] for device in rest] == ["other.example"]


async def test_a_field_that_another_manager_holds_is_taken_from_it(
    kube: Kube, server: FakeApiServer
) -> None:
    # akri issue 801: before the reboot somebody else had written our field, and every apply of
    # ours was refused from then on.
    made = await kube.create(SLICES, a_slice())
    other = {**a_slice(), "metadata": {"name": "slice-1", "labels": {"a": "theirs"}}}
    await kube.apply(SLICES, other, manager="x")

    mine = {**a_slice(), "metadata": {"name": "slice-1", "labels": {"a": "ours"}}}
    stored = await kube.apply(SLICES, mine)

    assert stored["metadata"]["labels"] == {"a": "ours"}
    assert stored["metadata"]["uid"] == made["metadata"]["uid"]
    assert {entry["manager"] for entry in stored["metadata"]["managedFields"]} >= {"hardpoint"}


# -- collections ----------------------------------------------------------------------------------


async def test_a_long_collection_is_read_page_by_page(kube: Kube, server: FakeApiServer) -> None:
    for number in range(1201):
        server.add_node(f"node-{number}")

    listing = await kube.list(NODES)

    pages = [seen for seen in server.requests if seen.path == "/api/v1/nodes"]
    assert len(listing.items) == 1202
    assert listing.items[0]["kind"] == "Node"
    assert listing.version == server.resource_version
    assert len(pages) == 3


async def test_a_collection_is_read_whole_when_its_next_page_is_lost(
    kube: Kube, server: FakeApiServer
) -> None:
    for number in range(600):
        server.add_node(f"node-{number}")

    pages: list[int] = []

    def forget_before_the_second_page() -> None:
        pages.append(1)
        if len(pages) == 2:
            server.add_node("late")
            server.compact()

    server.trouble(path="/nodes", before=forget_before_the_second_page)
    listing = await kube.list(NODES)

    assert len(listing.items) == 602
    assert len(pages) == 3


async def test_fields_select_what_is_listed(kube: Kube) -> None:
    await kube.create(SLICES, a_slice("one", node="node-a"))
    await kube.create(SLICES, a_slice("two", node="node-b"))

    listing = await kube.list(SLICES, fields={"spec.nodeName": "node-b"})

    assert [item["metadata"]["name"] for item in listing.items] == ["two"]


async def test_versions_come_newest_first() -> None:
    versions = ("v1beta1", "v1", "v1beta2")
    async with FakeApiServer(versions=versions) as server, Kube.at(server.url) as kube:
        assert await kube.versions("resource.k8s.io") == ("v1", "v1beta2", "v1beta1")
        assert await kube.versions("example.com") == ()
        assert await kube.server_version() == "v1.37.0"


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, KubeDenied),
        (403, KubeDenied),
        (404, KubeNotFound),
        (409, KubeConflict),
        (410, KubeGone),
        (413, KubeInvalid),
        (422, KubeInvalid),
        (429, KubeUnreachable),
        (500, KubeUnreachable),
        (503, KubeUnreachable),
        (504, KubeUnreachable),
    ],
)
async def test_every_refusal_is_an_error_of_ours(
    kube: Kube, server: FakeApiServer, status: int, error: type[KubeError]
) -> None:
    server.trouble(status=status)

    with pytest.raises(error, match=str(status)):
        await kube.get(NODES, "node-a")


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with Kube.at("http://127.0.0.1:1") as kube:
        with pytest.raises(KubeUnreachable):
            await kube.get(NODES, "node-a")


async def test_a_server_that_hangs_is_unreachable(server: FakeApiServer) -> None:
    server.trouble(hang=True)
    async with Kube.at(server.url, timeout=0.05) as kube:
        with pytest.raises(KubeUnreachable):
            await kube.get(NODES, "node-a")


async def test_an_answer_cut_off_is_unreachable(kube: Kube, server: FakeApiServer) -> None:
    server.trouble(drop=True)

    with pytest.raises(KubeUnreachable):
        await kube.get(NODES, "node-a")


async def test_a_balancer_with_no_server_behind_it_is_said_to_break_connections_off() -> None:
    async def hang_up(stream: anyio.abc.SocketStream) -> None:
        await stream.aclose()

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, hang_up)
        port = listener.extra(SocketAttribute.local_port)
        async with Kube.at(f"https://127.0.0.1:{port}") as kube:
            with pytest.raises(KubeUnreachable, match="ConnectError: the connection broke off"):
                await kube.get(NODES, "node-a")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"[]", b"{", b"\xff\xfe", b""])
async def test_an_answer_that_is_no_object_is_unreachable(body: bytes) -> None:
    async def answer(stream: Any) -> None:
        async with stream:
            await stream.receive()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
            await stream.send(head.encode() + body)

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, answer)
        port = listener.extra(SocketAttribute.local_port)
        async with Kube.at(f"http://127.0.0.1:{port}") as kube:
            with pytest.raises(KubeUnreachable):
                await kube.get(NODES, "node-a")
        tasks.cancel_scope.cancel()


async def test_no_service_account_is_said_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeUnreachable, match="not in a pod"):
        Kube.in_cluster()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    async with Kube.in_cluster(tmp_path) as kube:
        with pytest.raises(KubeDenied, match="no service account"):
            await kube.get(NODES, "node-a")


# -- credentials ----------------------------------------------------------------------------------


@pytest.mark.field_case("I01", "I02")
async def test_a_rotated_token_is_read_again(server: FakeApiServer, tmp_path: Path) -> None:
    # kubernetes-client/python issue 1768: clients that read the projected token once fail after
    # an hour.
    token = tmp_path / "token"
    token.write_text("first")
    server.require_token("first")
    async with Kube.at(server.url, token) as kube:
        await kube.get(NODES, "node-a")
        replacement = tmp_path / "token.new"
        replacement.write_text("second")
        replacement.rename(token)
        server.require_token("second")
        await kube.get(NODES, "node-a")

    assert [seen.status for seen in server.requests] == [200, 200]


@pytest.mark.field_case("I01", "I02")
async def test_a_refused_token_is_read_again_once_though_its_file_looks_the_same(
    server: FakeApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("aaaa")
    server.require_token("aaaa")
    async with Kube.at(server.url, token) as kube:
        await kube.get(NODES, "node-a")
        was = token.stat()
        token.write_text("bbbb")
        os.utime(token, ns=(was.st_atime_ns, was.st_mtime_ns))
        server.require_token("bbbb")
        await kube.get(NODES, "node-a")
        server.require_token("cccc")
        with pytest.raises(KubeDenied):
            await kube.get(NODES, "node-a")

    assert len(server.requests) == 5


@pytest.mark.field_case("I01")
async def test_a_token_that_vanished_is_used_a_little_longer(
    server: FakeApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("aaaa\n")
    server.require_token("aaaa")
    async with Kube.at(server.url, token) as kube:
        await kube.get(NODES, "node-a")
        token.unlink()

        assert (await kube.get(NODES, "node-a"))["kind"] == "Node"


@pytest.mark.field_case("I03")
async def test_a_kubeconfig_is_read_again_when_it_changes(
    server: FakeApiServer, tmp_path: Path
) -> None:
    # UKGovernmentBEIS/inspect_k8s_sandbox pull request 179: kubeconfig tokens were kept for ever.
    path = tmp_path / "config"

    def write(token: str) -> None:
        path.write_text(
            "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
            f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
            f"users: [{{name: u, user: {{token: {token}}}}}]\n"
        )

    write("first")
    server.require_token("first")
    async with Kube.from_kubeconfig(path) as kube:
        await kube.get(NODES, "node-a")
        write("second-one")
        server.require_token("second-one")
        await kube.get(NODES, "node-a")
        path.write_text("{")

        assert (await kube.get(NODES, "node-a"))["kind"] == "Node"


@pytest.mark.parametrize("text", ["", "[]", "a: b: c: d", "clusters: []", "\x00"])
async def test_a_kubeconfig_that_is_none_is_said_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    async with Kube.from_kubeconfig(path) as kube:
        with pytest.raises(KubeDenied, match="not a usable kubeconfig"):
            await kube.get(NODES, "node-a")


@pytest.mark.parametrize("token", ["secret-token\nsecret-line", "geheim-\xfc"])
async def test_a_token_is_never_said(
    server: FakeApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, token: str
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "token"
    path.write_text(token, encoding="utf-8")
    async with Kube.at(server.url, path) as kube:
        with pytest.raises(KubeError) as refused:
            await kube.get(NODES, "node-a")

    assert "secret" not in str(refused.value) + caplog.text
    assert "geheim" not in str(refused.value) + caplog.text


async def test_a_missing_token_file_is_denied(server: FakeApiServer, tmp_path: Path) -> None:
    async with Kube.at(server.url, tmp_path / "none") as kube:
        with pytest.raises(KubeDenied, match="none"):
            await kube.get(NODES, "node-a")


async def test_an_authority_file_that_is_none_is_unreachable(tmp_path: Path) -> None:
    bad = tmp_path / "ca.crt"
    bad.write_text("not a certificate")
    async with Kube.at("https://127.0.0.1:1", ca_file=bad) as kube:
        with pytest.raises(KubeUnreachable, match=ssl.SSLError.__name__):
            await kube.get(NODES, "node-a")


# -- watches --------------------------------------------------------------------------------------


class Watched:
    """Follows a watch and keeps what it yielded; ``until`` waits for the next of it."""

    def __init__(self) -> None:
        self.seen: list[Listing | Change] = []
        self.troubles: list[KubeError | None] = []
        self._more = anyio.Event()

    async def follow(self, kube: Kube, resource: Resource, **options: Any) -> None:
        watch = kube.watch(resource, on_trouble=self.troubles.append, **options)
        async with aclosing(watch) as events:
            async for event in events:
                self.seen.append(event)
                self._more.set()
                self._more = anyio.Event()

    async def until(self, count: int) -> list[Listing | Change]:
        with anyio.fail_after(5):
            while len(self.seen) < count:
                await self._more.wait()
        return self.seen

    @property
    def words(self) -> list[str]:
        return [
            f"listed {len(e.items)}"
            if isinstance(e, Listing)
            else f"{e.type} {e.object['metadata']['name']}"
            for e in self.seen
        ]


@pytest.fixture
async def watched(kube: Kube, server: FakeApiServer) -> AsyncIterator[Watched]:
    watched = Watched()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched.follow, kube, NODES)
        await server.until(lambda: _watches(server) == 1)
        yield watched
        tasks.cancel_scope.cancel()


def _watches(server: FakeApiServer) -> int:
    return sum("watch" in seen.query and seen.status == 200 for seen in server.requests)


async def test_a_watch_lists_first_and_then_tells_each_change(
    watched: Watched, server: FakeApiServer
) -> None:
    server.add_node("node-b")
    server.edit("nodes", "node-b").update(metadata={"labels": {"x": "y"}})
    server.remove("nodes", "node-b")

    await watched.until(4)

    assert watched.words == ["listed 1", "ADDED node-b", "MODIFIED node-b", "DELETED node-b"]


@pytest.mark.parametrize("end", ["close_watches", "drop_watches"])
async def test_a_watch_that_ended_goes_on_where_it_stood(
    watched: Watched, server: FakeApiServer, end: str
) -> None:
    server.add_node("node-b")
    await watched.until(2)
    getattr(server, end)()
    server.add_node("node-c")
    await watched.until(3)

    assert watched.words == ["listed 1", "ADDED node-b", "ADDED node-c"]


async def test_a_watch_that_fell_behind_lists_again(
    watched: Watched, server: FakeApiServer
) -> None:
    trouble = server.trouble(path="/nodes", status=503)
    server.drop_watches()
    await server.until(lambda: trouble.met)
    server.add_node("node-b")
    server.compact()
    trouble.end()
    await watched.until(2)

    assert watched.words == ["listed 1", "listed 2"]
    assert isinstance(watched.troubles[1], KubeUnreachable)


async def test_a_bookmark_moves_the_place_to_resume_from(
    watched: Watched, server: FakeApiServer
) -> None:
    server.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    server.bookmark()
    await anyio.wait_all_tasks_blocked()
    server.compact()
    server.close_watches()
    await server.until(lambda: _watches(server) == 2)

    assert server.requests[-1].query["resourceVersion"] == server.resource_version
    assert watched.words == ["listed 1"]


async def test_a_watch_outlives_a_server_that_is_down(
    watched: Watched, server: FakeApiServer
) -> None:
    server.down = True
    server.add_node("node-b")
    server.down = False
    await watched.until(2)

    await server.until(lambda: _watches(server) == 2)  # for a moment it forbade everything
    server.add_node("node-c")
    await watched.until(3)

    assert watched.words[:2] == ["listed 1", "listed 2"]  # it forgot what was before
    assert watched.troubles[-1] is None
    assert [e for e in watched.troubles if isinstance(e, KubeGone)] == []


async def test_a_group_that_is_not_served_has_no_versions_by_the_servers_list_of_groups() -> None:
    async with FakeApiServer(versions=()) as server, Kube.at(server.url) as kube:
        assert await kube.versions("resource.k8s.io") == ()


@pytest.mark.parametrize("path", ["/apis", "/apis/resource.k8s.io"])
async def test_a_404_of_who_is_no_api_server_is_no_word_on_what_it_serves(
    kube: Kube, server: FakeApiServer, path: str
) -> None:
    server.trouble(path=path, status=404)

    with pytest.raises(KubeUnreachable):
        await kube.versions("resource.k8s.io")


ODD = [b"{}", b'{"status": "ok"}', b"<html>up</html>", b"[]", b'{"kind": "Status", "code": 200}']


@pytest.mark.parametrize("body", [*ODD, b'{"kind": "Pod", "metadata": {}}', b'{"items": []}'])
async def test_what_is_no_list_is_no_empty_list(
    kube: Kube, server: FakeApiServer, body: bytes
) -> None:
    """A proxy's word that it is well would mean that a node has no pods, and no rivals."""
    server.trouble(path="/pods", body=body)

    with pytest.raises(KubeUnreachable):
        await kube.list(PODS)


@pytest.mark.parametrize("body", [*ODD, b'{"versions": []}'])
async def test_what_is_no_group_serves_no_version_of_none(
    kube: Kube, server: FakeApiServer, body: bytes
) -> None:
    server.trouble(path="/apis", body=body)

    with pytest.raises(KubeUnreachable):
        await kube.versions("resource.k8s.io")


@pytest.mark.parametrize("event", ["bookmark", "change"])
async def test_a_watch_does_not_knock_in_a_tight_loop(server: FakeApiServer, event: str) -> None:
    """Neither where each one ends at once, nor where each has brought something before."""
    delays: list[float] = []

    async def asked_to_wait(seconds: float) -> None:
        delays.append(seconds)
        if event == "bookmark":
            server.bookmark()
        else:
            note = {"n": str(len(delays))}
            server.edit("nodes", "node-a").update(metadata={"annotations": note})
        await (anyio.sleep_forever() if len(delays) == 50 else anyio.lowlevel.checkpoint())

    def closed_fifty_times() -> bool:
        server.close_watches()
        return len(delays) == 50

    async with (
        Kube.at(server.url, sleep=asked_to_wait) as kube,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(Watched().follow, kube, NODES)
        await server.until(closed_fifty_times)
        tasks.cancel_scope.cancel()

    assert min(delays) >= 0.25
    assert sum(delays[-10:]) >= 10 * 15
    assert len(set(delays)) == 50


async def test_line_separators_inside_a_value_do_not_break_a_watch(
    watched: Watched, server: FakeApiServer
) -> None:
    strange = "a\x85b\u2028c\x1cd"
    server.edit("nodes", "node-a").update(metadata={"annotations": {"note": strange}})
    change = (await watched.until(2))[1]

    assert isinstance(change, Change)
    assert change.object["metadata"]["annotations"]["note"] == strange


async def test_a_watch_of_an_api_that_is_not_served_says_so(kube: Kube) -> None:
    with pytest.raises(KubeNotFound):
        await anext(kube.watch(Resource("resource.k8s.io", "v9", "resourceslices")))


async def test_a_watch_that_may_only_list_goes_on_by_listing(
    kube: Kube, server: FakeApiServer
) -> None:
    server.deny("watch", "nodes")
    watched = Watched()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched.follow, kube, NODES)
        await watched.until(2)
        tasks.cancel_scope.cancel()

    assert watched.words[:2] == ["listed 1", "listed 1"]
    assert isinstance(watched.troubles[0], KubeDenied)


async def test_a_watch_of_selected_fields_hears_of_nothing_else(
    kube: Kube, server: FakeApiServer
) -> None:
    watched = Watched()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: watched.follow(kube, PODS, fields={"spec.nodeName": "node-a"}))
        await server.until(lambda: _watches(server) == 1)
        for name, node in (("other", "node-b"), ("ours", "node-a")):
            server.add(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, "namespace": "default"},
                    "spec": {"nodeName": node},
                }
            )
        await watched.until(2)
        tasks.cancel_scope.cancel()

    assert watched.words == ["listed 0", "ADDED ours"]


def test_delays_grow_with_jitter_up_to_a_bound_and_begin_again() -> None:
    backoff = Backoff(first=1.0, most=8.0)

    delays = [backoff.next() for _ in range(40)]
    backoff.reset()

    assert 0.5 <= delays[0] <= 1.5
    assert all(4.0 <= delay <= 12.0 for delay in delays[3:])
    assert backoff.next() <= 1.5


# -- dropped fields -------------------------------------------------------------------------------


def test_what_the_server_dropped_is_named_by_its_path() -> None:
    sent = {"spec": {"devices": [{"name": "a"}, {"name": "b", "taints": [{"key": "x/y"}]}]}}
    stored = {"spec": {"devices": [{"name": "a"}, {"name": "b"}]}}

    assert dropped(sent, stored) == ("spec.devices[1].taints",)


def test_empty_and_absent_are_the_same_to_the_api() -> None:
    sent: Json = {"spec": {"devices": [], "nodeSelector": None, "allNodes": False, "text": ""}}

    assert dropped(sent, {"spec": {"driver": "added by the server"}}) == ()


def test_attributes_are_named_by_their_whole_name() -> None:
    sent = {"attributes": {"a.example/model": {"string": "x"}}}

    assert dropped(sent, {"attributes": {"other": {}}}) == ("attributes[a.example/model]",)
