"""Events on a real netlink socket: whose they are, and that some were dropped."""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import pyudev

from hardpoint._core.offer.uevents import _drain, listen, matters
from hardpoint._core.plugins.faults import FaultBoard

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


@pytest.mark.field_case("G03")
async def test_events_are_those_of_the_kernel_not_of_udev() -> None:
    """Group 2, udev's, is silent in a container that has no udev."""
    async with anyio.create_task_group() as tasks:
        before = _groups()
        tasks.start_soon(listen, lambda: None, FaultBoard())
        with anyio.fail_after(5):
            while not (opened := _groups() - before):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()

    assert set(opened.elements()) == {1}


def _groups() -> Counter[int]:
    """Return the groups that this process listens to on sockets for kernel events."""
    mine = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            mine.add(os.readlink(f"/proc/self/fd/{number}"))
    rows = (line.split() for line in Path("/proc/net/netlink").read_text().splitlines()[1:])
    events = [row for row in rows if row[1] == "15" and f"socket:[{row[-1]}]" in mine]
    return Counter(int(row[3], 16) for row in events)
