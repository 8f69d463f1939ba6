"""What is on the wire: paths, methods, content types, bodies that are no objects, discovery."""

from __future__ import annotations

from typing import Any

from conformance.api_object_cases import SLICES, body, created, path
from conformance.exchange import GROUP, Api

_KNOWN = (
    *("resourceslices", "resourceclaims", "resourceclaims/status", "resourceclaimtemplates"),
    *("deviceclasses", "devicetaintrules", "devicetaintrules/status"),
    *("nodes", "nodes/status", "pods", "pods/status", "events", "namespaces"),
)


async def a_path_that_leads_nowhere_is_no_status(api: Api) -> Any:
    return api.look(
        *[
            await api.ask("GET", where)
            for where in (
                "/apis/example.com/v1/things",
                f"{GROUP}/things",
                f"{GROUP}/things/a",
                "/apis/resource.k8s.io/v9/resourceslices",
                f"{path(api)}/status",
                f"{path(api)}/scale",
                f"{GROUP}/namespaces/default/resourceslices",
                "/nowhere",
                "/api/v2/nodes",
            )
        ]
    )


async def a_method_that_a_path_has_not_is_not_allowed(api: Api) -> Any:
    await created(api)
    return api.look(
        await api.ask("PUT", SLICES, body(api)),
        await api.ask("PATCH", SLICES, body(api), kind="application/merge-patch+json"),
        await api.ask("POST", path(api), body(api)),
        await api.ask("POST", f"{GROUP}/resourceclaims", body(api)),
    )


async def a_body_that_is_no_object_is_a_bad_request(api: Api) -> Any:
    raw = (b"{", b"[]", b'"x"', b"1", b"null", b"{}", b"\xff", b"")
    return api.look(*[await api.ask("POST", SLICES, each) for each in raw])


async def a_body_of_another_type_is_not_supported(api: Api) -> Any:
    return api.look(
        *[
            await api.ask("POST", SLICES, body(api), kind=kind)
            for kind in ("text/plain", "application/xml", "nonsense")
        ],
        await api.ask("POST", SLICES, body(api), kind="application/json; charset=utf-8"),
    )


async def a_body_of_many_megabytes_is_too_large(api: Api) -> Any:
    return api.look(await api.ask("POST", SLICES, b'{"a": "' + b" " * (4 << 20) + b'"}'))


async def an_answer_is_json_whatever_else_would_do(api: Api) -> Any:
    looks = []
    for accepted in ("*/*", "application/json", "text/html, */*;q=0.5", "application/*"):
        found = await api.ask("GET", SLICES, headers={"Accept": accepted}, limit="1")
        looks.append([found.code, found.headers["content-type"]])
    return looks


async def what_is_not_acceptable_is_said(api: Api) -> Any:
    return api.look(await api.ask("GET", SLICES, headers={"Accept": "text/csv"}))


async def a_server_says_that_it_is_well(api: Api) -> Any:
    looks = []
    for where in ("/healthz", "/livez", "/readyz"):
        found = await api.ask("GET", where)
        looks.append([found.code, found.headers["content-type"], found.body])
    return looks


async def a_server_says_what_it_serves(api: Api) -> Any:
    group = (await api.ask("GET", "/apis/resource.k8s.io")).body
    groups = (await api.ask("GET", "/apis")).body
    core = (await api.ask("GET", "/api")).body
    own = [one for one in groups["groups"] if one["name"] == "resource.k8s.io"]
    kept = {key: core[key] for key in ("kind", "versions")}
    return [group, own, {k: groups[k] for k in ("kind", "apiVersion")}, kept]


async def a_version_of_an_api_lists_its_resources(api: Api) -> Any:
    looks: list[Any] = []
    for where in ("/api/v1", "/apis/resource.k8s.io/v1"):
        found = (await api.ask("GET", where)).body
        shown = [_shown(one) for one in found["resources"] if one["name"] in _KNOWN]
        shown.sort(key=lambda one: str(one["name"]))
        looks.append([found["kind"], found["groupVersion"], shown])
    return looks


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    known = ("name", "kind", "namespaced", "singularName", "verbs")
    return {key: found[key] for key in known}


async def a_server_says_its_version(api: Api) -> Any:
    found = (await api.ask("GET", "/version")).body
    return [found["major"], found["minor"], found["gitVersion"].rpartition(".")[0]]
