"""The two servers: ours, and the real one of a cluster, behind one way to ask them."""

from __future__ import annotations

import json
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
import httpx2
from conformance.exchange import Api

from hardpoint.kube import Kube
from hardpoint.testing.api_server import FakeApiServer

if TYPE_CHECKING:  # the official client is not needed for our server
    from cluster.world import World

TOKEN = "of-the-superuser"
PLAIN = {"Accept-Encoding": "identity"}
"""A real server compresses a watch that begins with a list, and does not flush what comes after."""


class FakeApi(Api):
    """Our server, as its superuser."""

    def __init__(self, client: httpx2.AsyncClient, server: FakeApiServer) -> None:
        super().__init__(client, secrets.token_hex(3))
        self._server = server

    @asynccontextmanager
    async def forbidden(self, verb: str, path: str) -> AsyncIterator[dict[str, str]]:
        resource = _resource(path)
        self._server.deny(verb, resource)
        yield {}
        self._server.allow(verb, resource)


class RealApi(Api):
    """A real server, as its superuser; whom a role allows nothing is impersonated."""

    @asynccontextmanager
    async def forbidden(self, verb: str, path: str) -> AsyncIterator[dict[str, str]]:
        yield {"Impersonate-User": "system:serviceaccount:default:nobody"}


def _resource(path: str) -> str:
    """Return what RBAC calls a path's resource: ``resourceclaims/status``."""
    steps = path.strip("/").split("/")
    steps = steps[2:] if steps[0] == "api" else steps[3:]
    if steps[0] == "namespaces" and len(steps) > 2:
        steps = steps[2:]
    return "/".join([steps[0], *steps[2:]])


@asynccontextmanager
async def fake_api(server: FakeApiServer) -> AsyncIterator[Api]:
    server.require_token(TOKEN)
    server.add_node("n0")
    headers = PLAIN | {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=30) as client:
        yield FakeApi(client, server)


@asynccontextmanager
async def real_api(kubeconfig: Path) -> AsyncIterator[Api]:
    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    trusted = ssl.create_default_context(cafile=cluster["certificate-authority"])
    headers = PLAIN | {"Authorization": f"Bearer {user['token']}"}
    async with httpx2.AsyncClient(
        base_url=cluster["server"], verify=trusted, headers=headers, timeout=30
    ) as client:
        yield RealApi(client, secrets.token_hex(3))


# -- restarting -----------------------------------------------------------------------------------


class FakeServer:
    """Our server, to be restarted."""

    def __init__(self, server: FakeApiServer) -> None:
        self._server = server

    def client(self) -> Kube:
        return Kube.at(self._server.url)

    def superuser(self) -> AbstractAsyncContextManager[Api]:
        return _without_token(self._server)

    async def stop(self) -> None:
        self._server.down = True

    async def start(self) -> None:
        self._server.down = False


@asynccontextmanager
async def _without_token(server: FakeApiServer) -> AsyncIterator[Api]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=30) as client:
        yield FakeApi(client, server)


class RealServer:
    """A real server, to be restarted; its client is the agent's service account."""

    def __init__(self, world: World) -> None:
        self._cluster = world.cluster
        self._token = world.agent.environment["HARDPOINT_KUBE__TOKEN_FILE"]

    def client(self) -> Kube:
        return Kube.at(self._cluster.server, self._token, self._cluster.authority)

    def superuser(self) -> AbstractAsyncContextManager[Api]:
        return real_api(self._cluster.kubeconfig)

    async def stop(self) -> None:
        await anyio.to_thread.run_sync(self._cluster.stop, "kube-apiserver")

    async def start(self) -> None:
        await anyio.to_thread.run_sync(self._cluster.start, "kube-apiserver")
