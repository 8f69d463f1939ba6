"""Nodes and the pods on them: what an agent says of its node, and how it hands it back."""

from __future__ import annotations

from typing import Any

from conformance.exchange import APPLY, MERGE, STRATEGIC, Answer, Api, Json

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
TIME = "2026-01-01T00:00:00Z"
OURS = "example.com/"
NOBODY = "00000000-0000-0000-0000-000000000000"


def _path(api: Api, below: str = "") -> str:
    return f"{NODES}/{api.name('n')}{below}"


async def _made(api: Api, **spec: Any) -> Answer:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": api.name("n")}, "spec": spec}
    return await api.ask("POST", NODES, body)


async def _gone(api: Api) -> None:
    await api.ask("DELETE", _path(api))


async def _say(
    api: Api, manager: str, below: str = "", uid: str = "", labels: Any = None, **parts: Any
) -> Answer:
    metadata = {"name": api.name("n"), **({"uid": uid} if uid else {})}
    if labels is not None:
        metadata["labels"] = labels
    body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, **parts}
    query = {"fieldManager": manager, "force": "true"}
    return await api.ask("PATCH", _path(api, below), body, kind=APPLY, query=query)


def _condition(kind: str, status: str = "True", **more: Any) -> Json:
    said = {"type": OURS + kind, "status": status, "reason": "Why", "message": "so"}
    return said | {"lastTransitionTime": TIME} | more


def _conditions(found: Answer) -> Any:
    listed = found.body.get("status", {}).get("conditions", ())
    own = (one for one in listed if one["type"].startswith(OURS))
    return [found.code, sorted(own, key=lambda one: str(one["type"]))]


def _owners(found: Answer, *managers: str) -> Any:
    entries = found.body["metadata"]["managedFields"]
    return sorted(
        [one["manager"], one["operation"], one.get("subresource", ""), one["fieldsV1"]]
        for one in entries
        if one["manager"] in managers
    )


async def _keeps(api: Api, last: Answer, manager: str, **parts: Any) -> bool:
    """Say once more what has been said; return whether nothing was written for it.

    The node controller writes to a node too, perhaps just in between.
    """
    for _ in range(10):
        before, last = last, await _say(api, manager, "/status", **parts)
        if last.version == before.version:
            return True
    return False


async def a_nodes_conditions_are_each_their_writers(api: Api) -> Any:
    await _made(api)
    first = await _say(api, "one", "/status", status={"conditions": [_condition("A")]})
    second = await _say(api, "two", "/status", status={"conditions": [_condition("B")]})
    both = [_condition("A", "False", lastHeartbeatTime=TIME), _condition("C")]
    third = await _say(api, "one", "/status", status={"conditions": both})
    same = await _keeps(api, third, "one", status={"conditions": both})
    none = await _say(api, "one", "/status", status={})
    looks = [_conditions(one) for one in (first, second, third, none)]
    await _gone(api)
    return [*looks, same, api.seen(_owners(third, "one", "two"))]


async def a_kubelet_keeps_the_conditions_of_others(api: Api) -> Any:
    await _made(api)
    await _say(api, "one", "/status", status={"conditions": [_condition("A")]})
    more = [_condition("B", lastHeartbeatTime=TIME), _condition("A", reason="Other")]
    sent = {"status": {"conditions": more}}
    merged = await api.ask(
        "PATCH", _path(api, "/status"), sent, kind=STRATEGIC, query={"fieldManager": "two"}
    )
    replaced = await api.ask("PATCH", _path(api, "/status"), sent, kind=MERGE)
    looks = [_conditions(one) for one in (merged, replaced)]
    await _gone(api)
    return [*looks, api.seen(_owners(merged, "one", "two"))]


async def a_nodes_conditions_are_not_checked(api: Api) -> Any:
    await _made(api)
    odd = [_condition("A", "Perhaps", reason="not a word")]
    said = await _say(api, "one", "/status", status={"conditions": odd})
    await _gone(api)
    return _conditions(said)


async def a_nodes_status_is_written_through_its_own_path_alone(api: Api) -> Any:
    await _made(api)
    plain = await _say(api, "one", status={"conditions": [_condition("A")]})
    beside = await _say(
        api,
        "one",
        "/status",
        labels={f"{OURS}a": "1"},
        spec={"unschedulable": True},
        status={"conditions": [_condition("A")]},
    )
    looks = [_conditions(one) for one in (plain, beside)]
    labels = {k: v for k, v in beside.body["metadata"].get("labels", {}).items() if OURS in k}
    await _gone(api)
    return [*looks, labels, beside.body["spec"].get("unschedulable")]


async def an_apply_that_says_a_uid_makes_no_node(api: Api) -> Any:
    none = await _say(api, "one", uid=NOBODY, labels={f"{OURS}a": "1"})
    below = await _say(api, "one", "/status", uid=NOBODY, status={"conditions": []})
    await _made(api)
    other = await _say(api, "one", uid=NOBODY, labels={f"{OURS}a": "1"})
    status = await _say(api, "one", "/status", uid=NOBODY, status={"conditions": []})
    await _gone(api)
    return api.look(none, below, other, status)


async def a_nodes_labels_go_with_who_said_them(api: Api) -> Any:
    await _made(api)
    looks = []
    for manager, labels in (
        ("one", {f"{OURS}a": "1", f"{OURS}b": "1"}),
        ("two", {f"{OURS}b": "1"}),
        ("one", {f"{OURS}c": ""}),
        ("one", {f"{OURS}c": "x" * 64}),
        ("one", {f"{OURS}c": "-x"}),
        ("one", {"a/b/c": "x"}),
        ("one", {}),
    ):
        found = await _say(api, manager, labels=labels)
        own = {k: v for k, v in found.body["metadata"].get("labels", {}).items() if OURS in k}
        looks.append([found.code, own] if found.code == 200 else api.look(found))
    await _gone(api)
    return looks


# -- taints and cordons ---------------------------------------------------------------------------


def _taint(key: str, effect: str = "NoSchedule", **more: Any) -> Json:
    return {"key": OURS + key, "effect": effect, **more}


def _taints(found: Answer) -> Any:
    listed = found.body["spec"].get("taints", ()) if found.code in (200, 201) else ()
    return [found.code, [one for one in listed if one["key"].startswith(OURS)]]


async def _patched(api: Api, spec: Json, kind: str = MERGE, **metadata: Any) -> Answer:
    sent: Json = {"spec": spec, **({"metadata": metadata} if metadata else {})}
    return await api.ask("PATCH", _path(api), sent, kind=kind, query={"fieldManager": "one"})


async def a_nodes_taints_are_one_list(api: Api) -> Any:
    await _made(api, taints=[_taint("a", value="1")])
    looks = []
    for kind in (STRATEGIC, MERGE):
        looks.append(_taints(await _patched(api, {"taints": [_taint("b")]}, kind)))
        looks.append(_taints(await _patched(api, {"taints": [_taint("a")]}, kind)))
    await _say(api, "two", spec={"taints": [_taint("c")]})
    applied = await _say(api, "three", spec={"taints": [_taint("d")]})
    looks.append(_taints(applied))
    looks.append(api.seen(_owners(applied, "two", "three")))
    looks.append(_taints(await _patched(api, {"taints": None})))
    await _gone(api)
    return looks


async def a_nodes_taints_are_checked(api: Api) -> Any:
    await _made(api)
    refused = (
        [_taint("a b")],
        [{"key": "a", "value": "b c", "effect": "NoSchedule"}],
        [_taint("a", "Explode")],
        [_taint("a", "")],
        [{"effect": "NoSchedule"}],
        [_taint("a"), _taint("a", value="2")],
        [_taint("a"), _taint("a", "NoExecute"), _taint("b", "PreferNoSchedule")],
    )
    found = [await _patched(api, {"taints": one}) for one in refused]
    looks = [_taints(one) if one.code == 200 else api.look(one) for one in found]
    await _gone(api)
    return looks


async def a_node_is_changed_from_the_state_that_was_read(api: Api) -> Any:
    made = await _made(api)
    note = {f"{OURS}cordoned": "yes"}
    first = await _patched(api, {"unschedulable": True}, annotations=note)
    stale = await _patched(api, {"unschedulable": None}, resourceVersion=made.version)
    other = await _patched(api, {"unschedulable": None}, uid=NOBODY)
    back = await _from_now(api, {"unschedulable": None}, annotations={f"{OURS}cordoned": None})
    false = await _patched(api, {"unschedulable": False})
    await _gone(api)
    shown = [
        [one.code, one.body["spec"].get("unschedulable"), _own_notes(one)]
        for one in (first, back, false)
    ]
    return [shown, stale.code, api.look(other)]


async def _from_now(api: Api, spec: Json, **metadata: Any) -> Answer:
    """Patch what was read just before, until no controller comes in between."""
    while True:
        version = (await api.ask("GET", _path(api))).version
        found = await _patched(api, spec, resourceVersion=version, **metadata)
        if found.code != 409:
            return found


def _own_notes(found: Answer) -> Json:
    notes = found.body["metadata"].get("annotations", {})
    return {key: value for key, value in notes.items() if OURS in key}


# -- pods -----------------------------------------------------------------------------------------


async def _pod(api: Api, word: str, **spec: Any) -> Answer:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": api.name(word)},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "automountServiceAccountToken": False,
            **spec,
        },
    }
    return await api.ask("POST", PODS, body)


async def _delete(api: Api, word: str, grace: int | None = None, uid: str = "") -> Any:
    options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    if uid:
        options["preconditions"] = {"uid": uid}
    found = await api.ask("DELETE", f"{PODS}/{api.name(word)}", options)
    if found.code != 200:
        return api.look(found)[0]
    metadata = found.body["metadata"]
    going = "deletionTimestamp" in metadata
    return [found.body["kind"], going, metadata.get("deletionGracePeriodSeconds")]


async def a_pods_grace_is_shortened_and_never_lengthened(api: Api) -> Any:
    made = await _pod(api, "p", nodeName=api.name("n"), terminationGracePeriodSeconds=600)
    looks = [await _delete(api, "p", 30, NOBODY), await _delete(api, "p", 300, made.uid)]
    looks += [await _delete(api, "p", grace) for grace in (500, 30, 30, 0)]
    gone = await api.ask("GET", f"{PODS}/{api.name('p')}")
    return [*looks, gone.code]


async def a_pods_own_grace_counts_where_none_is_said(api: Api) -> Any:
    looks: list[Any] = []
    for word, spec in (("a", {}), ("b", {"terminationGracePeriodSeconds": 5}), ("c", {})):
        node = {"schedulerName": "nobody"} if word == "c" else {"nodeName": api.name("n")}
        await _pod(api, word, **spec, **node)
        looks.append(await _delete(api, word))
        await _delete(api, word, 0)
    return looks


async def a_pod_is_evicted(api: Api) -> Any:
    made = await _pod(api, "p", nodeName=api.name("n"))

    async def evict(word: str, uid: str, **options: Any) -> Answer:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": api.name(word), "namespace": "default"},
            "deleteOptions": {"preconditions": {"uid": uid}, **options},
        }
        return await api.ask("POST", f"{PODS}/{api.name(word)}/eviction", body)

    namesake = await evict("p", NOBODY, gracePeriodSeconds=20)
    none = await evict("q", made.uid)
    done = await evict("p", made.uid, gracePeriodSeconds=20)
    left = await api.ask("GET", f"{PODS}/{api.name('p')}")
    grace = left.body["metadata"].get("deletionGracePeriodSeconds")
    await _delete(api, "p", 0)
    return [*api.look(namesake, none, done), grace]
