"""The cluster's own network: loopback, one address for each node, and a door from the host."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import threading

_SET_ADDRESS, _SET_FLAGS = 0x8916, 0x8914
"""SIOCSIFADDR, SIOCSIFFLAGS (include/uapi/linux/sockios.h)."""
_UP_RUNNING = 0x1 | 0x40


def loopback_up() -> None:
    """Switch on ``lo`` of a network namespace that was just made."""
    _ask(_SET_FLAGS, "lo", struct.pack("h", _UP_RUNNING))


def add_address(address: str, number: int) -> None:
    """Give ``lo`` another address, as the alias of that number."""
    _ask(_SET_ADDRESS, f"lo:{number}", _address(address))


def _address(text: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))


def _ask(request: int, interface: str, value: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, request, struct.pack("16s24s", interface.encode(), value))


def serve_door(door: socket.socket, to: tuple[str, int]) -> None:
    """Pass every connection on, for ever. Where nobody listens it is reset, as a host would."""
    while True:
        outer, _ = door.accept()
        threading.Thread(target=_pass_on, args=[outer, to], daemon=True).start()


def _pass_on(outer: socket.socket, to: tuple[str, int]) -> None:
    try:
        inner = socket.create_connection(to)
    except OSError:
        outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        outer.close()
        return
    with outer, inner:
        back = threading.Thread(target=_copy, args=[inner, outer], daemon=True)
        back.start()
        _copy(outer, inner)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for one in (sink, source):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_WR if one is sink else socket.SHUT_RD)
