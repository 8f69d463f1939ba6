"""A device that is lent to the cluster by hand: offered, claimed, renumbered, and given back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from shell import Answer, Shell, agent_of, cluster_of, ended

from hardpoint.grants import published_name

SETTINGS = """
domain = "bcd.dev"
dra_driver = "gpu.bcd.dev"
drivers = ["radios"]
policies = ["cdi_grants", "prepared_claims"]

[policy.cdi_grants]
directory = "{directory}"
vendor = "bcd.dev"
device_class = "radio"
kinds = ["radio"]
"""


async def _asked(shell: Shell, *words: str) -> Answer:
    return await anyio.to_thread.run_sync(lambda: shell(*words))


async def _eventually(condition: Callable[[], Any]) -> None:
    with anyio.fail_after(15):
        while not condition():  # noqa: ASYNC110 - another process sets no Event
            await anyio.sleep(0.02)


def _outdated(hold: Path) -> None:
    """Let a hold be of the time before the radios changed places."""
    document = json.loads(hold.read_text())
    (node,) = document["devices"][0]["containerEdits"]["deviceNodes"]
    node |= {"path": "/dev/radio0", "minor": 0}
    temporary = hold.with_suffix(".new")
    temporary.write_text(json.dumps(document))
    temporary.rename(hold)


@pytest.mark.timeout(60)
async def test_a_grant_by_hand_is_offered_corrected_and_reported_over(short_path: Path) -> None:
    shell, directory = Shell(short_path), short_path / "etc-cdi"
    directory.mkdir()
    shell.install_radios("radio0", "radio1")
    shell.config.write_text(SETTINGS.format(directory=directory))
    reports = shell.state / "grants"
    async with cluster_of(shell, directory) as cluster, agent_of(shell) as agent:
        await cluster.kubelet.until_registered("gpu.bcd.dev")
        await _asked(shell, "grant", "day", "radio0", "--sysfs", shell.tree)
        other = published_name("radio0", "day")
        await _eventually(lambda: cluster.published == [other])

        granted = await _asked(shell, "grant", "night", "radio1", "--sysfs", shell.tree)
        assert (granted.code, granted.err) == (0, "")
        name = published_name("radio1", "night")
        await _eventually(lambda: cluster.published == [other, name])
        await _eventually((reports / "night.json").exists)
        assert json.loads((reports / "night.json").read_text())["outcome"] == "in-force"

        pod = cluster.allocate(name, driver="gpu.bcd.dev")
        (prepared,) = await cluster.kubelet.prepare(pod)
        assert "bcd.dev/radio=radio1" in prepared.cdi_ids
        assert cluster.kubelet.inject(pod).paths == ("/dev/radio1",)

        copy = shell.cdi / "grant_bcd-night.json"
        _outdated(directory / "bcd-night.json")
        await _eventually(copy.exists)
        assert cluster.kubelet.inject(pod).paths == ("/dev/radio1",)

        revoked = await _asked(shell, "revoke", "night", "--wait", "--timeout", "0")
        assert revoked.code == 1  # a pod has it
        await _eventually(lambda: not copy.exists() and cluster.published == [other])
        assert "released" not in json.loads((reports / "night.json").read_text())
        await cluster.kubelet.unprepare(pod)
        await _eventually(lambda: "released" in (reports / "night.json").read_text())
        assert json.loads((reports / "night.json").read_text())["devices"] == ["radio1"]
        assert await ended(agent) == 0
