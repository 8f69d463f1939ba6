"""The fake API server refuses, drops and answers what the real one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from hardpoint.testing._api_status import ApiProblem
from hardpoint.testing.api_server import FakeApiServer

Json = dict[str, Any]


def sliced(devices: list[Json] | None = None, **spec: Any) -> Json:
    whole: Json = {
        "driver": "hardpoint.dev",
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "node-a",
        **spec,
    }
    if devices is not None:
        whole["devices"] = devices
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "slice-1"},
        "spec": {key: value for key, value in whole.items() if value is not None},
    }


def device(**fields: Any) -> Json:
    return sliced([{"name": "gpu-0", **fields}])


def named(count: int, **fields: Any) -> list[Json]:
    return [{"name": f"gpu-{number}", **fields} for number in range(count)]


def taints(count: int, effect: str = "NoSchedule") -> list[Json]:
    return [{"key": f"hardpoint.dev/t{number}", "effect": effect} for number in range(count)]


def consumes(*sets: str, counters: int = 1) -> list[Json]:
    amounts = {f"c{number}": {"value": "1"} for number in range(counters)}
    return [{"counterSet": name, "counters": amounts} for name in sets]


def sets(count: int, counters: int = 1) -> list[Json]:
    amounts = {f"c{number}": {"value": "1"} for number in range(counters)}
    return [{"name": f"set-{number}", "counters": amounts} for number in range(count)]


@pytest.mark.parametrize(
    "body",
    [
        device(capacity={"c": {"value": "lots"}}),
        device(attributes={"a": {"int": 2**63}}),
        device(attributes={"a": {"int": "1"}}),
        device(allowMultipleAllocations="yes"),
        sliced(devices={"name": "x"}),  # type: ignore[arg-type]
    ],
)
async def test_what_cannot_be_decoded_is_a_bad_request_without_fields(body: Json) -> None:
    async with FakeApiServer() as server:
        with pytest.raises(ApiProblem) as refused:
            server.add(body)

    assert refused.value.code == 400
    assert not refused.value.causes


async def test_quantities_are_stored_in_one_spelling_and_unknown_fields_not_at_all() -> None:
    async with FakeApiServer() as server:
        stored = server.add(device(capacity={"memory": {"value": "1024Mi"}}, invented=True))

    assert stored["spec"]["devices"] == [
        {"name": "gpu-0", "capacity": {"memory": {"value": "1Gi"}}}
    ]


# -- releases -------------------------------------------------------------------------------------

GATED: dict[str, Callable[[], Json]] = {
    "taints": lambda: device(taints=taints(1)),
    "consumesCounters": lambda: device(consumesCounters=consumes("a")),
    "allowMultipleAllocations": lambda: device(allowMultipleAllocations=True),
    "bindsToNode": lambda: device(bindsToNode=True),
}


@pytest.mark.parametrize("field", GATED)
@pytest.mark.parametrize("minor", [34, 35, 36, 37])
async def test_a_release_drops_what_its_gates_turn_off(field: str, minor: int) -> None:
    async with FakeApiServer(minor=minor) as server:
        stored = server.add(GATED[field]())

    assert (field in stored["spec"]["devices"][0]) is (minor >= 36)


async def test_shared_counters_are_dropped_with_their_gate() -> None:
    async with FakeApiServer(gates={"DRAPartitionableDevices": False}) as server:
        stored = server.add(sliced(sharedCounters=sets(1)))

    assert "sharedCounters" not in stored["spec"]


async def test_a_list_attribute_whose_gate_is_off_leaves_no_value() -> None:
    async with FakeApiServer(minor=37) as server:
        with pytest.raises(ApiProblem) as refused:
            server.add(device(attributes={"a": {"ints": [1]}}))

    assert refused.value.causes[0].field == "spec.devices[0].attributes[a]"


async def test_an_older_release_knows_fewer_taints_and_no_separate_counter_slices() -> None:
    on = {"DRADeviceTaints": True, "DRAPartitionableDevices": True}
    async with FakeApiServer(minor=34, gates=on) as server:
        with pytest.raises(ApiProblem, match="at most 4"):
            server.add(device(taints=taints(5)))
        with pytest.raises(ApiProblem, match="must not exceed 32"):
            server.add(sliced(sharedCounters=sets(2, counters=20)))
        server.add(sliced(named(100, taints=taints(1))))


async def test_a_taint_is_given_the_time_it_was_added() -> None:
    async with FakeApiServer() as server:
        stored = server.add(device(taints=taints(1)))

    assert stored["spec"]["devices"][0]["taints"][0]["timeAdded"].endswith("Z")


async def test_one_object_is_seen_in_the_shape_of_each_version() -> None:
    beta = sliced([{"name": "gpu-0", "basic": {"attributes": {"a": {"int": 1}}}}])
    beta["apiVersion"] = "resource.k8s.io/v1beta1"
    async with FakeApiServer(versions=("v1", "v1beta2", "v1beta1")) as server:
        server.add(beta)
        shapes = {
            v: server.items("resourceslices", v)[0]["spec"]["devices"][0] for v in server.versions
        }

    flat = {"name": "gpu-0", "attributes": {"a": {"int": 1}}}
    assert shapes == {
        "v1": flat,
        "v1beta2": flat,
        "v1beta1": {"name": "gpu-0", "basic": {"attributes": {"a": {"int": 1}}}},
    }


@pytest.mark.parametrize(
    ("minor", "status"), [(32, [404, 404, 200]), (33, [404, 200, 200]), (34, [200, 404, 404])]
)
async def test_a_release_serves_its_own_versions(minor: int, status: list[int]) -> None:
    async with FakeApiServer(minor=minor) as server, httpx2.AsyncClient() as client:
        base = f"{server.url}/apis/resource.k8s.io"
        found = [
            (await client.get(f"{base}/{version}/resourceslices")).status_code
            for version in ("v1", "v1beta2", "v1beta1")
        ]

    assert found == status


# -- what may not change, and what goes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "value", "field"),
    [
        ("driver", "other.dev", "spec.driver"),
        ("nodeName", "node-b", "spec.nodeName"),
        ("pool", {"name": "b", "resourceSliceCount": 1}, "spec.pool.name"),
    ],
)
async def test_what_a_slice_is_of_does_not_change(part: str, value: Any, field: str) -> None:
    async with FakeApiServer() as server, httpx2.AsyncClient() as client:
        stored = server.add(sliced())
        stored["spec"][part] = value
        url = f"{server.url}/apis/resource.k8s.io/v1/resourceslices/slice-1"
        answer = await client.put(url, json=stored)

    assert answer.status_code == 422
    assert answer.json()["details"]["causes"][0]["field"] == field


async def test_nothing_happens_when_nothing_is_different() -> None:
    async with FakeApiServer() as server, httpx2.AsyncClient() as client:
        stored = server.add(sliced(named(2)))
        url = f"{server.url}/apis/resource.k8s.io/v1/resourceslices/slice-1"
        answer = await client.put(url, json=stored)

    assert answer.json()["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]


async def test_a_name_is_made_from_a_prefix() -> None:
    body = {**sliced(), "metadata": {"generateName": "x" * 80}}
    async with FakeApiServer() as server:
        stored = server.add(body)

    assert stored["metadata"]["name"].startswith("x" * 58)
    assert len(stored["metadata"]["name"]) == 63


async def test_a_pod_that_runs_gets_its_grace() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": "node-a"},
    }
    async with FakeApiServer() as server, httpx2.AsyncClient() as client:
        server.add(pod)
        url = f"{server.url}/api/v1/namespaces/default/pods/p"
        first = await client.delete(url)
        going = server.get("pods", "p", "default")["metadata"]
        await client.delete(url, params={"gracePeriodSeconds": "0"})

        assert first.json()["metadata"]["deletionGracePeriodSeconds"] == 30
        assert going["deletionTimestamp"]
        assert server.items("pods") == []


async def test_a_claim_with_a_finalizer_waits_for_it() -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default", "finalizers": ["example.com/wait"]},
        "spec": {"devices": {"requests": [{"name": "m", "exactly": {"deviceClassName": "gpu"}}]}},
    }
    async with FakeApiServer() as server, httpx2.AsyncClient() as client:
        server.add(claim)
        url = f"{server.url}/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"
        await client.delete(url)
        going = server.get("resourceclaims", "c", "default")
        going["metadata"]["finalizers"] = []
        await client.put(url, json=going)

        assert going["metadata"]["deletionTimestamp"]
        assert going["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1
        assert server.items("resourceclaims") == []


async def test_a_claim_reports_on_allocated_devices_alone() -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "m", "exactly": {"deviceClassName": "gpu"}}]}},
    }
    async with FakeApiServer() as server, httpx2.AsyncClient() as client:
        server.add(claim)
        result = {"request": "m", "driver": "d.dev", "pool": "node-a", "device": "gpu-0"}
        server.allocate("default", "c", [result])
        body = server.get("resourceclaims", "c", "default")
        body["status"]["devices"] = [{"driver": "d.dev", "pool": "node-a", "device": "gpu-1"}]
        url = f"{server.url}/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c/status"
        refused = await client.put(url, json=body)
        body["spec"] = {}
        body["status"]["devices"][0]["device"] = "gpu-0"
        kept = await client.put(url, json=body)

    assert refused.json()["details"]["causes"][0]["field"] == "status.devices[0]"
    assert kept.status_code == 200
    assert kept.json()["spec"] == server.get("resourceclaims", "c", "default")["spec"]


async def test_an_apply_over_anothers_field_is_a_conflict_unless_forced() -> None:
    async with FakeApiServer() as server, httpx2.AsyncClient() as client:
        server.add_node("node-a", {"zone": "a"})
        url = f"{server.url}/api/v1/nodes/node-a"
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "node-a", "labels": {"zone": "b"}},
        }

        async def apply(**query: str) -> httpx2.Response:
            headers = {"Content-Type": "application/apply-patch+yaml"}
            params = {"fieldManager": "us", **query}
            return await client.patch(url, json=body, headers=headers, params=params)

        refused, forced = await apply(), await apply(force="true")
        body["metadata"] = {"name": "node-a"}
        released = await apply()

    assert refused.status_code == 409
    assert refused.json()["details"]["causes"][0]["reason"] == "FieldManagerConflict"
    assert forced.json()["metadata"]["labels"] == {"zone": "b"}
    assert "zone" not in released.json()["metadata"].get("labels", {})


# -- who may, and what was asked -------------------------------------------------------------------


async def test_a_wrong_token_is_unauthorized_and_a_denied_verb_forbidden() -> None:
    async with FakeApiServer() as server, httpx2.AsyncClient() as client:
        server.require_token("good")
        url = f"{server.url}/apis/resource.k8s.io/v1/resourceslices"
        bad = await client.get(url, headers={"Authorization": "Bearer bad"})
        good = await client.get(url, headers={"Authorization": "Bearer good"})
        server.require_token()
        server.deny("create", "resourceslices")
        denied = await client.post(url, json=sliced())

    assert (bad.status_code, good.status_code, denied.status_code) == (401, 200, 403)
    assert 'cannot create resource "resourceslices"' in denied.json()["message"]


async def test_a_server_that_comes_back_forbids_everything_for_a_moment() -> None:
    async with FakeApiServer(settling=60) as server, httpx2.AsyncClient() as client:
        server.down = True
        server.down = False
        url = f"{server.url}/apis/resource.k8s.io/v1/resourceslices"
        forbidden, well = await client.get(url), await client.get(f"{server.url}/readyz")

    assert (forbidden.status_code, forbidden.json()["reason"]) == (403, "Forbidden")
    assert (well.status_code, well.text) == (200, "ok")


async def test_a_wipe_takes_one_nodes_slices() -> None:
    async with FakeApiServer() as server:
        server.add(sliced())
        other = sliced(nodeName="node-b", pool={"name": "node-b", "resourceSliceCount": 1})
        server.add({**other, "metadata": {"name": "slice-2"}})

        assert server.wipe("node-a", "another.dev") == 0
        assert server.wipe("node-a") == 1
        assert [item["metadata"]["name"] for item in server.items("resourceslices")] == ["slice-2"]


async def test_an_unknown_field_selector_is_refused() -> None:
    async with FakeApiServer(minor=36) as server, httpx2.AsyncClient() as client:
        url = f"{server.url}/apis/resource.k8s.io/v1/resourceslices"
        unknown = await client.get(url, params={"fieldSelector": "spec.color=red"})
        too_new = await client.get(url, params={"fieldSelector": "spec.pool.name=node-a"})

    assert (unknown.status_code, too_new.status_code) == (400, 400)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"x"', b"\xff", b'{"metadata": 3}', b'{"metadata": {"name": 3}}', b"{}"],
)
async def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    async with FakeApiServer() as server, httpx2.AsyncClient() as client:
        answer = await client.post(
            f"{server.url}/apis/resource.k8s.io/v1/resourceslices", content=raw
        )

        assert answer.status_code in (400, 422, 500)
        assert answer.json()["kind"] == "Status"
        assert (await client.get(f"{server.url}/version")).status_code == 200


async def test_a_body_of_many_megabytes_is_too_large() -> None:
    async with FakeApiServer() as server, httpx2.AsyncClient() as client:
        url = f"{server.url}/apis/resource.k8s.io/v1/resourceslices"
        answer = await client.post(url, content=b" " * (4 << 20))

    assert answer.status_code == 413


async def test_nonsense_on_the_wire_costs_only_its_connection() -> None:
    import anyio

    async with FakeApiServer() as server, httpx2.AsyncClient() as client:
        port = int(server.url.rsplit(":", 1)[1])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"\x16\x03\x01\x00nonsense\r\n\r\n")
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()

        assert (await client.get(f"{server.url}/livez")).status_code == 200
