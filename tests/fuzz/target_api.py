"""What a server that calls itself the API server may answer: objects, lists, watches, refusals.

Every failure is a ``KubeError``. What it does accept goes on into the mirror of our slices and the
plan of what to write, which is made or refused in the same way.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any

from fuzz.choices import Choices, mutated
from fuzz.world import DOMAIN, NODE, Stage

from hardpoint.errors import KubeError
from hardpoint.kube import Kube, Listing, Resource
from hardpoint_dra.mirror import Mirror
from hardpoint_dra.plan import Pool, plan
from hardpoint_dra.translate import VERSIONS, Wanted, slice_body, slice_name

SLICES = Resource("resource.k8s.io", "v1", "resourceslices")
WANTED = Wanted(slice_name(NODE, DOMAIN.dra_driver), {"devices": [{"name": "card-0"}]})
TOKEN = "tok-C4NARY-en"


def stored() -> dict[str, Any]:
    body = slice_body(WANTED, (NODE, DOMAIN.dra_driver), "uid-of-node", 3, 1)
    body["metadata"] |= {"uid": "u-1", "resourceVersion": "7", "labels": {"a": "b"}}
    taint = {"key": "a.b/c", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    attributes = {"a": {"string": "x"}, "n": {"int": 1}}
    device: dict[str, Any] = {"name": "card-0", "attributes": attributes, "taints": [taint]}
    body["spec"]["devices"] = [device]
    return copy.deepcopy(body)


def listed() -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSliceList",
        "metadata": {"resourceVersion": "9"},
        "items": [stored()],
    }


REFUSED = {
    "kind": "Status",
    "code": 422,
    "message": 'spec.devices[0].name: Invalid value: "x"',
    "details": {"causes": [{"field": "spec.devices[0].name", "message": 'Invalid value: "x"'}]},
}
GROUP = {"kind": "APIGroup", "versions": [{"groupVersion": "resource.k8s.io/v1", "version": "v1"}]}


class Fuzzed:
    """A server on loopback that answers with what the bytes say, and our client."""

    def __init__(self) -> None:
        self.stage, self.open = Stage(), AsyncExitStack()
        self.answer = b""

    def __enter__(self) -> Callable[[bytes], None]:
        stage = self.stage.__enter__()
        (stage.root / "token").write_text(TOKEN)
        stage.run(self._start())
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.run(self.open.aclose())
        self.stage.__exit__(None, None, None)

    async def _start(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.open.push_async_callback(server.wait_closed)
        self.open.callback(server.close)
        port = server.sockets[0].getsockname()[1]
        kube = Kube.at(f"http://127.0.0.1:{port}", self.stage.root / "token", timeout=2.0)
        self.kube = await self.open.enter_async_context(kube)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def __call__(self, data: bytes) -> None:
        choices = Choices(data)
        how = choices.below(6)
        status = choices.pick((200, 200, 200, 404, 409, 410, 422, 500, 301, 204))
        body = _body(how, choices)
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.answer = choices.rest() if choices.below(16) == 15 else head.encode() + body
        self.stage.run(self._asked(how))
        self.stage.quiet(TOKEN, "\x1b", "\u202e")

    async def _asked(self, how: int) -> None:
        try:
            if how == 0:
                await self.kube.get(SLICES, "name")
            elif how == 1:
                _planned(await self.kube.list(SLICES))
            elif how in (2, 3):
                await self._watched()
            elif how == 4:
                await self.kube.create(SLICES, stored())
            else:
                await self.kube.versions("resource.k8s.io")
        except KubeError as error:
            assert TOKEN not in str(error)

    async def _watched(self) -> None:
        """Take events until the server ends the watch; there is no second one."""
        mirror = Mirror()
        stream = self.kube._events(SLICES.path(), {"resourceVersion": "1"}, lambda error: None)
        async with aclosing(stream) as events:
            async for _, change in events:
                if change is not None:
                    decoded = VERSIONS["v1beta1"].decode(change.object)
                    mirror.changed(type(change)(change.type, decoded))
                    _plan_of(mirror)


def _planned(listing: Listing) -> None:
    mirror = Mirror()
    items = tuple(VERSIONS["v1"].decode(item) for item in listing.items)
    mirror.listed(Listing(items, listing.version))
    _plan_of(mirror)


def _plan_of(mirror: Mirror) -> None:
    pool = Pool(DOMAIN.dra_driver, NODE, "uid-of-node")
    made = plan(mirror.slices, [WANTED], pool, 1, lambda name, new, old: new == old)
    for body in made.deletes:
        assert body["metadata"]["uid"] is not None


def _body(how: int, choices: Choices) -> bytes:
    kind = choices.below(8)
    if kind == 0:
        return choices.rest()
    if kind == 1:
        return b"[" * (400 * choices.byte())
    seeds: tuple[Any, ...] = (stored(), listed(), None, None, REFUSED, GROUP)
    if how in (2, 3):
        events = [
            {"type": choices.pick(("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "²"))}
            | {"object": stored()}
            for _ in range(1 + choices.below(3))
        ]
        return b"\n".join(json.dumps(mutated(e, choices)).encode() for e in events) + b"\n"
    return json.dumps(mutated(seeds[how], choices)).encode("utf-8", "surrogatepass")
