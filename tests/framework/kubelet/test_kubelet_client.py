"""A connection that is closed under a call fails the call, and does not end who waits for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from hardpoint.errors import CallFailed
from hardpoint.kubelet import dra_health_v1_pb2 as health_pb
from hardpoint.kubelet import pluginregistration_v1_pb2 as pb
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import serve, service_of

REGISTRATION = service_of(pb, "Registration")
HEALTH = service_of(health_pb, "DRAResourceHealth")


class Silent:
    """Is asked, and never answers."""

    def __init__(self) -> None:
        self.asked = anyio.Event()

    def handlers(self) -> list[Any]:
        return [
            serve(REGISTRATION, {"GetInfo": self.get_info}),
            serve(HEALTH, {"NodeWatchResources": self.watch}),
        ]

    async def get_info(self, request: pb.InfoRequest) -> pb.PluginInfo:
        self.asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def watch(self, request: Any) -> AsyncIterator[Any]:
        self.asked.set()
        await anyio.sleep_forever()
        yield


async def test_a_call_whose_connection_is_closed_fails(short_path: Path) -> None:
    silent, failed = Silent(), []
    async with SocketServer(short_path / "s.sock", silent.handlers()):
        client = Client(short_path / "s.sock")

        async def call() -> None:
            with pytest.raises(CallFailed) as error:
                await client.call(REGISTRATION, "GetInfo", pb.InfoRequest())
            failed.append(error.value.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await silent.asked.wait()
            await client.close()

    assert failed == ["CANCELLED"]


async def test_a_stream_whose_connection_is_closed_fails(short_path: Path) -> None:
    silent, failed = Silent(), []
    async with SocketServer(short_path / "s.sock", silent.handlers()):
        client = Client(short_path / "s.sock")

        async def listen() -> None:
            request = health_pb.NodeWatchResourcesRequest()
            stream = client.stream(HEALTH, "NodeWatchResources", request)
            with pytest.raises(CallFailed) as error:
                await anext(stream)
            failed.append(error.value.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await silent.asked.wait()
            await client.close()

    assert failed == ["CANCELLED"]


async def test_who_is_cancelled_while_calling_is_cancelled(short_path: Path) -> None:
    silent, outcome = Silent(), []
    path = short_path / "s.sock"
    async with (
        SocketServer(path, silent.handlers()),
        Client(path) as client,
        anyio.create_task_group() as tasks,
    ):

        async def call() -> None:
            try:
                await client.call(REGISTRATION, "GetInfo", pb.InfoRequest())
            except anyio.get_cancelled_exc_class():
                outcome.append("cancelled")
                raise

        tasks.start_soon(call)
        await silent.asked.wait()
        tasks.cancel_scope.cancel()

    assert outcome == ["cancelled"]
