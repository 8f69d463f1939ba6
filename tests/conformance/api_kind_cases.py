"""Claims and their status, taint rules, nodes and events: what differs from kind to kind."""

from __future__ import annotations

from typing import Any

from conformance.exchange import APPLY, GROUP, MERGE, STRATEGIC, Answer, Api, Json

CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
RULES = f"{GROUP}/devicetaintrules"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
TYPE = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
TIME = "2026-01-01T00:00:00Z"


def claim(api: Api, word: str = "c", **metadata: Any) -> Json:
    asked = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}
    return {**TYPE, "metadata": {"name": api.name(word), **metadata}, "spec": {"devices": asked}}


def result(device: str, **more: Any) -> Json:
    found = {"request": "gpu", "driver": "d.example.com", "pool": "node-a", "device": device}
    return found | more


def report(device: str, **more: Any) -> Json:
    return {"driver": "d.example.com", "pool": "node-a", "device": device, **more}


def condition(kind: str = "Ready", **more: Any) -> Json:
    found = {"type": kind, "status": "True", "reason": "Fine", "message": ""}
    return found | {"lastTransitionTime": TIME} | more


async def _allocated(api: Api, *devices: str) -> Answer:
    made = await api.ask("POST", CLAIMS, claim(api))
    results = [result(device) for device in devices]
    status = {"allocation": {"devices": {"results": results}}}
    return await api.ask("PUT", f"{_path(api)}/status", made.body | {"status": status})


def _path(api: Api, word: str = "c") -> str:
    return f"{CLAIMS}/{api.name(word)}"


async def _say(api: Api, manager: str, *reports: Json, **query: str) -> Answer:
    named = {"name": api.name("c"), "namespace": "default"}
    body = {**TYPE, "metadata": named, "status": {"devices": list(reports)}}
    asked = {"fieldManager": manager, "force": "true"} | query
    return await api.ask("PATCH", f"{_path(api)}/status", body, kind=APPLY, query=asked)


async def a_claim_asks_for_one_device_unless_it_says_otherwise(api: Api) -> Any:
    return api.look(await api.ask("POST", CLAIMS, claim(api)))


async def versions_that_are_off_are_not_served(api: Api) -> Any:
    await api.ask("POST", CLAIMS, claim(api))
    looks = []
    for version in ("v1beta2", "v1beta1"):
        looks += api.look(await api.ask("GET", _path(api).replace("/v1/", f"/{version}/")))
    return looks


async def a_claim_needs_its_namespace(api: Api) -> Any:
    elsewhere = f"{GROUP}/namespaces/{api.name('ns')}/resourceclaims"
    return api.look(
        await api.ask("POST", elsewhere, claim(api)),
        await api.ask("POST", CLAIMS, claim(api, namespace="kube-system")),
        await api.ask("GET", elsewhere),
        await api.ask("GET", f"{elsewhere}/c"),
    )


async def a_claims_status_is_written_through_its_own_path_alone(api: Api) -> Any:
    status = {"allocation": {"devices": {"results": [result("gpu-0")]}}}
    made = await api.ask("POST", CLAIMS, claim(api) | {"status": status})
    ignored = await api.ask("PUT", _path(api), made.body | {"status": status})
    labelled = made.body["metadata"] | {"labels": {"a": "b"}}
    changed = ignored.body | {"status": status, "metadata": labelled}
    written = await api.ask("PUT", f"{_path(api)}/status", changed)
    read = await api.ask("GET", f"{_path(api)}/status")
    return [
        [one.code, one.body["metadata"].get("labels"), one.body["status"]]
        for one in (made, ignored, written, read)
    ]


async def what_a_claim_asks_for_does_not_change(api: Api) -> Any:
    made = (await api.ask("POST", CLAIMS, claim(api))).body
    other = {"requests": [{"name": "other", "exactly": {"deviceClassName": "gpu"}}]}
    changed = await api.ask("PUT", _path(api), made | {"spec": {"devices": other}})
    return [changed.code, changed.body["details"]["causes"][0]["field"]]


async def an_allocation_is_made_once(api: Api) -> Any:
    made = (await _allocated(api, "gpu-0")).body
    other = {"allocation": {"devices": {"results": [result("gpu-1")]}}}
    changed = await api.ask("PUT", f"{_path(api)}/status", made | {"status": other})
    taken = await api.ask("PUT", f"{_path(api)}/status", made | {"status": {}})
    return [changed.code, changed.body["details"]["causes"][0]["field"], api.look(taken)]


async def a_driver_reports_on_allocated_devices_alone(api: Api) -> Any:
    await _allocated(api, "gpu-0", "gpu-1")
    data = {"apiVersion": "example.com/v1", "kind": "Given", "a": [1, {"b": None}]}
    good = report("gpu-0", conditions=[condition()], data=data)
    return api.look(
        await _say(api, "one", good),
        await _say(api, "one", report("gpu-2")),
        await _say(api, "one", report("gpu-0", data={"a": "b" * (10 << 10)})),
        await _say(api, "one", report("gpu-0", conditions=[condition(str(n)) for n in range(9)])),
        await _say(api, "one", report("gpu-0", conditions=[condition(status="Perhaps")])),
        await _say(api, "one", report("gpu-0", conditions=[condition(reason="not fine")])),
        await _say(api, "one", report("gpu-0", conditions=[{"type": "Ready"}])),
        await _say(api, "one", report("gpu-0", networkData={"ips": ["10.0.0.1"]})),
        await _say(api, "one", report("gpu-0", networkData={"ips": ["10.0.0.1/24", "fe80::1/64"]})),
        await _say(api, "one", report("gpu-0", data=[1])),
    )


async def two_drivers_share_a_claims_list_of_devices(api: Api) -> Any:
    await _allocated(api, "gpu-0", "gpu-1")
    first = await _say(api, "one", report("gpu-0", conditions=[condition()]))
    second = await _say(api, "two", report("gpu-1"))
    gone = await _say(api, "one")
    shown = [sorted(_reported(found)) for found in (first, second, gone)]
    managers = sorted(
        [one["manager"], one["operation"], one.get("subresource", "")]
        for one in gone.body["metadata"]["managedFields"]
    )
    return [shown, managers]


def _reported(found: Answer) -> list[str]:
    return [one["device"] for one in found.body["status"].get("devices", ())]


async def a_report_is_of_the_claim_that_was_meant(api: Api) -> Any:
    await _allocated(api, "gpu-0")
    named = {"name": api.name("c"), "uid": "00000000-0000-0000-0000-000000000000"}
    body = {**TYPE, "metadata": named, "status": {"devices": [report("gpu-0")]}}
    query = {"fieldManager": "one", "force": "true"}
    where = f"{_path(api)}/status"
    gone = where.replace(api.name("c"), api.name("gone"))
    renamed = body | {"metadata": {"name": api.name("gone")}}
    return api.look(
        await api.ask("PATCH", where, body, kind=APPLY, query=query),
        await api.ask("PATCH", gone, renamed, kind=APPLY, query=query),
    )


async def reports_go_with_the_allocation(api: Api) -> Any:
    await _allocated(api, "gpu-0")
    said = (await _say(api, "one", report("gpu-0"))).body
    kept = {"devices": said["status"]["devices"]}
    put = await api.ask("PUT", f"{_path(api)}/status", said | {"status": kept})
    return [put.code, put.body["status"]]


async def a_claim_is_reserved_once_it_is_allocated(api: Api) -> Any:
    made = (await api.ask("POST", CLAIMS, claim(api))).body
    pods = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
    early = await api.ask("PUT", f"{_path(api)}/status", made | {"status": pods})
    twice = pods | {"reservedFor": pods["reservedFor"] * 2}
    return api.look(early, await api.ask("PUT", f"{_path(api)}/status", made | {"status": twice}))


# -- taint rules ----------------------------------------------------------------------------------


def rule(api: Api, word: str, selector: Any = None, **taint: Any) -> Json:
    spec: Json = {"taint": {"key": "a", "effect": "NoSchedule", "timeAdded": TIME} | taint}
    if selector is not None:
        spec["deviceSelector"] = selector
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": api.name(word)},
        "spec": spec,
    }


async def a_taint_rule_names_the_devices_that_it_taints(api: Api) -> Any:
    nobody = {"driver": f"{api.name('d')}.example.com"}
    rules = (
        rule(api, "a", nobody),
        rule(api, "b", nobody | {"pool": "node-a", "device": "gpu-0"}),
        rule(api, "c", {"driver": "no driver"}),
        rule(api, "d", nobody | {"pool": "A"}),
        rule(api, "e", nobody | {"device": "gpu.0"}),
        rule(api, "f", nobody, effect="Explode"),
        rule(api, "g", nobody, effect="None"),
        rule(api, "h", nobody, key="a b", value="c d"),
        rule(api, "i", nobody | {"driver": ""}),
    )
    looks = api.look(*[await api.ask("POST", RULES, one) for one in rules])
    for word in "abg":
        await api.ask("DELETE", f"{RULES}/{api.name(word)}")
    return looks


async def a_taint_rule_may_change_and_has_a_status(api: Api) -> Any:
    where = f"{RULES}/{api.name('a')}"
    nobody = {"driver": f"{api.name('d')}.example.com"}
    await api.ask("POST", RULES, rule(api, "a", nobody))
    change = {"spec": {"taint": {"effect": "None"}}}
    changed = await api.ask("PATCH", where, change, kind=MERGE)
    status = {"status": {"conditions": [condition(str(n)) for n in range(9)]}}
    told = await api.ask("PATCH", f"{where}/status", status, kind=MERGE)
    gone = await api.ask("DELETE", where)
    renewed = changed.body.get("spec", {}).get("taint", {}).pop("timeAdded", TIME) != TIME
    spec = api.seen(changed.body.get("spec", changed.body))
    return [changed.code, spec.get("taint", spec), renewed, *api.look(told, gone)]


# -- nodes and events -----------------------------------------------------------------------------


def _marks(found: Answer) -> Any:
    metadata = found.body["metadata"]
    own = {k: v for k, v in metadata.get("labels", {}).items() if k.startswith("example.com/")}
    return [found.code, own]


async def a_node_is_labelled_by_any_patch(api: Api) -> Any:
    named = {"name": api.name("n"), "labels": {"example.com/a": "1"}}
    where = f"{NODES}/{api.name('n')}"
    made = await api.ask("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": named})
    looks = [_marks(made)]
    for kind in (MERGE, STRATEGIC):
        for value in ("2", None):
            sent = {"metadata": {"labels": {"example.com/a": value, "example.com/b": kind[12:17]}}}
            looks.append(_marks(await api.ask("PATCH", where, sent, kind=kind)))
    again = await api.ask("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": named})
    bad = {"metadata": {"labels": {"example.com/a": "b c"}}}
    refused = await api.ask("PATCH", where, bad, kind=STRATEGIC)
    gone = await api.ask("DELETE", where)
    return [*looks, *api.look(again, refused), gone.code, gone.body["kind"]]


async def an_event_is_about_an_object_of_its_namespace(api: Api) -> Any:
    about = {"kind": "Pod", "namespace": "default", "name": api.name("p")}

    def event(word: str, **more: Any) -> Json:
        found = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": api.name(word)}}
        return found | {"involvedObject": about, "reason": "Why", "type": "Normal"} | more

    looks = api.look(
        *[
            await api.ask("POST", EVENTS, one)
            for one in (
                event("a", message="so", firstTimestamp=TIME, lastTimestamp=TIME, count=1),
                event("b", involvedObject=about | {"namespace": "other"}),
                event("c", involvedObject={"kind": "Node", "name": "n"}),
                event("d", eventTime="2026-01-01T00:00:00.000000Z"),
                event("e", firstTimestamp="yesterday"),
            )
        ]
    )
    chosen = await api.ask("GET", EVENTS, fieldSelector=f"involvedObject.name={api.name('p')}")
    names = [api.said(one["metadata"]["name"]) for one in chosen.body["items"]]
    return [*looks, names]
