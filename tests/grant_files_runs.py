"""Lives of hold files, their corrected copies and their reports, to be walked like other grants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grant_runs import GrantRun
from grant_story import Site
from grant_truth import MAJOR, MINORS, Played, Truth

from hardpoint._core.plugins.discovery import Plugin
from hardpoint.policies.cdi_grants import CdiGrants

_STALE = 50
"""What is added to the number of each node in a hold that was written before the last boot."""


class FileSite(Site):
    """Grants are files; ``radio0`` is never called by the number that it has."""

    def plugins(self) -> list[tuple[Plugin, Mapping[str, Any]]]:
        self.holds.mkdir(exist_ok=True)
        section = {"directory": str(self.holds), "vendor": "bcd.dev", "kinds": ["radio"]}
        driver, _, evidence = super().plugins()
        return [driver, (Plugin("policy", "cdi_grants", loaded=CdiGrants), section), evidence]

    @property
    def holds(self) -> Path:
        return self.root / "etc-cdi"

    def state(self, grants: dict[str, list[str]]) -> None:
        super().state(grants)
        for allocation, devices in grants.items():
            new = self.holds / f".{allocation}.new"
            new.write_text(json.dumps(_hold(devices)))
            new.rename(self.holds / f"bcd-{allocation}.json")
        for path in self.holds.glob("bcd-*.json"):
            if path.stem.removeprefix("bcd-") not in grants:
                path.unlink()

    def truth(self) -> Truth:
        """Return what is so; what the source heard is in the reports."""
        truth = super().truth()
        truth.reported = {}
        for path in (self.paths.state / "grants").glob("[!.]*.json"):
            said = json.loads(path.read_text())
            truth.reported[path.stem] = "released" if said.get("released") else said["outcome"]
        return truth

    def check(self) -> None:
        super().check()
        truth = self.truth()
        for allocation, what in truth.reported.items():
            if what == "released":
                for why in Played(self.root).not_released(truth, allocation):
                    raise AssertionError(f"{allocation} is reported released: {why}")

    # -- copies -----------------------------------------------------------------------------------

    async def copied(self, allocation: str) -> None:
        """Wait until a corrected copy has the nodes' numbers."""
        right = f'"minor": {MINORS["radio0"]}'
        await self.until(f"{allocation} is corrected", lambda: right in self._copy(allocation))

    async def uncopied(self, allocation: str) -> None:
        await self.until(f"{allocation} has no copy", lambda: not self._copy(allocation))

    def _copy(self, allocation: str) -> str:
        try:
            path = self.paths.cdi / f"grant_bcd-{allocation}.json"
            return path.read_text()
        except FileNotFoundError:
            return ""

    def _is_clean(self) -> bool:
        left = {path.name for path in self.paths.cdi.glob("*")}
        return left == {"grant_bcd-last.json"}


def _hold(devices: list[str]) -> dict[str, Any]:
    return {
        "cdiVersion": "0.6.0",
        "kind": "bcd.dev/radio",
        "annotations": {"bcd.dev/binding": "kubernetes"},
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": [_node(name)]}} for name in devices
        ],
    }


def _node(name: str) -> dict[str, Any]:
    stale = _STALE if name == "radio0" else 0
    return {"path": f"/dev/{name}", "major": MAJOR, "minor": MINORS[name] + stale}


class HoldFiles(GrantRun):
    """A hold file with wrong numbers is corrected, held, removed under its pod, and reported."""

    site = FileSite
    story = (
        *("grant a:radio0 b:radio1", "copied a", "run u1 a radio0", "use a"),
        *("grant b:radio1", "pending a", "uncopied a", "cut u1", "stays a"),
        *("grant a:radio0 b:radio1", "copied a", "grant b:radio1", "pending a", "end u1"),
        *("stays a", "use", "released a", "grant b:radio1 c:radio0", "copied c"),
        *("run u2 c radio0",),
    )
