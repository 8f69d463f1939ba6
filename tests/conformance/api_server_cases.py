"""Every case that two API servers must answer alike: a name, and what asks and looks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any

from conformance import (
    api_kind_cases,
    api_list_cases,
    api_node_cases,
    api_object_cases,
    api_patch_cases,
    api_wire_cases,
)
from conformance.api_claim_cases import CLAIMS
from conformance.api_slice_cases import SLICES
from conformance.exchange import Answer, Api, Json

Case = Callable[[Api], Awaitable[Any]]

_SLICES = api_object_cases.SLICES
_CLAIMS = api_kind_cases.CLAIMS


def _told(module: ModuleType) -> dict[str, Case]:
    """Return a module's own cases; what begins with an underscore only helps."""
    return {
        name.replace("_", " "): found
        for name, found in vars(module).items()
        if inspect.iscoroutinefunction(found)
        and found.__module__ == module.__name__
        and list(inspect.signature(found).parameters) == ["api"]
        and not name.startswith("_")
    }


def _created(where: str, body: Json) -> Case:
    async def case(api: Api) -> Any:
        sent = copy.deepcopy(body)
        if isinstance(sent["metadata"], dict):
            sent["metadata"].setdefault("name", api.name("x"))
        found = await api.ask("POST", where, sent)
        await _remove(api, where, found)
        return _refusal_or_object(api, found)

    return case


def _refusal_or_object(api: Api, found: Answer) -> Any:
    """Return a refusal whole, and of an object what was not made by the server."""
    if found.code != 201:
        return api.look(found)[0]
    metadata = {k: v for k, v in found.body["metadata"].items() if k not in _OURS}
    return {"code": 201, "metadata": api.seen(metadata), "spec": api.seen(found.body["spec"])}


_OURS = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "name", "generation")


async def _remove(api: Api, where: str, found: Answer) -> None:
    if found.code == 201:
        path = f"{where}/{found.body['metadata']['name']}"
        if found.body["metadata"].get("finalizers"):
            free = {"metadata": {"finalizers": None}}
            await api.ask("PATCH", path, free, kind="application/merge-patch+json")
        await api.ask("DELETE", path)


CASES: Mapping[str, Case] = {
    **{f"slice: {name}": _created(_SLICES, body) for name, body in SLICES.items()},
    **{f"claim: {name}": _created(_CLAIMS, body) for name, body in CLAIMS.items()},
    **_told(api_object_cases),
    **_told(api_wire_cases),
    **_told(api_patch_cases),
    **_told(api_list_cases),
    **_told(api_kind_cases),
    **_told(api_node_cases),
}
