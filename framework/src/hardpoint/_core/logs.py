"""Structured logs on standard error: one event a line, as text or JSON.

Messages are key=value already; a secret, a token or a raw hardware string is never among them. What
an exception says may be one, so a trace names places and types alone.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal

from hardpoint.reading import said

_UNSHOWN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\ud800-\udfff]"
)
"""What would end a line, steer a terminal, hide or turn text, or is none that a file can hold."""


class TextFormatter(logging.Formatter):
    """One line for each event, whatever is in it, and the trace below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line, what cannot be shown escaped: nobody writes two lines, or none."""
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """Return where it was raised, and its type."""
        return trace(ei[1])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message``, and ``trace``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = trace(record.exc_info[1])
        return json.dumps(line)


def escaped(text: str) -> str:
    """Return text on one line, with what cannot be shown as ``\\x1b`` or ``\\u202e``."""
    return _UNSHOWN.sub(lambda match: ascii(match[0])[1:-1], text)


def trace(error: BaseException | None) -> str:
    """Return where an error came from, the first cause first; of what it says, only its type.

    The text of an exception may quote a serial number (``invalid literal for int(): 'S3X…'``).
    """
    return "\n".join(reversed(list(_traces(error, set()))))


def _traces(error: BaseException | None, seen: set[int]) -> Iterator[str]:
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield f"{_frames(error.__traceback__)}{escaped(said(error))}"
        for inner in getattr(error, "exceptions", ()):
            yield from _traces(inner, seen)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _frames(found: TracebackType | None) -> str:
    return "".join(traceback.format_list(traceback.extract_tb(found)))


def configure(form: Literal["text", "json"] = "text", level: str = "info") -> None:
    """Log to standard error from now on. Libraries' own chatter is kept to warnings."""
    handler = logging.StreamHandler(sys.stderr)
    text = TextFormatter("%(asctime)s %(levelname)-7s %(name)s %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for library in ("httpx2", "httpcore2", "grpc", "lightkube", "asyncio", "stevedore"):
        logging.getLogger(library).setLevel(logging.WARNING)
