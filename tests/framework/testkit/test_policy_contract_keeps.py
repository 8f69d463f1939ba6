"""Policies that keep the contract pass its suite, whichever hooks they have."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.testkit.good_policies import Files, Labels, Reaper

from hardpoint.grants import Release
from hardpoint.testing import PolicyContract
from hardpoint.testing.policy_contract import PolicyNode


class OfFiles(PolicyContract):
    plugin = Files

    def configure(self, root: Path) -> Mapping[str, Any]:
        return {"directory": str(root / "acme")}

    async def arrange(self, node: PolicyNode) -> None:
        for name in ("grants", "users", "rivals", "reports"):
            (node.root / "acme" / name).mkdir(parents=True)
        (node.root / "acme/grants/alloc-1").write_text(node.devices[0].name)

    async def make_unreadable(self, node: PolicyNode) -> None:
        (node.root / "acme").rename(node.root / "gone")

    async def make_readable(self, node: PolicyNode) -> None:
        (node.root / "gone").rename(node.root / "acme")

    async def make_unreportable(self, node: PolicyNode) -> None:
        shutil.rmtree(node.root / "acme/reports")

    async def use(self, node: PolicyNode, release: Release) -> None:
        (node.root / "acme/users/job-7").write_text(f"{release.names[0]} 7")

    async def change(self, node: PolicyNode) -> None:
        (node.root / "acme/grants/alloc-2").write_text(node.devices[1].name)


class TestFiles(OfFiles):
    pass


class TestReaper(PolicyContract):
    plugin = Reaper


class OfLabels(PolicyContract):
    plugin = Labels

    async def until_served(self, node: PolicyNode) -> None:
        def labelled() -> bool:
            (found,) = (one["metadata"] for one in node.server.items("nodes"))
            return "acme.dev/here" in found.get("labels", {})

        await node.until(labelled)


class TestLabels(OfLabels):
    pass
