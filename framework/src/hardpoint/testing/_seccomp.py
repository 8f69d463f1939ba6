"""System calls of a child, held before they happen until its parent has decided on them.

By seccomp's user notifications (seccomp_unotify(2)): no root, no compiler and no change to what is
watched. Every thread and every library is seen, SQLite and gRPC too, where a wrapper around
Python's ``os`` would see neither. Linux 5.5 or newer, on x86-64 and AArch64.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

_ALLOW, _ASK, _KILL = 0x7FFF0000, 0x7FC00000, 0x80000000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16
"""Offsets in ``struct seccomp_data``; an argument's lower half comes first."""
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101
_CONTINUE = 1
_SET_FILTER, _NO_NEW_PRIVILEGES = 1, 38
_HIGH = 900
"""Descriptors from here on are ours in the child, so that none of the child's has their number."""

_NAMES = (
    "write pwrite64 writev pwritev pwritev2 sendfile copy_file_range fsync fdatasync ftruncate "
    "fallocate fchmod sendto sendmsg openat mkdirat unlinkat symlinkat linkat renameat renameat2 "
    "fchmodat truncate open creat rename link unlink mkdir rmdir symlink chmod"
)
_NUMBERS = {
    "x86_64": (
        0xC000003E,
        317,
        (
            "1 18 20 296 328 40 326 74 75 77 285 91 44 46 257 258 263 266 265 264 316 268 76 2 85 "
            "82 86 87 83 84 88 90"
        ),
    ),
    "aarch64": (
        0xC00000B7,
        277,
        "64 68 66 70 287 71 285 82 83 46 47 52 206 211 56 34 35 36 37 38 276 53 45",
    ),
}
_OPENING = {"openat": 2, "open": 1}
"""Where the flags are: to open a file for reading changes nothing."""
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class Held:
    """A system call that waits."""

    id: int
    thread: int
    name: str
    arguments: tuple[int, ...]


def unsupported() -> str:
    """Return why calls cannot be held here, in a sentence; empty where they can."""
    if platform.machine() not in _NUMBERS:
        return f"system calls of {platform.machine()} are not known"
    release = tuple(int(n) for n in platform.release().split("-")[0].split(".")[:2])
    if release < (5, 5):
        return f"Linux {platform.release()} cannot hold system calls: 5.5 or newer can"
    return ""


def hold_calls(channel: socket.socket) -> None:
    """Have every call that changes something held, of this process and its children.

    Called in the child, before it starts threads; ``channel`` leads to the parent, which gets the
    descriptor to listen on (``listener``). Raises ``OSError``.
    """
    _, number, _ = _NUMBERS[platform.machine()]
    own = fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH)
    code = _program(own)
    body = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(code), ctypes.addressof(body))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        descriptor = libc.syscall(number, _SET_FILTER, flags, program)
        if descriptor >= 0 or ctypes.get_errno() != errno.EINVAL:
            break
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    with socket.socket(fileno=own) as high:
        socket.send_fds(high, [b"."], [descriptor])
        os.close(descriptor)
        high.detach()  # stays open: no other descriptor may get its number


def listener(channel: socket.socket) -> int:
    """Return the descriptor on which a child's calls are heard. Raises ``OSError``."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        raise OSError(errno.ECHILD, "the child ended before its calls could be held")
    return descriptors[0]


def receive(descriptor: int) -> Held | None:
    """Return the next call that waits; None if whoever made it is gone."""
    raw = bytearray(80)
    try:
        fcntl.ioctl(descriptor, _RECEIVE, raw)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    identity, thread, _, number = struct.unpack_from("QIIi", raw)
    return Held(identity, thread, _names()[number], struct.unpack_from("6Q", raw, 32))


def answer(descriptor: int, held: Held, error: int = 0) -> None:
    """Let a call happen, or fail with an error number without happening."""
    flags = 0 if error else _CONTINUE
    try:
        fcntl.ioctl(descriptor, _ANSWER, struct.pack("QqiI", held.id, 0, -error, flags))
    except OSError as gone:
        if gone.errno != errno.ENOENT:
            raise


def _names() -> dict[int, str]:
    _, _, numbers = _NUMBERS[platform.machine()]
    return dict(zip(map(int, numbers.split()), _NAMES.split(), strict=False))


def _program(own: int) -> list[tuple[int, int, int, int]]:
    """Return the filter: ask for what changes something, but for what ``own`` sends."""
    architecture, _, _ = _NUMBERS[platform.machine()]
    code = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for number, name in _names().items():
        body = list(_judged(name, own))
        code += [(_EQUAL, 0, len(body), number), *body]
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def _judged(name: str, own: int) -> Iterable[tuple[int, int, int, int]]:
    if name == "sendmsg":
        yield (_LOAD, 0, 0, _ARGUMENT)
        yield (_EQUAL, 0, 1, own)
        yield (_RETURN, 0, 0, _ALLOW)
    elif name in _OPENING:
        yield (_LOAD, 0, 0, _ARGUMENT + 8 * _OPENING[name])
        yield (_ANY_BIT, 1, 0, _CHANGING)
        yield (_RETURN, 0, 0, _ALLOW)
    yield (_RETURN, 0, 0, _ASK)
