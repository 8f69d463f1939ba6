"""Events that the kernel had to drop, on a socket whose buffer really is full."""

from __future__ import annotations

import os
import socket
import struct

import pytest
import pyudev

from hardpoint._core.uevents import _drain, matters

_GETLINK, _REQUEST = 18, 1
"""RTM_GETLINK and NLM_F_REQUEST of include/uapi/linux."""
_LOOPBACK = 1


@pytest.fixture
def full() -> pyudev.Monitor:
    """A monitor of pyudev's that reads a netlink socket which was sent more than it holds.

    Only root can make the kernel send uevents; it drops answers about a network interface alike.
    """
    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
    monitor.start()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
        route.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        route.bind((0, 0))
        asked = struct.pack("=BxHiII", 0, 0, _LOOPBACK, 0, 0)
        head = struct.pack("=IHHII", 16 + len(asked), _GETLINK, _REQUEST, 1, 0)
        for _ in range(16):
            route.send(head + asked)
        os.dup2(route.fileno(), monitor.fileno())
    return monitor


@pytest.mark.field_case("G02")
def test_events_that_the_kernel_dropped_are_a_reason_to_look_again(full: pyudev.Monitor) -> None:
    first = next(_drain(full))

    assert matters(first)


def test_a_socket_that_fails_otherwise_is_made_anew(full: pyudev.Monitor) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.connect(("127.0.0.1", 9))
        nobody.send(b"x")  # answered by ECONNREFUSED, which waits at the socket
        os.dup2(nobody.fileno(), full.fileno())

    with pytest.raises(OSError, match="polling"):
        next(_drain(full))
