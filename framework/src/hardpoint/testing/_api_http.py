"""HTTP/1.1 on loopback for the fake API server: requests in, whole or streamed answers out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import anyio
import h11
from anyio.abc import ByteStream

LARGEST_BODY = 3 << 20
"""Bytes of a request that the API server reads (``MaxRequestBodyBytes``)."""


class Dropped(Exception):
    """The connection ends here, without the rest of the answer."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A whole request; header names in lower case, the query's last value for each name."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer: a body, or chunks that are sent as they come."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    chunks: AsyncIterator[bytes] | None = field(default=None, compare=False)


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpAnswer]]


async def serve_connection(stream: ByteStream, handler: Handler) -> None:
    """Answer one connection's requests until it ends; a broken one is nobody's error."""
    connection = h11.Connection(h11.SERVER)
    try:
        while await _serve_one(stream, connection, handler):
            connection.start_next_cycle()
    except (h11.ProtocolError, anyio.BrokenResourceError, anyio.ClosedResourceError, Dropped):
        return
    finally:
        with anyio.CancelScope(shield=True):
            await stream.aclose()


async def _serve_one(stream: ByteStream, connection: h11.Connection, handler: Handler) -> bool:
    """Answer one request; False when there is no other to come."""
    request = await _receive(stream, connection)
    if request is None:
        return False
    await _send(stream, connection, await handler(request))
    return connection.our_state is h11.DONE and connection.their_state is h11.DONE


async def _event(stream: ByteStream, connection: h11.Connection) -> h11.Event | type[h11.PAUSED]:
    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            return event  # type: ignore[return-value]
        if connection.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await stream.send(connection.send(go_on) or b"")
        try:
            connection.receive_data(await stream.receive())
        except anyio.EndOfStream:
            connection.receive_data(b"")


async def _receive(stream: ByteStream, connection: h11.Connection) -> HttpRequest | None:
    event = await _event(stream, connection)
    if not isinstance(event, h11.Request):
        return None
    body = bytearray()
    while isinstance(part := await _event(stream, connection), h11.Data):
        if len(body) <= LARGEST_BODY:
            body += part.data
    target = urlsplit(event.target.decode("ascii"))
    return HttpRequest(
        method=event.method.decode("ascii"),
        path=unquote(target.path),
        query=dict(parse_qsl(target.query, keep_blank_values=True)),
        headers={name.decode("ascii"): value.decode("latin-1") for name, value in event.headers},
        body=bytes(body),
        too_large=len(body) > LARGEST_BODY,
    )


async def _send(stream: ByteStream, connection: h11.Connection, answer: HttpAnswer) -> None:
    headers = [("Content-Type", answer.content_type), *answer.headers]
    if answer.chunks is None:
        headers.append(("Content-Length", str(len(answer.body))))
    response = h11.Response(status_code=answer.status, headers=headers)
    await stream.send(connection.send(response) or b"")
    if answer.chunks is None:
        await stream.send(connection.send(h11.Data(data=answer.body)) or b"")
    else:
        await _stream(stream, connection, answer.chunks)
    await stream.send(connection.send(h11.EndOfMessage()) or b"")


async def _stream(
    stream: ByteStream, connection: h11.Connection, chunks: AsyncIterator[bytes]
) -> None:
    """Send chunks as they come; stop as soon as the other side hangs up."""
    gone: list[bool] = []

    async def until_hung_up(scope: anyio.CancelScope) -> None:
        try:
            while True:
                await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            gone.append(True)
            scope.cancel()

    ended: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_hung_up, tasks.cancel_scope)
        try:
            async for chunk in chunks:
                await stream.send(connection.send(h11.Data(data=chunk)) or b"")
        except (Dropped, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            ended.append(error)
        tasks.cancel_scope.cancel()
    if ended or gone:
        raise Dropped
