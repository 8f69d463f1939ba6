"""What several targets stand on: a loop, a quick directory, what the API server would refuse."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from hardpoint._core.logs import TextFormatter
from hardpoint.model import Domain, Offer
from hardpoint.testing._api_rules import SliceRules
from hardpoint_dra.translate import render

_T = TypeVar("_T")

DOMAIN = Domain.named("hardpoint.dev")
NODE = "node-1"
MINORS = (37, 34)
CANARY = "C4NARY"
"""Stands in every string of the hardware; it may be published, and never be logged."""


class Stage(ExitStack):
    """A directory in memory, an event loop that stays, and every line that was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path()
        self.lines: list[str] = []
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        super().__enter__()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="hp-fuzz-", dir=memory))
        self.callback(shutil.rmtree, self.root, ignore_errors=True)
        self.enter_context(self._runner)
        handler = _Lines(self.lines)
        handler.setFormatter(TextFormatter("%(levelname)s %(name)s %(message)s"))
        root = logging.getLogger()
        before, kept = root.level, root.handlers[:]
        root.handlers = [handler]
        root.setLevel(logging.DEBUG)
        self.callback(root.setLevel, before)
        self.callback(setattr, root, "handlers", kept)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        answer = super().__exit__(*exception)
        gc.collect()  # what a loop has left behind is said here, and not in somebody else's test
        return answer

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._runner.run(work)

    def fresh(self, name: str) -> Path:
        """Return an empty directory of that name."""
        path = self.root / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def quiet(self, *secrets: str) -> None:
        """Raise unless nothing that was logged since the last time holds one of these."""
        said, self.lines[:] = "\n".join(self.lines), []
        for secret in secrets or (CANARY,):
            assert secret not in said, f"a log line holds {secret}: {said[:2000]}"


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


def check_published(offer: Offer, domain: Domain = DOMAIN) -> None:
    """Raise unless the API server would take every slice of an offer."""
    for body in render(offer, domain, NODE, "uid-of-node"):
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")
        for minor in MINORS:
            _as_kept_by(minor, body)
            found = [str(cause) for cause in SliceRules(minor).check(body, None)]
            assert not found, f"Kubernetes 1.{minor} would refuse the slice: {found}"


def _as_kept_by(minor: int, body: dict[str, Any]) -> None:
    """Drop what a server of that release drops before it looks: taints are off in 1.34."""
    if minor < 35:
        for device in body["spec"].get("devices", ()):
            device.pop("taints", None)


def rest_of(offer: Offer, names: Iterable[str]) -> dict[str, Any]:
    """Return what is offered under these names."""
    wanted = set(names)
    return {one.name: one for one in offer.devices if one.name in wanted}
