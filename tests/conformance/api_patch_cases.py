"""Patches: merge, strategic merge, JSON patch and server-side apply."""

from __future__ import annotations

from typing import Any

from conformance.api_object_cases import body, created, path
from conformance.api_slice_cases import named, sliced
from conformance.exchange import APPLY, JSON_PATCH, MERGE, STRATEGIC, Answer, Api, Json


async def _patch(api: Api, sent: Any, kind: str = MERGE, **query: str) -> Answer:
    return await api.ask("PATCH", path(api), sent, kind=kind, query=query)


async def a_merge_patch_adds_changes_and_removes(api: Api) -> Any:
    await created(api, devices=named(2), labels={"keep": "1", "drop": "2"})
    changed = {"labels": {"drop": None, "new": "3"}, "annotations": {"a": "b"}}
    return api.look(
        await _patch(api, {"metadata": changed}),
        await _patch(api, {"spec": {"devices": named(1)}}),
        await _patch(api, {"spec": {"devices": None}}),
        await _patch(api, {"metadata": {"labels": None}}),
        await _patch(api, {}),
    )


async def a_merge_patch_is_judged_like_an_update(api: Api) -> Any:
    await created(api)
    return api.look(
        await _patch(api, {"metadata": {"resourceVersion": "1"}}),
        await _patch(api, {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}}),
        await _patch(api, {"metadata": {"name": "other"}}),
        await _patch(api, {"spec": {"driver": "other.example.com"}}),
        await _patch(api, {"spec": {"devices": [{"name": "GPU"}]}}),
        await _patch(api, {"spec": {"devices": "x"}}),
        await _patch(api, []),
        await _patch(api, b"{"),
        await _patch(api, {"kind": "Node"}),
    )


async def a_patch_of_nothing_is_not_found(api: Api) -> Any:
    return api.look(*[await _patch(api, {}, kind) for kind in (MERGE, STRATEGIC)])


async def a_patch_has_a_known_type(api: Api) -> Any:
    await created(api)
    return api.look(
        *[await _patch(api, {}, kind) for kind in ("application/json", "text/plain", "")]
    )


async def a_strategic_merge_knows_which_lists_have_keys(api: Api) -> Any:
    node = (await api.ask("GET", "/api/v1/nodes")).body["items"][0]["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"]}
    await created(api, devices=named(1), ownerReferences=[owner], finalizers=["example.com/a"])
    more = {"ownerReferences": [owner | {"controller": True}], "finalizers": ["example.com/b"]}
    less = {"ownerReferences": [{"uid": node["uid"], "$patch": "delete"}]}
    replaced = {"spec": {"devices": [{"name": "x"}]}}
    changes = ({"metadata": more}, {"metadata": less}, replaced, {"metadata": {"finalizers": None}})
    return [_owners(await _patch(api, change, STRATEGIC)) for change in changes]


def _owners(found: Answer) -> Any:
    metadata = found.body["metadata"]
    owners = [owner.get("controller") for owner in metadata.get("ownerReferences", ())]
    devices = [device["name"] for device in found.body["spec"]["devices"]]
    return [found.code, owners, sorted(metadata.get("finalizers", ())), devices]


async def a_json_patch_goes_step_by_step(api: Api) -> Any:
    await created(api, devices=named(2), labels={"a": "1"})
    steps: list[list[Json]] = [
        [{"op": "add", "path": "/metadata/labels/b", "value": "2"}],
        [{"op": "replace", "path": "/metadata/labels/a", "value": "3"}],
        [{"op": "remove", "path": "/spec/devices/0"}],
        [{"op": "add", "path": "/spec/devices/-", "value": {"name": "gpu-9"}}],
        [{"op": "test", "path": "/metadata/labels/a", "value": "3"}],
        [{"op": "test", "path": "/metadata/labels/a", "value": "4"}],
        [{"op": "remove", "path": "/metadata/labels/nothing"}],
        [{"op": "dance", "path": "/metadata/labels/a"}],
        [{"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/c"}],
        [{"op": "copy", "from": "/metadata/labels/c", "path": "/metadata/labels/d~1e"}],
    ]
    looks: list[Any] = []
    for step in steps:
        found = await _patch(api, step, JSON_PATCH)
        if found.code == 200:
            devices = [device["name"] for device in found.body["spec"].get("devices", ())]
            looks.append([found.code, found.body["metadata"].get("labels"), devices])
        else:
            looks.append([found.code, found.body["reason"]])
    looks += api.look(await _patch(api, {"op": "add"}, JSON_PATCH))
    return looks


# -- server-side apply ----------------------------------------------------------------------------


def _labels(api: Api, **labels: str) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": api.name("a"), "labels": labels},
    }


async def _apply(api: Api, sent: Any, manager: str = "us", **query: str) -> Answer:
    query = ({"fieldManager": manager} if manager else {}) | query
    return await api.ask("PATCH", path(api), sent, kind=APPLY, query=query)


async def an_apply_creates_what_is_not_there(api: Api) -> Any:
    return api.look(await _apply(api, body(api, devices=named(1))))


async def what_an_apply_does_not_say_any_more_is_removed(api: Api) -> Any:
    await created(api)
    first = await _apply(api, _labels(api, a="1", b="2"))
    other = await _apply(api, _labels(api, b="2"), "them")
    second = await _apply(api, _labels(api, c="3"))
    last = await _apply(api, _labels(api))
    return [one.body["metadata"].get("labels") for one in (first, other, second, last)]


async def an_apply_over_anothers_field_is_a_conflict_unless_forced(api: Api) -> Any:
    await created(api, labels={"a": "1", "b": "1"})
    return api.look(
        await _apply(api, _labels(api, a="2")),
        await _apply(api, _labels(api, a="2", b="2")),
        await _apply(api, _labels(api, a="1")),
        await _apply(api, _labels(api, a="2"), force="true"),
        await _apply(api, _labels(api, a="3"), "them"),
    )


async def an_update_takes_what_it_changes(api: Api) -> Any:
    await _apply(api, body(api, devices=named(1), labels={"a": "1", "b": "1"}))
    await _patch(api, {"metadata": {"labels": {"a": "2"}}}, fieldManager="them")
    found = await api.ask("GET", path(api))
    return [api.look(await _apply(api, _labels(api, a="1"))), _managers(found)]


def _managers(found: Answer) -> Any:
    entries = found.body["metadata"]["managedFields"]
    return sorted(
        [one["manager"], one["operation"], one.get("subresource", ""), one["fieldsV1"]]
        for one in entries
    )


async def lists_of_devices_have_one_owner(api: Api) -> Any:
    first = await _apply(api, body(api, devices=named(2)))
    sent = sliced(named(3), {"name": api.name("a")})
    return [_managers(first), api.look(await _apply(api, sent, "them"))]


async def an_apply_has_its_own_rules(api: Api) -> Any:
    made = await created(api)
    managed = made.body["metadata"]["managedFields"]
    stale = _labels(api, a="1")
    stale["metadata"] |= {"resourceVersion": "1"}
    owned = _labels(api, a="1")
    owned["metadata"] |= {"managedFields": managed}
    other = _labels(api, a="1")
    other["metadata"]["name"] = "other"
    untyped = {"metadata": {"name": api.name("a")}}
    return api.look(
        await _apply(api, _labels(api, a="1"), ""),
        await _apply(api, stale),
        await _apply(api, owned),
        await _apply(api, other),
        await _apply(api, untyped),
        await _apply(api, _labels(api, a="b c")),
        await _apply(api, {**_labels(api), "spec": {"invented": 1}}),
        await _apply(api, b"[]"),
        await _apply(api, b"metadata: {name"),
        await _apply(api, _labels(api, a="1"), "x" * 129),
    )


async def an_apply_that_says_nothing_new_makes_no_new_version(api: Api) -> Any:
    first = await _apply(api, body(api, devices=named(1)))
    again = await _apply(api, body(api, devices=named(1)))
    return [again.code, again.version == first.version]


async def a_dry_apply_changes_nothing(api: Api) -> Any:
    made = await created(api)
    tried = await _apply(api, _labels(api, a="1"), dryRun="All")
    kept = await api.ask("GET", path(api))
    return [*api.look(tried), kept.version == made.version]
