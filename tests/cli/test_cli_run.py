"""`hardpoint run`: the agent as a process, from its start to its end."""

from __future__ import annotations

import shutil
import signal
import sqlite3
from pathlib import Path

import anyio
import pytest
from shell import Shell, agent_of, cluster_of, ended, log_of

from hardpoint._core.ledger.ledger import Ledger
from hardpoint.testing.kubelet import PodFailed

DRIVER = "hardpoint.dev"


def sockets(shell: Shell) -> list[Path]:
    return sorted(path for path in shell.kubelet.rglob("*") if path.is_socket())


@pytest.mark.parametrize("word", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.field_case("B02", "B05")
async def test_a_signal_ends_it_with_its_sockets_gone_and_its_slices_left(
    shell: Shell, word: signal.Signals
) -> None:
    shell.install_radios("radio0")
    async with cluster_of(shell) as cluster:
        before = sockets(shell)
        async with agent_of(shell) as agent:
            await cluster.kubelet.until_registered(DRIVER)
            await cluster.server.until(lambda: cluster.published == ["radio0"])
            served = sockets(shell)

            agent.send_signal(word)
            with anyio.fail_after(15):
                assert await agent.wait() == 0

        assert len(served) == len(before) + 2
        assert sockets(shell) == before
        assert cluster.published == ["radio0"]
    assert f"stopping signal={word.name}" in log_of(shell)


@pytest.mark.parametrize("hook", ["publish", "prepare"])
async def test_a_driver_that_hangs_does_not_keep_it_alive(shell: Shell, hook: str) -> None:
    shell.install_radios("radio0")
    if hook == "publish":
        shell.tell_radios("publish", "hang")
    async with cluster_of(shell) as cluster:
        pod = cluster.allocate("radio0")
        async with agent_of(shell) as agent, anyio.create_task_group() as tasks:
            await cluster.kubelet.until_registered(DRIVER)
            if hook == "prepare":
                await cluster.server.until(lambda: cluster.published == ["radio0"])
                shell.tell_radios("prepare", "hang")

                async def prepare() -> None:
                    with pytest.raises(PodFailed):
                        await cluster.kubelet.prepare(pod)

                tasks.start_soon(prepare)
                await _until(lambda: shell("holds", "--device", "radio0").code == 0)

            assert await ended(agent) == 0
        assert not [path for path in sockets(shell) if "reg.sock" in path.name]


async def _until(true: object) -> None:
    assert callable(true)
    with anyio.fail_after(15):
        while not await anyio.to_thread.run_sync(true):
            pass


@pytest.mark.field_case("B18")
async def test_what_it_held_is_there_for_the_next_one(shell: Shell) -> None:
    shell.install_radios("radio0")
    async with cluster_of(shell) as cluster:
        pod = cluster.allocate("radio0")
        async with agent_of(shell) as agent:
            await cluster.kubelet.until_registered(DRIVER)
            await cluster.server.until(lambda: cluster.published == ["radio0"])
            await cluster.kubelet.prepare(pod)
            agent.kill()
            await agent.wait()
            (before,) = cluster.kubelet.instances(DRIVER)
            await cluster.kubelet.until(lambda: not before.connected)
        async with agent_of(shell) as agent:
            await cluster.kubelet.until_registered(DRIVER)
            assert [node["path"] for node in cluster.kubelet.inject(pod).nodes] == ["/dev/radio0"]
            await cluster.kubelet.unprepare(pod)
            assert await ended(agent) == 0

    assert list(shell.cdi.iterdir()) == []


async def test_while_it_waits_for_labels_a_signal_ends_it(shell: Shell) -> None:
    shell.config.write_text('[[nodes]]\nlabels = {radio = "yes"}\nsettings = {domain = "a.b"}\n')
    async with cluster_of(shell) as cluster:
        cluster.server.trouble(status=503)
        async with agent_of(shell) as agent:
            await cluster.server.until(lambda: cluster.server.requests)

            assert await ended(agent) == 0


async def test_sections_by_label_wait_for_the_api_server(shell: Shell) -> None:
    shell.install_radios("radio0")
    shell.config.write_text(
        shell.config.read_text()
        + '[[nodes]]\nlabels = {radio = "yes"}\nsettings = {domain = "labelled.test"}\n'
    )
    async with cluster_of(shell) as cluster:
        cluster.server.edit("nodes", "node-1").update(metadata={"labels": {"radio": "yes"}})
        async with agent_of(shell) as agent:
            await cluster.kubelet.until_registered("labelled.test")
            assert await ended(agent) == 0
        devices = shell("devices", "--sysfs", shell.tree, "--json").json["devices"]

    assert [device["domain"] for device in devices] == ["labelled.test"]


async def test_it_says_that_a_recorded_machine_is_served(shell: Shell) -> None:
    shell.install_radios("radio0")
    async with cluster_of(shell) as cluster, agent_of(shell):
        await cluster.server.until(lambda: cluster.published == ["radio0"])
        (found,) = cluster.server.items("resourceslices")

    assert found["spec"]["nodeName"] == "node-1"
    assert "serving a recorded machine node=node-1" in log_of(shell)


# -- what it cannot start with --------------------------------------------------------------------


def test_a_tree_that_is_no_machine_is_said_in_a_sentence(shell: Shell) -> None:
    answer = shell("run", "--sysfs", str(shell.root / "nowhere"))

    assert answer.code == 1
    what = "is no recorded machine: there is no such file or directory"
    assert answer.err == f"hardpoint: {shell.root}/nowhere {what}\n"


def test_a_state_directory_that_is_a_file_is_said_in_a_sentence(shell: Shell) -> None:
    shell.state.write_text("in the way")
    answer = shell("run", "--sysfs", shell.tree)

    assert answer.code == 1
    (said,) = [line for line in answer.err.splitlines() if line.startswith("hardpoint: ")]
    assert str(shell.state) in said
    assert "Traceback" not in answer.err


def test_a_ledger_of_a_later_release_is_left_alone(shell: Shell) -> None:
    Ledger(shell.state).close()
    with sqlite3.connect(shell.state / "ledger.db") as database:
        database.execute("UPDATE meta SET value = '999' WHERE key IN ('schema', 'readable_by')")
    database.close()
    before = (shell.state / "ledger.db").read_bytes()

    answer = shell("run", "--sysfs", shell.tree)

    assert answer.code == 1
    assert "has schema version 999" in answer.err.splitlines()[-1]
    assert (shell.state / "ledger.db").read_bytes() == before


STUBBORN = """
import anyio
from hardpoint import Device, hookimpl


class Radios:
    def __init__(self, node, settings): ...

    @hookimpl
    def publish_devices(self):
        return [Device(name="radio0", kind="radio")]

    @hookimpl
    async def watch_devices(self, hint):
        while True:
            try:
                await anyio.sleep(60)
            except BaseException:
                pass
"""


async def test_a_driver_that_will_not_be_cancelled_does_not_keep_it_alive(shell: Shell) -> None:
    shell.install_radios()
    (shell.root / "packages/radios.py").write_text(STUBBORN)
    async with cluster_of(shell) as cluster:
        before = sockets(shell)
        async with agent_of(shell) as agent:
            await cluster.kubelet.until_registered(DRIVER)

            assert await ended(agent) == 1

        assert sockets(shell) == before
    assert "a plugin does not end" in log_of(shell)


async def test_an_agent_whose_state_is_removed_ends_and_the_next_finds_what_was_held(
    shell: Shell,
) -> None:
    shell.install_radios("radio0")
    async with cluster_of(shell) as cluster:
        async with agent_of(shell) as agent:
            await cluster.kubelet.until_registered(DRIVER)
            await cluster.server.until(lambda: cluster.published == ["radio0"])
            await cluster.kubelet.prepare(cluster.allocate("radio0"))
            shutil.rmtree(shell.state)

            with anyio.fail_after(15):
                assert await agent.wait() == 1
            assert "ledger.db was removed or replaced while it was in use" in log_of(shell)

        async with agent_of(shell):
            await cluster.kubelet.until_registered(DRIVER)
            with pytest.raises(PodFailed, match="is in use"):
                await cluster.kubelet.prepare(cluster.allocate("radio0", name="second"))
