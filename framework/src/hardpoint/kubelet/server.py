"""A gRPC server on a unix socket that never takes a path away from another process.

grpcio, left alone, unlinks whatever socket is at the path it binds, live or not, and when it stops
it unlinks the path again, even if another server's socket is there by then. So it is given a
hidden name in the same directory, which is renamed into place once the server answers. The kubelet
ignores names that begin with a dot and sees the rename as a new socket. When grpcio stops, it
unlinks a name that is gone; the real one is unlinked by us, after a look at whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import anyio
import grpc.aio

from hardpoint.errors import SocketError, SocketInUse
from hardpoint.kubelet import sockets


class SocketServer:
    """Serves gRPC handlers (``services.serve``) at a path, between ``start`` and ``close``.

    One object may be started again after it was closed: it then has a new socket.
    """

    def __init__(self, path: str | Path, handlers: Iterable[Any], *, grace: float = 1.0) -> None:
        self.path = Path(path)
        self.grace = grace
        """Seconds that calls under way are given when the server closes."""
        self._handlers = tuple(handlers)
        self._server: Any = None
        self._own: sockets.Identity | None = None

    async def start(self) -> None:
        """Serve; when this returns the socket is in place and answers.

        Raises ``SocketPathTooLong``, ``SocketInUse`` if another process answers at the path, and
        ``SocketError`` if the directory does not take a socket.
        """
        sockets.check_path(self.path)
        if not self.is_ours() and sockets.is_live(self.path):
            raise SocketInUse(str(self.path))
        with anyio.CancelScope(shield=True):  # gRPC breaks a server cancelled as it starts
            await self._start(sockets.hidden_name(self.path.parent))

    async def _start(self, hidden: Path) -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(self._handlers)
        try:
            _bind(server, hidden)
            await server.start()
            self._own = _put_in_place(hidden, self.path)
        except BaseException:
            await server.stop(None)
            raise
        self._server = server

    def is_ours(self) -> bool:
        """Say whether the path still leads to this server."""
        return self._own is not None and sockets.identify(self.path) == self._own

    def withdraw(self) -> None:
        """Take the socket away; calls under way and open connections go on."""
        if self._own is not None:
            sockets.remove_own(self.path, self._own)
            self._own = None

    async def close(self) -> None:
        """Take the socket away and stop; safe to call twice, and while being cancelled."""
        self.withdraw()
        server, self._server = self._server, None
        if server is not None:
            with anyio.CancelScope(shield=True):
                await server.stop(self.grace)

    async def renew(self) -> None:
        """Serve at the same path with a new socket, so that the kubelet sees a new one."""
        await self.close()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _bind(server: Any, path: Path) -> None:
    try:
        port = server.add_insecure_port(f"unix:{quote(str(path))}")
    except RuntimeError as error:
        raise SocketError(f"cannot serve a socket in {path.parent}: {error}") from error
    if port == 0:
        raise SocketError(f"cannot serve a socket in {path.parent}")


def _put_in_place(hidden: Path, path: Path) -> sockets.Identity:
    own = sockets.identify(hidden)
    if own is None:
        raise SocketError(f"the socket {hidden} disappeared while it was being set up")
    try:
        hidden.chmod(0o600)  # gRPC leaves it to the umask; only root has business here
        hidden.rename(path)
    except OSError as error:
        raise SocketError(f"cannot put a socket at {path}: {error.strerror}") from error
    return own
