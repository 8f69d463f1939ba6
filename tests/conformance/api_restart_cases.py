"""An API server that is restarted: what every client of it meets.

``server`` is either of the two: it stops, starts, and has a client whose role lets it read slices.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio
from conformance.api_object_cases import SLICES, created
from conformance.exchange import Api

from hardpoint.errors import KubeDenied, KubeError, KubeUnreachable
from hardpoint.kube import Kube, Resource

_SLICES = Resource("resource.k8s.io", "v1", "resourceslices")


class Server(Protocol):
    """What a restart needs of a server."""

    def client(self) -> Kube: ...

    def superuser(self) -> AbstractAsyncContextManager[Api]: ...

    async def stop(self) -> None: ...

    async def start(self) -> None: ...


class Restart:
    """A restart as its clients see it."""

    async def test_first_it_is_away_then_it_may_forbid_and_then_it_answers(
        self, server: Server
    ) -> None:
        async with server.client() as kube:
            await kube.list(_SLICES)
            await server.stop()
            met = [await _refusal(kube)]
            await server.start()
            met += await _until_it_answers(kube)

        assert met[0] is KubeUnreachable
        assert set(met) <= {KubeUnreachable, KubeDenied}

    async def test_a_watch_from_before_is_gone(self, server: Server) -> None:
        async with server.client() as kube:
            before = await kube.list(_SLICES)
            async with server.superuser() as api:
                made = await created(api)
            await server.stop()
            await server.start()
            await _until_it_answers(kube)
        async with (
            server.superuser() as api,
            api.watch(SLICES, resourceVersion=before.version) as watch,
        ):
            events = await watch.look(2)
            await api.ask("DELETE", f"{SLICES}/{made.body['metadata']['name']}")

        assert events[0]["object"]["code"] == 410
        assert events[0]["object"]["reason"] == "Expired"
        assert events[1] == ["END", ""]


async def _until_it_answers(kube: Kube) -> list[type[KubeError]]:
    met: list[type[KubeError]] = []
    with anyio.fail_after(60):
        while (error := await _refusal(kube)) is not None:
            met.append(error)
            await anyio.sleep(0.01)
    return met


async def _refusal(kube: Kube) -> type[KubeError] | None:
    try:
        await kube.list(_SLICES)
    except KubeError as error:
        return type(error)
    return None
