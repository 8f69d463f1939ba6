"""One page over HTTP, for a scraper: small, without a library, and with an end to everything.

A client that is slow, says too much, or is one too many is hung up on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import anyio.abc

from hardpoint.errors import BadValue
from hardpoint.kubelet.sockets import identify, remove_own

_log = logging.getLogger("hardpoint.metrics")

PATH = "/metrics"
_LONGEST_HEAD = 8192
"""Bytes of a request's head."""
_WITHIN = 10.0
"""Seconds for a whole exchange."""
_AT_ONCE = 8
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9.-]+)):(?P<port>\d{1,5})")
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: host and port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def of(cls, text: str) -> Address:
        """Read ``127.0.0.1:9479``, ``[::1]:9479`` or ``/run/x.sock``. Raises ``BadValue``."""
        if text.startswith("/"):
            return cls(path=text)
        found = _ADDRESS.fullmatch(text)
        if found is None or not 0 <= int(found["port"]) < 1 << 16:
            want = "an address and a port, 127.0.0.1:9479 or [::]:9479, or the path of a socket"
            raise BadValue("listen", text, want)
        return cls(host=found["v6"] or found["host"], port=int(found["port"]))


class Page:
    """Serves what ``render`` returns, from ``run`` until that is cancelled."""

    def __init__(self, address: Address, render: Callable[[], str], content_type: str) -> None:
        self._address, self._render, self._type = address, render, content_type
        self._room = anyio.CapacityLimiter(_AT_ONCE)

    async def run(self, listening: Callable[[str], None] = lambda where: None) -> None:
        """Serve for ever; ``listening`` is told where. Raises ``OSError``."""
        listener = await self._listen()
        own = identify(self._address.path) if self._address.path else None
        try:
            async with listener:
                listening(self._where(listener))
                await listener.serve(self._serve)
        finally:
            if own is not None:  # another agent may have taken the path over
                remove_own(self._address.path, own)

    async def _listen(self) -> anyio.abc.Listener[anyio.abc.ByteStream]:
        if not self._address.path:
            return await anyio.create_tcp_listener(
                local_host=self._address.host, local_port=self._address.port
            )
        return await anyio.create_unix_listener(self._address.path, mode=0o660)

    def _where(self, listener: anyio.abc.Listener[anyio.abc.ByteStream]) -> str:
        attribute = anyio.abc.SocketAttribute.local_address
        found = listener.extra(attribute)  # noqa: S610 - of a socket, and of no database
        if isinstance(found, str):
            return found
        host, port = found[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"

    async def _serve(self, stream: anyio.abc.ByteStream) -> None:
        async with stream:
            try:
                self._room.acquire_on_behalf_of_nowait(stream)
            except anyio.WouldBlock:
                return
            try:
                with anyio.move_on_after(_WITHIN):
                    await self._exchange(stream)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
                _log.debug("a client hung up")
            finally:
                self._room.release_on_behalf_of(stream)

    async def _exchange(self, stream: anyio.abc.ByteStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            if len(head) > _LONGEST_HEAD:
                return await stream.send(_answer(400, b"", self._type, body=True))
            head += await stream.receive(_LONGEST_HEAD)
        method, path = _asked(head)
        status, content = self._content(_status(method, path))
        await stream.send(_answer(status, content, self._type, body=method != "HEAD"))
        await stream.send_eof()
        return None

    def _content(self, status: int) -> tuple[int, bytes]:
        if status == 200:
            try:
                return 200, self._render().encode()
            except Exception:  # noqa: BLE001 - such a page ends neither the others nor the policy
                _log.exception("no page was made")
                status = 500
        return status, f"{_REASONS[status]}\n".encode()


def _asked(head: bytes) -> tuple[str, str]:
    words = head.split(b"\n", 1)[0].decode("ascii", "replace").split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


def _status(method: str, path: str) -> int:
    if not method:
        return 400
    if method not in ("GET", "HEAD"):
        return 405
    return 200 if path == PATH else 404


def _answer(status: int, content: bytes, content_type: str, *, body: bool) -> bytes:
    kind = content_type if status == 200 else "text/plain; charset=utf-8"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (content if body else b"")
