"""Hold files keep the promises of a source of grants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardpoint.policies.cdi_grants import CdiGrants
from hardpoint.policies.cdi_grants.documents import judged
from hardpoint.policies.cdi_grants.writing import composed, grant
from hardpoint.testing import PolicyContract
from hardpoint.testing._policy_node import ALLOCATION, PolicyNode


class TestCdiGrants(PolicyContract):
    plugin = CdiGrants
    writes_api = False

    def configure(self, root: Path) -> Mapping[str, Any]:
        return {"directory": str(root / "holds")}

    async def arrange(self, node: PolicyNode) -> None:
        settings = CdiGrants.Settings(directory=node.root / "holds")
        settings.directory.mkdir()
        document = composed(settings, node.devices, node.agent.node)
        assert judged(document, "hardpoint-a.json", settings)
        grant(settings, ALLOCATION, document)

    async def make_unreadable(self, node: PolicyNode) -> None:
        (node.root / "holds").rename(node.root / "away")
        (node.root / "holds").write_text("in the way")

    async def make_readable(self, node: PolicyNode) -> None:
        (node.root / "holds").unlink()
        (node.root / "away").rename(node.root / "holds")

    async def make_unreportable(self, node: PolicyNode) -> None:
        node.agent.paths.state.mkdir(exist_ok=True)
        (node.agent.paths.state / "grants").write_text("in the way")

    async def until_served(self, node: PolicyNode) -> None:
        await node.policy().ask("grant_devices")

    async def change(self, node: PolicyNode) -> None:
        path = node.root / "holds" / f"hardpoint-{ALLOCATION}.json"
        document = json.loads(path.read_text())
        document["devices"].pop()
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(document))
        temporary.rename(path)
