"""Sockets of our own: served under the right name, never taken from anybody else."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hardpoint.errors import CallFailed, SocketError, SocketInUse, SocketPathTooLong
from hardpoint.kubelet import dra_health_v1_pb2 as health_pb
from hardpoint.kubelet import pluginregistration_v1_pb2 as pb
from hardpoint.kubelet import sockets
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import Status, serve, service_of

REGISTRATION = service_of(pb, "Registration")
HEALTH = service_of(health_pb, "DRAResourceHealth")


def _named(name: str) -> Any:
    async def get_info(request: pb.InfoRequest) -> pb.PluginInfo:
        return pb.PluginInfo(name=name)

    return serve(REGISTRATION, {"GetInfo": get_info})


async def _ask(path: Path) -> str:
    async with Client(path) as client:
        answer = await client.call(REGISTRATION, "GetInfo", pb.InfoRequest(), timeout_s=5)
    return str(answer.name)


def _dead_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    return path


async def test_a_served_socket_answers_and_leaves_no_other_file(short_path: Path) -> None:
    path = short_path / "dra.sock"

    async with SocketServer(path, [_named("a")]):
        answer = await _ask(path)
        beside = os.listdir(short_path)

    assert (answer, beside, os.listdir(short_path)) == ("a", ["dra.sock"], [])


async def test_only_the_owner_may_connect(short_path: Path) -> None:
    async with SocketServer(short_path / "dra.sock", [_named("a")]):
        assert (short_path / "dra.sock").stat().st_mode & 0o777 == 0o600


async def test_a_live_socket_is_never_taken(short_path: Path) -> None:
    path = short_path / "dra.sock"
    async with SocketServer(path, [_named("first")]):
        with pytest.raises(SocketInUse, match=str(path)):
            await SocketServer(path, [_named("second")]).start()

        assert await _ask(path) == "first"
    assert os.listdir(short_path) == []


async def test_the_socket_of_a_killed_process_is_replaced(short_path: Path) -> None:
    path = _dead_socket(short_path / "dra.sock")

    async with SocketServer(path, [_named("new")]):
        assert await _ask(path) == "new"


async def test_stopping_leaves_a_successors_socket_alone(short_path: Path) -> None:
    path = short_path / "dra.sock"
    old = SocketServer(path, [_named("old")])
    await old.start()
    path.unlink()
    async with SocketServer(path, [_named("new")]):
        assert not old.is_ours()

        await old.close()

        assert await _ask(path) == "new"


async def test_closing_twice_is_harmless(short_path: Path) -> None:
    server = SocketServer(short_path / "dra.sock", [_named("a")])
    await server.start()

    await server.close()
    await server.close()

    assert not server.is_ours()


async def test_renewing_gives_a_new_socket_at_the_same_path(short_path: Path) -> None:
    path = short_path / "dra.sock"
    async with SocketServer(path, [_named("a")]) as server:
        before = path.stat().st_ctime_ns

        await server.renew()

        assert server.is_ours()
        assert path.stat().st_ctime_ns > before
        assert await _ask(path) == "a"


async def test_a_path_of_107_bytes_serves_and_one_of_108_is_refused(short_path: Path) -> None:
    room = sockets.LONGEST_PATH - len(str(short_path)) - 1
    longest = short_path / ("x" * room)

    async with SocketServer(longest, [_named("a")]):
        assert await _ask(longest) == "a"
    with pytest.raises(SocketPathTooLong, match="has 108 bytes, the most is 107"):
        await SocketServer(short_path / ("x" * (room + 1)), []).start()
    with pytest.raises(SocketPathTooLong):
        Client(short_path / ("x" * (room + 1)))


async def test_a_directory_with_odd_characters_serves(short_path: Path) -> None:
    path = short_path / "a%41 b" / "dra.sock"
    path.parent.mkdir()

    async with SocketServer(path, [_named("a")]):
        assert await _ask(path) == "a"


async def test_a_missing_directory_is_said_and_nothing_is_left(short_path: Path) -> None:
    with pytest.raises(SocketError, match=r"cannot serve a socket in .*/gone"):
        await SocketServer(short_path / "gone" / "dra.sock", []).start()

    assert os.listdir(short_path) == []


async def test_a_directory_in_the_way_is_said_and_nothing_is_left(short_path: Path) -> None:
    (short_path / "dra.sock").mkdir()

    with pytest.raises(SocketError, match="cannot put a socket at"):
        await SocketServer(short_path / "dra.sock", []).start()

    assert os.listdir(short_path) == ["dra.sock"]


async def test_closing_while_cancelled_still_removes_the_socket(short_path: Path) -> None:
    path = short_path / "dra.sock"
    with anyio.CancelScope() as scope:
        async with SocketServer(path, [_named("a")]):
            scope.cancel()
            await anyio.sleep_forever()

    assert os.listdir(short_path) == []


async def test_a_withdrawn_server_still_answers_who_is_connected(short_path: Path) -> None:
    path = short_path / "dra.sock"
    async with SocketServer(path, [_named("a")]) as server, Client(path) as client:
        await client.call(REGISTRATION, "GetInfo", pb.InfoRequest(), timeout_s=5)

        server.withdraw()

        assert not path.exists()
        answer = await client.call(REGISTRATION, "GetInfo", pb.InfoRequest(), timeout_s=5)
        assert answer.name == "a"


# -- files ----------------------------------------------------------------------------------------


async def test_stale_sockets_go_and_live_ones_and_other_files_stay(short_path: Path) -> None:
    dead = _dead_socket(short_path / "dead.sock")
    (short_path / "file.sock").write_text("not a socket")
    (short_path / "link.sock").symlink_to(dead)
    async with SocketServer(short_path / "live.sock", [_named("a")]):
        removed = sockets.remove_stale(sorted(short_path.iterdir()))

        assert removed == (dead,)
        assert sorted(os.listdir(short_path)) == ["file.sock", "link.sock", "live.sock"]


def test_a_busy_socket_counts_as_live(short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(short_path / "busy.sock"))
        busy.listen(0)
        waiting.connect(str(short_path / "busy.sock"))

        assert sockets.is_live(short_path / "busy.sock")


def test_only_old_hidden_sockets_of_ours_are_swept(short_path: Path) -> None:
    old, young = _dead_socket(short_path / ".hp00aa"), _dead_socket(short_path / ".hp00bb")
    foreign = _dead_socket(short_path / ".hpx")
    hour_ago = time.time() - 3600
    for path in (old, foreign):
        os.utime(path, (hour_ago, hour_ago))

    assert sockets.remove_left_behind(short_path) == (old,)
    assert young.exists()
    assert foreign.exists()


# -- handlers -------------------------------------------------------------------------------------


async def test_a_handlers_status_reaches_the_caller(short_path: Path) -> None:
    async def get_info(request: pb.InfoRequest) -> pb.PluginInfo:
        raise Status("RESOURCE_EXHAUSTED", "later")

    async with SocketServer(short_path / "s", [serve(REGISTRATION, {"GetInfo": get_info})]):
        with pytest.raises(CallFailed) as failed:
            await _ask(short_path / "s")

    assert (failed.value.code, failed.value.details) == ("RESOURCE_EXHAUSTED", "later")


async def test_a_handler_that_breaks_costs_its_own_call(
    short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def get_info(request: pb.InfoRequest) -> pb.PluginInfo:
        raise ValueError("odd")

    async with SocketServer(short_path / "s", [serve(REGISTRATION, {"GetInfo": get_info})]):
        for _ in range(2):
            with pytest.raises(CallFailed, match="INTERNAL: ValueError: odd"):
                await _ask(short_path / "s")

    assert "handler failed method=pluginregistration.Registration.GetInfo" in caplog.text


async def test_a_method_without_a_handler_is_unimplemented(short_path: Path) -> None:
    async with SocketServer(short_path / "s", [_named("a")]), Client(short_path / "s") as client:
        with pytest.raises(CallFailed) as failed:
            await client.call(
                REGISTRATION, "NotifyRegistrationStatus", pb.RegistrationStatus(), timeout_s=5
            )

    assert failed.value.code == "UNIMPLEMENTED"


def test_a_handler_for_no_method_is_refused() -> None:
    with pytest.raises(KeyError):
        serve(REGISTRATION, {"GetInform": lambda request: None})


async def test_a_stream_flows_and_its_end_reaches_the_handler(short_path: Path) -> None:
    ended = anyio.Event()

    async def watch(
        request: health_pb.NodeWatchResourcesRequest,
    ) -> AsyncIterator[health_pb.NodeWatchResourcesResponse]:
        try:
            while True:
                yield health_pb.NodeWatchResourcesResponse()
                await anyio.lowlevel.checkpoint()
        finally:
            ended.set()

    handler = serve(HEALTH, {"NodeWatchResources": watch})
    async with SocketServer(short_path / "s", [handler]), Client(short_path / "s") as client:
        request = health_pb.NodeWatchResourcesRequest()
        stream = client.stream(HEALTH, "NodeWatchResources", request)
        assert [await anext(stream), await anext(stream)]
        await stream.aclose()

        with anyio.fail_after(5):
            await ended.wait()


async def test_a_stream_that_breaks_says_so(short_path: Path) -> None:
    async def watch(request: object) -> AsyncIterator[health_pb.NodeWatchResourcesResponse]:
        yield health_pb.NodeWatchResourcesResponse()
        raise Status("UNAVAILABLE", "gone")

    handler = serve(HEALTH, {"NodeWatchResources": watch})
    async with SocketServer(short_path / "s", [handler]), Client(short_path / "s") as client:
        request = health_pb.NodeWatchResourcesRequest()
        stream = client.stream(HEALTH, "NodeWatchResources", request)
        assert await anext(stream) == health_pb.NodeWatchResourcesResponse()
        with pytest.raises(CallFailed, match="UNAVAILABLE: gone"):
            await anext(stream)


async def test_the_client_calls_its_authority_localhost(short_path: Path) -> None:
    """A path as authority is refused by strict HTTP/2 servers (grpc/grpc#34305)."""
    listener = await anyio.create_unix_listener(short_path / "s")
    sent = b""
    async with listener, anyio.create_task_group() as tasks, Client(short_path / "s") as client:
        tasks.start_soon(_ignore_failure, client)
        async with await listener.accept() as connection:
            await connection.send(_EMPTY_SETTINGS)
            with anyio.fail_after(5):
                while b":authority" not in sent or b":path" not in sent:
                    sent += await connection.receive()
        await listener.aclose()  # the call fails by itself: cancelled, it would outlive its loop

    assert b"localhost" in sent
    assert str(short_path).encode() not in sent


_EMPTY_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
"""An HTTP/2 frame: what a server says first."""


async def _ignore_failure(client: Client) -> None:
    with contextlib.suppress(CallFailed):
        await client.call(REGISTRATION, "GetInfo", pb.InfoRequest(), timeout_s=5)


async def test_a_lost_server_is_found_again_by_the_same_client(short_path: Path) -> None:
    server = SocketServer(short_path / "s", [_named("a")])
    await server.start()
    async with Client(short_path / "s") as client:
        await client.call(REGISTRATION, "GetInfo", pb.InfoRequest(), timeout_s=5)
        await server.close()
        with pytest.raises(CallFailed, match="UNAVAILABLE"):
            await client.call(REGISTRATION, "GetInfo", pb.InfoRequest(), timeout_s=5)
        await server.start()

        with anyio.fail_after(10):
            answer = await _retry(client)

        assert answer.name == "a"
    await server.close()


async def _retry(client: Client) -> Any:
    while True:
        try:
            return await client.call(REGISTRATION, "GetInfo", pb.InfoRequest(), timeout_s=5)
        except CallFailed:
            await anyio.sleep(0.02)


async def test_a_caller_that_hangs_up_ends_its_stream_at_once(short_path: Path) -> None:
    ended = anyio.Event()

    async def watch(request: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield health_pb.NodeWatchResourcesResponse()
                await anyio.lowlevel.checkpoint()
        finally:
            ended.set()

    path = short_path / "dra.sock"
    async with SocketServer(path, [serve(HEALTH, {"NodeWatchResources": watch})], grace=0):
        async with Client(path) as client:
            request = health_pb.NodeWatchResourcesRequest()
            async for _ in client.stream(HEALTH, "NodeWatchResources", request):
                break
        with anyio.fail_after(5):
            await ended.wait()
