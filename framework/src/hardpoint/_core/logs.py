"""Structured logs on standard error: one event a line, as text or JSON.

Messages are key=value already; a secret, a token or a raw hardware string is never among them.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal


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
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(form: Literal["text", "json"] = "text", level: str = "info") -> None:
    """Log to standard error from now on. Libraries' own chatter is kept to warnings."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for library in ("httpx2", "httpcore2", "grpc", "lightkube", "asyncio", "stevedore"):
        logging.getLogger(library).setLevel(logging.WARNING)
