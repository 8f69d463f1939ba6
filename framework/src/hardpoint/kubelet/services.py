"""gRPC services from their descriptors: what ``_pb2_grpc`` would be generated for.

A handler knows nothing of gRPC: it is ``async def handler(request) -> response``, or for a stream
an async generator function of the request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from types import ModuleType
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from hardpoint.errors import HardpointError

log = logging.getLogger(__name__)

Handler = Callable[[Any], Any]


class Status(HardpointError):
    """Raised by a handler to answer a gRPC status instead of a response."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


def service_of(messages: ModuleType, name: str) -> ServiceDescriptor:
    """Return a service of a ``_pb2`` module: ``service_of(dra_v1_pb2, "DRAPlugin")``."""
    return cast("ServiceDescriptor", messages.DESCRIPTOR.services_by_name[name])


def method_path(service: ServiceDescriptor, method: str) -> str:
    """Return a method's path on the wire: ``/v1.PodResourcesLister/List``."""
    return f"/{service.full_name}/{method}"


def serve(service: ServiceDescriptor, handlers: Mapping[str, Handler]) -> Any:
    """Return gRPC's generic handler for a service; methods without one are UNIMPLEMENTED.

    Raises ``KeyError`` for a handler of a method that the service does not have.
    """
    methods = {
        name: _method_handler(service.methods_by_name[name], handler)
        for name, handler in handlers.items()
    }
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _method_handler(method: MethodDescriptor, handler: Handler) -> Any:
    wire = {
        "request_deserializer": GetMessageClass(method.input_type).FromString,
        "response_serializer": GetMessageClass(method.output_type).SerializeToString,
    }
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_stream(method.full_name, handler), **wire)
    return grpc.unary_unary_rpc_method_handler(_unary(method.full_name, handler), **wire)


def _unary(name: str, handler: Handler) -> Callable[[Any, Any], Any]:
    async def answer(request: Any, context: Any) -> Any:
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001 -- the caller gets a status, we keep serving
            await _abort(context, name, error)

    return answer


def _stream(name: str, handler: Handler) -> Callable[[Any, Any], Any]:
    async def answer(request: Any, context: Any) -> None:
        try:
            # A caller that hangs up ends the handler now, not when its garbage is collected.
            async with aclosing(handler(request)) as responses:
                async for response in responses:
                    await context.write(response)
        except Exception as error:  # noqa: BLE001 -- as above
            await _abort(context, name, error)

    return answer


async def _abort(context: Any, name: str, error: Exception) -> None:
    if isinstance(error, Status):
        await context.abort(grpc.StatusCode[error.code], error.details)
    log.error("handler failed method=%s", name, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error!s:.200}")
