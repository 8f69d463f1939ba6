"""``hardpoint-serio``: attaches a serial line to the kernel's input core, for as long as it runs.

    hardpoint-serio pulse8-cec:ttyACM0

A USB-CEC adapter is a serial line until somebody gives it the line discipline of a mouse and says
what it speaks; then ``/dev/cecN`` appears, and goes when the line does. It runs on the host, from
``hardpoint-serio@.service``, and uses the standard library alone.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import struct
import sys
import termios
from collections.abc import Sequence

PROTOCOLS = {"pulse8-cec": 0x40, "rainshadow-cec": 0x41}
"""Names to types of include/uapi/linux/serio.h."""

N_TTY, N_MOUSE = 0, 2
"""Line disciplines of include/uapi/linux/tty.h."""
TIOCSETD = 0x5423
_WORD = struct.calcsize("L")
SPIOCSTYPE = (1 << 30) | (_WORD << 16) | (ord("q") << 8) | 1
"""_IOW('q', 1, unsigned long) of drivers/input/serio/serport.c."""

_GONE = {errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EIO}

NOT_ATTACHED, NO_LINE = 1, 3
"""Exit statuses beside 0; trying again helps only after the first."""


class NotAttached(Exception):
    """The line cannot be attached; ``str(error)`` says why and what to do."""

    status = NOT_ATTACHED


class NoLine(NotAttached):
    """There is no such line, or not any more."""

    status = NO_LINE


def attach(path: str, serio_type: int) -> None:
    """Attach the line at ``path`` and return when it has gone. Raises ``NotAttached``."""
    line = _open(path)
    try:
        make_raw(line)
        os.set_blocking(line, True)
        _set_discipline(line, N_MOUSE)
        fcntl.ioctl(line, SPIOCSTYPE, struct.pack("L", serio_type))
        os.read(line, 0)  # serport has its port while a read waits, and it waits for the hang-up
    except OSError as error:
        if error.errno not in _GONE:
            raise NotAttached(f"cannot attach {path}: {error.strerror}") from error
    finally:
        os.close(line)


def _open(path: str) -> int:
    """Open a line without waiting for a carrier, which it may never have."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        kind = NoLine if error.errno in _GONE else NotAttached
        raise kind(f"cannot open {path}: {error.strerror}") from error


def make_raw(line: int) -> None:
    """Set 9600 baud, 8 bits, no parity, no flow control, and no processing of what passes."""
    characters = termios.tcgetattr(line)[6]
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    received = termios.IGNBRK | termios.IGNPAR
    control = termios.CS8 | termios.CREAD | termios.HUPCL | termios.CLOCAL
    speed = termios.B9600
    mode = [received, 0, control, 0, speed, speed, characters]
    termios.tcsetattr(line, termios.TCSANOW, mode)


def _set_discipline(line: int, number: int) -> None:
    try:
        fcntl.ioctl(line, TIOCSETD, struct.pack("i", number))
    except OSError as error:
        advice = {
            errno.EINVAL: "the kernel has no serport: modprobe serport",
            errno.EPERM: "this needs CAP_SYS_ADMIN",
        }
        if error.errno in advice:
            raise NotAttached(advice[error.errno]) from error
        raise


def parse(words: Sequence[str]) -> tuple[str, str]:
    """Return protocol and path from ``PROTOCOL:TTY``; ends the program on anything else."""
    parser = argparse.ArgumentParser(prog="hardpoint-serio", description=__doc__.splitlines()[0])
    parser.add_argument("line", metavar="PROTOCOL:TTY", help="such as pulse8-cec:ttyACM0")
    given = parser.parse_args(words).line
    protocol, _, tty = given.partition(":")
    if protocol not in PROTOCOLS:
        parser.error(f"the protocols are {', '.join(PROTOCOLS)}")
    name = tty.removeprefix("/dev/")
    if not name or not name.replace("/", "").isalnum():
        parser.error("TTY is a name in /dev, such as ttyACM0")
    return protocol, f"/dev/{name}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the program; 0 when the line has gone after it was attached."""
    protocol, path = parse(sys.argv[1:] if words is None else words)
    try:
        attach(path, PROTOCOLS[protocol])
    except NotAttached as error:
        print(f"hardpoint-serio: {error}", file=sys.stderr)  # noqa: T201 - a program of its own
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
