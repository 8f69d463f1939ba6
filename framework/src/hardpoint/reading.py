"""Reading small files of the kernel: absent, unreadable, or text that is fit to show.

The hardware's own strings are hostile: control characters, terminal escapes, invisible and
direction-changing characters have no place in an attribute, a log or a terminal.
"""

from __future__ import annotations

import errno
import os
import re

_ABSENT = {errno.ENOENT, errno.ENOTDIR}
_PAGE = 4096
"""Bytes asked for at once: an attribute has at most so many (fs/sysfs/file.c), and a larger buffer
costs more than the read."""
_LONGEST = 1 << 20
"""Bytes read of one file: tables of procfs are longer than a page."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
"""Characters of Unicode's category Cf that hide text or turn its direction (UTS 39, UAX 9)."""


def printable(text: str) -> str:
    """Return text on one line: control characters are blanks, invisible ones are gone."""
    text = text.strip()
    if text.isascii() and text.isprintable():  # nearly all of sysfs
        return text
    return _INVISIBLE.sub("", _CONTROL.sub(" ", text)).strip()


_SAFE = (AttributeError, AssertionError, ImportError, NameError, TypeError)
"""Errors whose text names code, not what the hardware said."""


def said(error: BaseException) -> str:
    """Return an error as a few words, without the value that caused it (it may be hostile).

    A fault of the program is told with its text and place, for who has to mend it.
    """
    if isinstance(error, OSError) and error.errno:
        where = f" ({os.path.basename(str(error.filename))})" if error.filename else ""
        return f"{errno.errorcode.get(error.errno, error.errno)}: {error.strerror}{where}"
    text = f": {printable(str(error))[:160]}" if isinstance(error, _SAFE) else ""
    return f"{type(error).__name__}{text}{_place(error)}"


def _place(error: BaseException) -> str:
    """Say where it was raised; empty for one that was raised nowhere."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"


_MOST_DIGITS = 18


def decimal(text: str) -> int | None:
    """Return a number as the kernel prints one, of ASCII digits alone; None for anything else.

    ``str.isdigit`` is no test for it: it takes ``²`` too, and ``int`` does not.
    """
    plain = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return int(text) if plain else None


def clean(raw: bytes) -> str:
    """Return bytes of the hardware as text: UTF-8, no control characters, no blanks at the ends."""
    return printable(raw.decode("utf-8", "replace"))


def read_raw(path: str, *, by_pages: bool = False) -> str:
    """Read a file, lines and all; ``""`` if it is absent. Raises ``OSError`` otherwise.

    ``by_pages`` is for procfs, which answers a page at a time, whatever is asked, and often less.
    Elsewhere a short answer is the last, and asking again would be half of the cost.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _ABSENT:
            return ""
        raise
    try:
        raw = more = os.read(descriptor, _PAGE)
        while (len(more) == _PAGE or (by_pages and more)) and len(raw) < _LONGEST:
            more = os.read(descriptor, _PAGE)
            raw += more
        return raw.decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def read_text(path: str) -> str:
    """Read a file as one printable line."""
    return printable(read_raw(path))


def listdir(path: str) -> list[str]:
    """List a directory; empty if it is absent."""
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
