"""The CDI format that the settings allow, in the file of a claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import World, claim, reading


async def _file(world: World, **settings: Any) -> dict[str, Any]:
    wanted = claim("render0")
    async with world.agent(**settings) as agent:
        await agent.prepare(wanted.key, reading(wanted))
        (file,) = world.paths.cdi.glob("*.json")
        found: dict[str, Any] = json.loads(file.read_text())
        await agent.unprepare(wanted.key)
    return found


@pytest.mark.field_case("D03", "H01")
async def test_a_runtime_of_before_groups_gets_a_file_that_it_reads(tmp_path: Path) -> None:
    world = World(tmp_path)
    render = world.machine.platform("acme-render0")
    render.node("radio", "render0", 240, 0, gid=104)

    new, old = await _file(world), await _file(world, cdi_version="0.6.0")

    edits = new["devices"][0]["containerEdits"]
    assert (new["cdiVersion"], edits["additionalGids"]) == ("0.7.0", [104])
    assert old["cdiVersion"] == "0.5.0"
    assert "additionalGids" not in old["devices"][0]["containerEdits"]
    assert old["devices"][0]["containerEdits"]["deviceNodes"] == edits["deviceNodes"]
