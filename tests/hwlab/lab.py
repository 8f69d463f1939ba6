"""The lab from outside: where it is, and one boot of it with the tests that run inside.

The lab is a tool beside this repository and no part of it: ``hwlab run PROFILE -- COMMAND`` boots
a kernel with emulated hardware and runs the command in it, over this machine's files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hwlab.boots import Boot

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "build/hwlab-logs"

BOOT_TIMEOUT = 600
"""Seconds: a boot takes 7 to 35 where nothing else runs, and several times that elsewhere."""
TESTS_TIMEOUT = 3600
STEADY_CLOCK = "clocksource=hpet"
"""Kernel parameter. Where the host is busy the kernel measures its processor wrong, and its clock
ran three times too fast, with every time-out in it."""
_QUIET = 0.1


class NoLab(Exception):
    """Why no machine can be booted here."""


def find() -> Path:
    """Return the lab's command: ``HARDPOINT_HWLAB``, or ``shared/hwlab`` beside the checkout.

    Raises ``NoLab`` where it is not there or not set up.
    """
    named = os.environ.get("HARDPOINT_HWLAB", "")
    at = Path(named).absolute() if named else ROOT.parent / "shared/hwlab"
    command = at / "hwlab" if at.is_dir() else at
    if not command.is_file():
        raise NoLab(f"there is no lab at {at}: set HARDPOINT_HWLAB to where hwlab is")
    if shutil.which("qemu-system-x86_64") is None:
        raise NoLab("QEMU is not installed: run `hwlab setup`")
    said = subprocess.run(
        [command, "status"], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    if "(ready" not in said.stdout:
        why = " ".join(said.stdout.split()) or said.stderr.strip()
        raise NoLab(f"the lab is not set up, run `hwlab setup`: {why[:300]}")
    return command


class Guest:
    """A machine that runs the tests of one boot; their reports come as each one ends."""

    def __init__(self, boot: Boot, process: subprocess.Popen[bytes], logs: Path) -> None:
        self.boot, self._process, self.logs = boot, process, logs
        self._read = 0
        self._rest = b""
        self._reports: dict[str, list[dict[str, Any]]] = {}

    def reports(self, nodeid: str) -> list[dict[str, Any]]:
        """Return what the guest's pytest reported of a test, once that is over.

        Empty where the guest ended without a word on it; ``why`` says more.
        """
        while True:
            ended = self._process.poll() is not None
            self._take()
            found = self._reports.get(nodeid, [])
            if any(report["when"] == "teardown" for report in found):
                return self._reports.pop(nodeid)
            if ended:
                return []
            time.sleep(_QUIET)

    def _take(self) -> None:
        try:
            with (self.logs / "reports.jsonl").open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            report = json.loads(line)
            self._reports.setdefault(report["nodeid"], []).append(report)

    def why(self) -> str:
        """Say how the guest ended, with the end of what it printed."""
        printed = (self.logs / "output").read_text("utf-8", "replace")
        status = self._process.poll()
        return f"{self.boot.name} ended with status {status} ({self.logs}):\n{printed[-4000:]}"

    def end(self) -> None:
        """End the machine; the lab takes QEMU with it."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def booted(command: Path, boot: Boot, nodeids: Sequence[str]) -> Iterator[Guest]:
    """Boot a machine and begin these tests in it, in this order."""
    logs = LOGS / boot.name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    (logs / "tests").write_text("".join(f"{nodeid}\n" for nodeid in nodeids))
    with (logs / "output").open("wb") as output:
        process = subprocess.Popen(
            [command, "run", *boot.words, *_options(boot, logs), "--", *_pytest(logs)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    guest = Guest(boot, process, logs)
    try:
        yield guest
    finally:
        guest.end()


def _options(boot: Boot, logs: Path) -> list[str]:
    variables = {"HARDPOINT_HWLAB_BOOT": boot.name, "HARDPOINT_HWLAB_LOGS": str(logs)}
    return [
        *("--timeout", str(TESTS_TIMEOUT), "--boot-timeout", str(BOOT_TIMEOUT)),
        *("--share", str(logs), "--console-log", str(logs / "console")),
        *("--append", STEADY_CLOCK),
        *(word for name, value in variables.items() for word in ("--env", f"{name}={value}")),
    ]


def _pytest(logs: Path) -> list[str]:
    """Return the command that runs the tests in the guest.

    Nothing is slow there by chance: processors are emulated, and others use the host's.
    """
    return [
        *(sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider"),
        *("-o", "timeout=1200", "-o", "faulthandler_timeout=900", "--rootdir", str(ROOT)),
        *("-vv", "-m", "hwlab", f"@{logs / 'tests'}"),
    ]
