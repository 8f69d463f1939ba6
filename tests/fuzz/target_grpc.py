"""What comes in at the socket that the kubelet calls: bytes for a message, or bytes for HTTP/2.

Whatever was sent, an answer has one entry for each UID, no name leads out of the collection of
claims, nothing is held that was not claimed, and the next honest call is answered as ever.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
from broker_world import World, claim, prepare
from fuzz.choices import ODD_TEXTS, Choices
from fuzz.target_claims import UID
from fuzz.world import DOMAIN, Stage
from google.protobuf.message import DecodeError

from hardpoint._kube import Resource
from hardpoint.kubelet import dra_v1_pb2, dra_v1beta1_pb2
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import method_path, serve, service_of
from hardpoint.kubelet.work import Workshop
from hardpoint.model import ClaimKey, PreparedDevice
from hardpoint_dra.claims import to_claim
from hardpoint_dra.server import NodeService

VERSIONS: tuple[ModuleType, ...] = (dra_v1_pb2, dra_v1beta1_pb2)
METHODS = ("NodePrepareResources", "NodeUnprepareResources")
COLLECTION = Resource("resource.k8s.io", "v1", "resourceclaims")
REFUSED = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
"""What gRPC answers where a message cannot be read."""
GARBAGE = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"")


class _Work:
    """Prepares with a real broker; the claims are those that the API server would have."""

    def __init__(self, world: World, broker: Any) -> None:
        self._world, self._broker = world, broker

    async def prepare(self, key: ClaimKey) -> tuple[PreparedDevice, ...]:
        async def read() -> Any:
            path = COLLECTION.path(key.namespace, key.name)
            steps = path.split("/")
            assert len(steps) == 7, path
            assert not {".", "..", ""} & set(steps), path
            assert not set("?#\\ ") & set(path), path
            return to_claim(key, {"metadata": {"uid": key.uid}}, "node-1")

        return await self._broker.prepare(key, read)  # type: ignore[no-any-return]

    async def unprepare(self, key: ClaimKey) -> None:
        await self._broker.unprepare(key)


class Fuzzed:
    """Serves the node service on a socket, with one claim held, and calls it."""

    def __init__(self) -> None:
        self.stage, self.open = Stage(), AsyncExitStack()

    def __enter__(self) -> Callable[[bytes], None]:
        stage = self.stage.__enter__()
        self.world = World(stage.fresh("w"))
        self.world.card("held", 0)
        self.path = stage.root / "dra.sock"
        stage.run(self._start())
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.run(self.open.aclose())
        self.stage.__exit__(None, None, None)

    async def _start(self) -> None:
        broker = await self.open.enter_async_context(self.world.broker())
        await prepare(broker, claim("uid-held", "held"))
        self.broker, workshop = broker, Workshop()
        self.node = NodeService(
            DOMAIN.dra_driver, _Work(self.world, broker), workshop, deadline=5.0
        )
        services = [
            serve(service_of(version, "DRAPlugin"), self.node.methods(version))
            for version in VERSIONS
        ]
        working = asyncio.ensure_future(workshop.run())  # outlives this call, as a group could not
        self.open.callback(working.cancel)
        await self.open.enter_async_context(SocketServer(self.path, services))
        self.client = await self.open.enter_async_context(Client(self.path))

    def __call__(self, data: bytes) -> None:
        choices = Choices(data)
        how = choices.below(8)
        if how == 0:
            self._garbage(choices)
        version, method = choices.pick(VERSIONS), choices.pick(METHODS)
        raw = choices.rest() if how < 4 else _request(version, method, choices)
        self.stage.run(self._called(version, method, raw))
        assert [hold.device.name for hold in self.broker.holds()] == ["held"]
        assert self.world.files() == ["hardpoint.dev-uid-held.json"]
        self.world.events.clear()
        self.stage.quiet("\x1b", "\u202e", "Traceback")

    async def _called(self, version: ModuleType, method: str, raw: bytes) -> None:
        asked = _parsed(version, method, raw)
        if asked is not None and any(one.uid == "uid-held" for one in asked.claims):
            return
        answered = await self._raw(version, method, raw)
        if asked is None:
            assert answered is None, "what cannot be read is no request"
        elif answered is not None:
            reply = getattr(version, f"{method[:-1]}sResponse").FromString(answered)
            assert set(reply.claims) == {one.uid for one in asked.claims}
            assert all(entry.error or not entry_devices(entry) for entry in reply.claims.values())
        honest = version.NodePrepareResourcesRequest(
            claims=[version.Claim(namespace="ns", uid="uid-held", name="claim-uid-held")]
        )
        reply = await self.client.call(
            service_of(version, "DRAPlugin"), METHODS[0], honest, timeout_s=5
        )
        assert reply.claims["uid-held"].devices[0].device_name == "held"

    async def _raw(self, version: ModuleType, method: str, raw: bytes) -> bytes | None:
        """Send bytes as a request; None where the call was refused as a whole."""
        path = method_path(service_of(version, "DRAPlugin"), method)
        call = self.client.channel.unary_unary(path)
        try:
            return bytes(await call(raw, timeout=5))
        except grpc.aio.AioRpcError as error:
            assert error.code() in REFUSED, error.code()
            return None

    def _garbage(self, choices: Choices) -> None:
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(self.path))
            raw.sendall(choices.pick(GARBAGE) + choices.chunk(200))


def entry_devices(entry: Any) -> list[Any]:
    """Return the devices of an entry of a prepare's answer; an unprepare's has none."""
    return list(getattr(entry, "devices", ()))


def _parsed(version: ModuleType, method: str, raw: bytes) -> Any:
    try:
        return getattr(version, f"{method[:-1]}sRequest").FromString(raw)
    except DecodeError:
        return None


def _request(version: ModuleType, method: str, choices: Choices) -> bytes:
    def word() -> str:
        return _any().encode("utf-8", "replace").decode()  # protobuf itself takes no other

    def _any() -> str:
        odd = ("a/b", "..", "a?b=c", "a#b", "%2e%2e", "uid", UID, *ODD_TEXTS)
        return choices.pick(odd) if choices.flag() else choices.text()

    claims = [
        version.Claim(namespace=word(), uid=word(), name=word()) for _ in range(choices.below(4))
    ]
    request = getattr(version, f"{method[:-1]}sRequest")
    return bytes(request(claims=claims).SerializeToString())
