"""A ResourceClaim becomes what the agent is asked to hold, or a sentence why not."""

from __future__ import annotations

from typing import Any

import pytest
from dra_node import DRIVER, KEY, NODE, claim, result

from hardpoint.errors import HoldDenied, KubeNotFound, KubeUnreachable, WrongClaim
from hardpoint.kube import Kube
from hardpoint.model import ClaimKey
from hardpoint.testing.api_server import FakeApiServer
from hardpoint_dra.claims import ClaimReader, to_claim


def _opaque(source: str, value: str, *requests: str, driver: str = DRIVER) -> dict[str, Any]:
    opaque = {"driver": driver, "parameters": {"kind": "K", "value": value}}
    return {"source": source, "requests": list(requests), "opaque": opaque}


def _values(found: dict[str, Any], index: int = 0) -> list[str]:
    return [block["value"] for block in to_claim(KEY, found, NODE).allotments[index].parameters]


def test_results_of_our_driver_are_taken_and_others_are_not_looked_at() -> None:
    found = claim(
        result(driver="other.example.com", pool="elsewhere"),
        result("pci-1", request="main/sub", shareID="s", adminAccess=True),
        result("pci-2", consumedCapacity={"memory": "4Gi", "slots": 2}),
    )

    first, second = to_claim(KEY, found, NODE).allotments

    assert (first.device, first.request, first.base_request) == ("pci-1", "main/sub", "main")
    assert (first.share_id, first.admin_access, first.pool) == ("s", True, NODE)
    assert (second.share_id, second.admin_access) == ("", False)
    assert second.consumed == {"memory": "4Gi", "slots": "2"}


def test_a_claim_with_nothing_of_ours_is_empty() -> None:
    found = claim(result(driver="other.example.com"))

    assert to_claim(KEY, found, NODE).allotments == ()


def test_another_uid_under_the_same_name_is_another_claim() -> None:
    with pytest.raises(WrongClaim, match="asked for claim UID uid-1, the API server has uid-2"):
        to_claim(KEY, claim(uid="uid-2"), NODE)


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}])
def test_a_claim_that_is_not_allocated_is_refused(status: Any) -> None:
    with pytest.raises(HoldDenied, match="claim default/gpu is not allocated"):
        to_claim(KEY, {**claim(), "status": status}, NODE)


def test_a_device_of_another_nodes_pool_is_refused() -> None:
    with pytest.raises(HoldDenied, match="pci-0 is of pool node-2, this node's pool is node-1"):
        to_claim(KEY, claim(result(pool="node-2")), NODE)


def test_the_claims_parameters_win_over_its_class_in_whatever_order() -> None:
    config = [
        _opaque("FromClaim", "claim-1"),
        _opaque("FromClass", "class"),
        _opaque("FromClaim", "claim-2"),
    ]

    assert _values(claim(config=config)) == ["class", "claim-1", "claim-2"]


def test_parameters_are_for_the_requests_they_name_and_their_sub_requests() -> None:
    config = [
        _opaque("FromClaim", "all"),
        _opaque("FromClaim", "main", "main"),
        _opaque("FromClaim", "sub", "main/sub"),
        _opaque("FromClaim", "other", "main/other", "r"),
        _opaque("FromClaim", "foreign", driver="other.example.com"),
        {"source": "FromClaim", "requests": []},
    ]
    found = claim(result(request="main/sub"), result("pci-1", request="r"), config=config)

    assert _values(found) == ["all", "main", "sub"]
    assert _values(found, 1) == ["all", "other"]


def test_parameters_that_name_a_request_are_told_apart() -> None:
    everyone = to_claim(KEY, claim(config=[_opaque("FromClass", "a")]), NODE)
    named = to_claim(KEY, claim(config=[_opaque("FromClass", "a", "r")]), NODE)

    assert [everyone.allotments[0].named, named.allotments[0].named] == [False, True]


def test_parameters_that_are_no_object_are_refused() -> None:
    config = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": "fast"}}]

    with pytest.raises(HoldDenied, match="are no object: str") as refused:
        to_claim(KEY, claim(config=config), NODE)

    assert refused.value.reason == "bad-parameters"


def test_a_claim_made_from_a_template_knows_its_name_in_the_pod() -> None:
    found = claim(annotations={"resource.kubernetes.io/pod-claim-name": "gpu"})

    assert to_claim(KEY, found, NODE).pod_claim_name == "gpu"
    assert to_claim(KEY, claim(), NODE).pod_claim_name == ""


# -- from an API server ---------------------------------------------------------------------------


def _add(server: FakeApiServer) -> ClaimKey:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    body = {
        "apiVersion": f"resource.k8s.io/{server.versions[0]}",
        "kind": "ResourceClaim",
        "metadata": {"name": "gpu", "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    if server.versions[0] == "v1beta1":
        body["spec"] = {"devices": {"requests": [{"name": "r", "deviceClassName": "gpu"}]}}
    added = server.add(body)
    server.allocate("default", "gpu", [result()])
    return ClaimKey(added["metadata"]["uid"], "default", "gpu", DRIVER)


@pytest.mark.parametrize("versions", [("v1", "v1beta2", "v1beta1"), ("v1beta2",), ("v1beta1",)])
async def test_a_claim_is_read_in_the_newest_version_that_is_served(
    versions: tuple[str, ...],
) -> None:
    async with FakeApiServer(versions=versions) as server, Kube.at(server.url) as kube:
        key = _add(server)

        found = await ClaimReader(lambda: kube, NODE).read(key)

        assert [one.device for one in found.allotments] == ["pci-0"]
        assert f"/{versions[0]}/" in server.requests[-1].path


async def test_a_claim_that_is_gone_is_said_to_be_gone() -> None:
    async with FakeApiServer() as server, Kube.at(server.url) as kube:
        with pytest.raises(HoldDenied, match="claim default/gpu does not exist"):
            await ClaimReader(lambda: kube, NODE).read(KEY)


async def test_a_server_without_dra_is_named_as_the_reason() -> None:
    async with FakeApiServer(versions=("v1alpha3",)) as server, Kube.at(server.url) as kube:
        with pytest.raises(KubeNotFound, match=r"does not serve resource\.k8s\.io: is DRA enabled"):
            await ClaimReader(lambda: kube, NODE).read(KEY)


async def test_a_server_that_was_upgraded_meanwhile_is_asked_in_its_new_version() -> None:
    async with FakeApiServer(versions=("v1beta1",)) as server, Kube.at(server.url) as kube:
        key = _add(server)
        reader = ClaimReader(lambda: kube, NODE)
        await reader.read(key)
        server.versions = ("v1",)

        assert (await reader.read(key)).key == key


async def test_without_a_server_the_claim_cannot_be_read() -> None:
    def connect() -> Kube:
        raise KubeUnreachable("not in a pod")

    with pytest.raises(KubeUnreachable):
        await ClaimReader(connect, NODE).read(KEY)
