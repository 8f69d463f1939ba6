"""The agent asks the API server for what its role allows, and for nothing else."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import pods
from cluster.agent import ROOT
from cluster.waiting import until
from cluster.witness import RESOURCES, Namespace
from cluster.world import ADAPTER, LIKEN, WHOLE, World

Call = tuple[str, str]
"""A verb, and a resource with its subresource."""
IMPLIED: set[Call] = {
    # Judged by the API server inside a patch of resourceclaims/status, from 1.36.
    ("associated-node:update", "resourceclaims/driver"),
    ("associated-node:patch", "resourceclaims/driver"),
}


def allowed() -> set[Call]:
    documents = yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text())
    role = next(one for one in documents if one["kind"] == "ClusterRole")
    return {
        (verb, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


def audited(world: World) -> list[dict[str, Any]]:
    lines = (world.cluster.logs / "audit.log").read_text().splitlines()
    return [json.loads(line) for line in lines]


def called(entry: dict[str, Any]) -> Call | None:
    """Return what was asked for; None for the API's own lists of groups and resources."""
    about = entry.get("objectRef")
    if about is None:
        return None
    below = f"/{about['subresource']}" if about.get("subresource") else ""
    return entry["verb"], about["resource"] + below


def test_the_calls_that_the_agent_made_are_the_calls_that_its_role_allows(
    world: World, namespace: Namespace
) -> None:
    begun = len(audited(world))
    world.agent.kill()
    [old] = world.witness.slices(LIKEN)
    world.witness.delete("ResourceSlice", old["metadata"]["name"])
    world.agent.start()
    world.until_published(WHOLE)
    namespace.create(pods.claim("adapter", adapter="zigbee-adapter"))
    namespace.create(pods.pod("p", {"adapter": "adapter"}))
    namespace.until_running("p")
    until("status.devices", lambda: namespace.claim("adapter")["status"].get("devices"))
    namespace.delete_pods("p")
    world.machine.unplug_adapter()
    world.until_published(WHOLE - {ADAPTER})
    surplus = {"apiVersion": old["apiVersion"], "kind": old["kind"], "spec": old["spec"]}
    world.witness.create(surplus | {"metadata": {"name": "surplus"}})
    until("it is gone", lambda: world.witness.get("ResourceSlice", "surplus") is None)

    entries = audited(world)[begun:]

    refused = [e["requestURI"] for e in entries if e["responseStatus"]["code"] in (401, 403)]
    assert refused == []
    assert {call for entry in entries if (call := called(entry))} == allowed() - IMPLIED


def test_the_server_lets_the_agent_write_its_own_drivers_devices_only(
    world: World, namespace: Namespace
) -> None:
    if world.version < (1, 36):
        pytest.skip("before 1.36 whoever may write a claim's status may write all of it")
    namespace.create(pods.claim("adapter", adapter="zigbee-adapter"))
    namespace.create(pods.pod("p", {"adapter": "adapter"}))
    namespace.until_running("p")
    [own] = until("status.devices", lambda: namespace.claim("adapter")["status"].get("devices"))

    assert own["driver"] == LIKEN
    assert as_agent(world, namespace, [own]) == 200
    assert as_agent(world, namespace, [own | {"driver": "other.example.com"}]) in (403, 422)
    assert namespace.claim("adapter")["status"]["devices"] == [own]


def as_agent(world: World, namespace: Namespace, devices: list[dict[str, Any]]) -> int:
    """Patch a claim's status with the agent's own token; return the answer's code."""
    token = Path(world.agent.environment["HARDPOINT_KUBE__TOKEN_FILE"]).read_text()
    path = f"/apis/{RESOURCES}/namespaces/{namespace.name}/resourceclaims/adapter/status"
    request = urllib.request.Request(
        world.cluster.server + path,
        method="PATCH",
        data=json.dumps({"status": {"devices": devices}}).encode(),
        headers={
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/merge-patch+json",
        },
    )
    trust = ssl.create_default_context(cafile=str(world.cluster.authority))
    try:
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
