"""Calls over a unix socket: one channel, methods named by their service's descriptor."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from hardpoint.errors import CallFailed
from hardpoint.kubelet import sockets
from hardpoint.kubelet.services import method_path

DEFAULT_RECEIVE = 4 << 20


class Client:
    """A channel to the gRPC server at a unix socket; made and closed inside the event loop.

    It connects when first used, and again by itself when the connection is lost.
    """

    def __init__(self, path: str | Path, *, max_receive: int = DEFAULT_RECEIVE) -> None:
        sockets.check_path(path)
        self.path = Path(path)
        self._closed = False
        self.channel: Any = grpc.aio.insecure_channel(
            f"unix:{quote(str(path))}", options=_options(max_receive)
        )

    async def call(
        self,
        service: ServiceDescriptor,
        method: str,
        request: Any,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Call a method with one answer. Raises ``CallFailed``; ``timeout_s`` is in seconds."""
        described = service.methods_by_name[method]
        caller = self.channel.unary_unary(
            method_path(service, method),
            request_serializer=GetMessageClass(described.input_type).SerializeToString,
            response_deserializer=GetMessageClass(described.output_type).FromString,
        )
        try:
            return await caller(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._failed(service, method, error) from error
        except anyio.get_cancelled_exc_class() as error:
            await anyio.lowlevel.checkpoint_if_cancelled()
            if not self._closed:
                raise
            raise self._ended(service, method) from error

    async def stream(
        self, service: ServiceDescriptor, method: str, request: Any
    ) -> AsyncGenerator[Any, None]:
        """Yield what a method streams, until it ends. Raises ``CallFailed``."""
        described = service.methods_by_name[method]
        call = self.channel.unary_stream(
            method_path(service, method),
            request_serializer=GetMessageClass(described.input_type).SerializeToString,
            response_deserializer=GetMessageClass(described.output_type).FromString,
        )(request)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise self._failed(service, method, error) from error
        except anyio.get_cancelled_exc_class() as error:
            await anyio.lowlevel.checkpoint_if_cancelled()
            if not self._closed:
                raise
            raise self._ended(service, method) from error
        finally:
            call.cancel()

    def _ended(self, service: ServiceDescriptor, method: str) -> CallFailed:
        """Return the error of a call whose channel was closed under it.

        grpc.aio raises there what a cancelled task raises, and a task that nobody cancelled would
        end without a word.
        """
        name = f"{service.name}.{method}"
        return CallFailed(str(self.path), name, "CANCELLED", "the connection was closed")

    def _failed(self, service: ServiceDescriptor, method: str, error: Any) -> CallFailed:
        name = f"{service.name}.{method}"
        return CallFailed(str(self.path), name, error.code().name, error.details() or "")

    async def close(self) -> None:
        """End the connection and every call on it."""
        self._closed = True
        await self.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _options(max_receive: int) -> list[tuple[str, Any]]:
    return [
        # The authority that gRPC derives from a path is refused by strict HTTP/2 servers.
        ("grpc.default_authority", "localhost"),
        ("grpc.max_receive_message_length", max_receive),
        # Channels to one path otherwise share a connection, and one's fate with it.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
