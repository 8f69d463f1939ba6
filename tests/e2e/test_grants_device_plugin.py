"""A device that is lent through the device plugin API, and taken back from a pod that has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from shell import Shell, agent_of, cluster_of, ended

from hardpoint.testing.cdi import CdiError
from hardpoint.testing.kubelet import Container, Pod, PodFailed

RADIO = "bcd.dev/radio"
SETTINGS = """
domain = "bcd.dev"
drivers = ["radios"]
frontends = ["deviceplugin"]
policies = ["cdi_grants", "metrics", "pod_resources"]

[policy.cdi_grants]
directory = "{root}/etc-cdi"
vendor = "bcd.dev"
device_class = "radio"
kinds = ["radio"]

[policy.pod_resources]
settle = 0.2
worker_files = ["{root}/kubelet"]

[policy.metrics]
listen = "{root}/m.sock"
"""


async def _eventually(condition: Callable[[], Any]) -> None:
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - another process sets no Event
            await anyio.sleep(0.02)


def _pod(name: str) -> Pod:
    return Pod(name=name, containers=(Container(name="main", resources={RADIO: 1}),))


async def _scraped(path: Path) -> str:
    said = b""
    async with await anyio.connect_unix(path) as stream:
        await stream.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        try:
            while True:
                said += await stream.receive()
        except anyio.EndOfStream:
            return said.decode()


@pytest.mark.timeout(90)
async def test_a_device_whose_grant_ended_is_no_id_and_no_other_grants_while_a_pod_has_it(
    short_path: Path,
) -> None:
    shell = Shell(short_path)
    (short_path / "etc-cdi").mkdir()
    shell.install_radios("radio0", "radio1")
    shell.config.write_text(SETTINGS.format(root=short_path))
    plugins, reports = short_path / "kubelet/device-plugins", shell.state / "grants"

    async def told(*words: str) -> Any:
        return await anyio.to_thread.run_sync(lambda: shell(*words))

    async with (
        cluster_of(shell, short_path / "etc-cdi", device_plugins=plugins) as cluster,
        agent_of(shell) as agent,
    ):
        kubelet = cluster.kubelet
        await kubelet.admit(Pod(name="bystander"))
        await told("grant", "day", "radio0", "--sysfs", shell.tree)
        await _eventually(lambda: set(kubelet.listed(RADIO)) == {"radio0@day"})
        await _eventually(lambda: kubelet.allocatable(RADIO) == 1)
        (given,) = await kubelet.admit(_pod("train"))
        assert given.ids == ("radio0@day",)
        assert (await kubelet.run(_pod("train"))).paths == ("/dev/radio0",)
        await _eventually((short_path / "m.sock").exists)
        assert 'device="radio0",claim="bcd.dev/radio/radio0@day"' in await _scraped(
            short_path / "m.sock"
        )

        await told("grant", "other", "radio1", "--sysfs", shell.tree)
        await _eventually(lambda: set(kubelet.listed(RADIO)) == {"radio0@day", "radio1@other"})
        await told("revoke", "day")
        await _eventually(lambda: set(kubelet.listed(RADIO)) == {"radio1@other"})
        with pytest.raises(CdiError, match=r"bcd\.dev/radio=radio0|device-withheld"):
            await kubelet.run(_pod("train"))
        await told("grant", "night", "radio0", "--sysfs", shell.tree)
        await _eventually((reports / "night.json").exists)
        assert json.loads((reports / "night.json").read_text())["outcome"] == "overlap"
        assert "released" not in (reports / "day.json").read_text()

        (given,) = await kubelet.admit(_pod("next"))
        assert given.ids == ("radio1@other",)
        with pytest.raises(PodFailed, match="Available: 0"):
            await kubelet.admit(_pod("late"))
        assert "hardpoint_releases_pending 1\n" in await _scraped(short_path / "m.sock")
        assert await ended(agent) == 0
