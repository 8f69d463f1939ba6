"""A grant ends under a running pod: the whole agent has it deleted, and reports the end after."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from shell import NODE, Cluster, Shell, agent_of, cluster_of, ended

from hardpoint.grants import published_name
from hardpoint.testing.kubelet import Container, Pod

SETTINGS = """
drivers = ["radios"]
frontends = ["{frontend}"]
policies = ["cdi_grants", "pod_reaper", "pod_resources", "prepared_claims"]

[policy.cdi_grants]
directory = "{directory}"
vendor = "hardpoint.dev"
device_class = "radio"
kinds = ["radio"]

[policy.pod_reaper]
first_after_s = 1
again_after_s = 1
"""
RADIO = "hardpoint.dev/radio"


class Story:
    """One node with two radios, one of them granted to allocation ``day``."""

    def __init__(self, shell: Shell, cluster: Cluster) -> None:
        self.shell, self.cluster = shell, cluster

    async def say(self, *words: str) -> None:
        answer = await anyio.to_thread.run_sync(lambda: self.shell(*words))
        assert answer.err == ""

    async def runs(self) -> None:
        """Wait until the agent says something of itself: without one, a grant waits for it."""
        with anyio.fail_after(20):
            while (await anyio.to_thread.run_sync(lambda: self.shell("status"))).code:  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def until(self, condition: Callable[[], Any]) -> None:
        with anyio.fail_after(20):
            while not condition():  # noqa: ASYNC110 - another process sets no Event
                await anyio.sleep(0.02)

    def show(self, pod: Pod, namespace: str = "default") -> None:
        """Let the API server have a pod that the kubelet runs."""
        self.cluster.server.add(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": pod.name, "namespace": namespace},
                "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "i"}]},
                "status": {"phase": "Running"},
            }
        )
        self.cluster.server.edit("pods", pod.name, namespace).change(
            lambda found: found["metadata"].update(
                creationTimestamp="2020-01-01T00:00:00Z", uid=pod.identity
            )
        )

    def deletes(self) -> list[tuple[str, str, int]]:
        """Name, UID and grace of each deletion of a pod."""
        return [
            (
                seen.path.rpartition("/")[2],
                seen.body["preconditions"]["uid"],
                seen.body["gracePeriodSeconds"],
            )
            for seen in self.cluster.server.requests
            if seen.method == "DELETE" and "/pods/" in seen.path
        ]

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.shell.state / "grants/day.json").read_text())
        return found


@asynccontextmanager
async def story(root: Path, frontend: str) -> AsyncIterator[Story]:
    shell, directory = Shell(root), root / "etc-cdi"
    directory.mkdir()
    shell.install_radios("radio0", "radio1")
    shell.config.write_text(SETTINGS.format(directory=directory, frontend=frontend))
    plugins = shell.kubelet / "device-plugins"
    async with (
        cluster_of(shell, directory, device_plugins=plugins) as cluster,
        agent_of(shell) as agent,
    ):
        made = Story(shell, cluster)
        await made.runs()
        await made.say("grant", "night", "radio1", "--sysfs", shell.tree)  # one that goes on
        await made.say("grant", "day", "radio0", "--sysfs", shell.tree)
        yield made
        assert await ended(agent) == 0


@pytest.mark.timeout(60)
async def test_a_pod_with_an_id_of_the_grant(short_path: Path) -> None:
    async with story(short_path, "deviceplugin") as told:
        kubelet = told.cluster.kubelet
        await kubelet.until_allocatable(RADIO, 2)
        pod = Pod(name="listen", containers=(Container(name="main", resources={RADIO: 2}),))
        await kubelet.admit(pod)
        await kubelet.run(pod)
        told.show(pod)
        bystander = Pod(name="bystander", containers=(Container(name="main"),))
        await kubelet.admit(bystander)
        told.show(bystander)

        await told.say("revoke", "day")
        await told.until(lambda: len(told.deletes()) == 2)
        assert told.deletes() == [("listen", pod.identity, 10), ("listen", pod.identity, 0)]
        assert "released" not in told.report()


@pytest.mark.timeout(60)
async def test_a_pod_with_a_claim_on_the_grant(short_path: Path) -> None:
    async with story(short_path, "dra") as told:
        kubelet, name = told.cluster.kubelet, published_name("radio0", "day")
        await told.until(lambda: name in told.cluster.published)
        pod = told.cluster.allocate(name)
        await kubelet.prepare(pod)
        told.show(pod)
        successor = Pod(name="another", claims=pod.claims)
        told.show(successor)

        await told.say("revoke", "day")
        await told.until(lambda: len(told.deletes()) == 2)
        assert told.deletes() == [(pod.name, pod.identity, 10), (pod.name, pod.identity, 0)]
        assert "released" not in told.report()
        await kubelet.unprepare(pod)
        await told.until(lambda: "released" in told.report())
