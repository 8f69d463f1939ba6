"""Who may read and write what the agent makes: every path of a real run, whatever the umask was."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shell import Shell, agent_of, cluster_of, ended

DRIVER = "hardpoint.dev"
TABLE = {
    r"state": (stat.S_IFDIR, 0o700),
    r"state/ledger\.db(-wal|-shm)?": (stat.S_IFREG, 0o600),
    r"state/(ledger|claims|writer)\.lock": (stat.S_IFREG, 0o600),
    r"state/running": (stat.S_IFREG, 0o600),
    r"state/(status|node-labels)\.json": (stat.S_IFREG, 0o600),
    r"cdi": (stat.S_IFDIR, 0o755),
    r"cdi/hardpoint\.dev-[0-9a-f-]+\.json": (stat.S_IFREG, 0o644),
    r"cdi/hardpoint\.dev_metadata_[0-9a-f-]+\.json": (stat.S_IFREG, 0o644),
    r"kubelet/plugins": (stat.S_IFDIR, 0o755),  # where the kubelet has not made it yet
    r"kubelet/plugins/hardpoint\.dev": (stat.S_IFDIR, 0o750),
    r"kubelet/plugins/hardpoint\.dev/dra\.sock": (stat.S_IFSOCK, 0o600),
    r"kubelet/plugins_registry/hardpoint\.dev-reg\.sock": (stat.S_IFSOCK, 0o600),
    r"kubelet/plugins/hardpoint\.dev/dra-device-metadata(/[0-9a-f-]+(/r)?)?": (stat.S_IFDIR, 0o755),
    r"kubelet/plugins/hardpoint\.dev/dra-device-metadata/.*/metadata\.json": (stat.S_IFREG, 0o644),
}
"""Everything that may appear, with its type and mode. Sockets are answered to who may write them;
what containers and their runtime read is readable, in directories that they are not."""


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def paths(shell: Shell) -> set[Path]:
    roots = (shell.state, shell.cdi, shell.kubelet)
    return {path for root in roots if root.exists() for path in (root, *root.rglob("*"))}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mask", [0o022, 0o000, 0o077], ids=lambda mask: f"umask-{mask:03o}")
async def test_every_path_of_a_run_is_as_private_as_the_table_says(shell: Shell, mask: int) -> None:
    shell.install_radios("radio0")
    with shell.config.open("a") as config:
        config.write('[frontend.dra]\nmetadata = ["v1beta1"]\n')
    async with cluster_of(shell) as cluster:
        before = paths(shell)
        pod = cluster.allocate("radio0")
        with umask(mask):
            async with agent_of(shell) as agent:
                await cluster.kubelet.until_registered(DRIVER)
                await cluster.server.until(lambda: cluster.published == ["radio0"])
                await cluster.kubelet.prepare(pod)
                made = {path: path.lstat() for path in paths(shell) - before}
                assert await ended(agent) == 0

    unlike = {}
    met = set()
    for path, found in made.items():
        name = str(path.relative_to(shell.root))
        rule = next((rule for rule in TABLE if re.fullmatch(rule, name)), None)
        met.add(rule)
        kind, mode = stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode)
        if rule is None or (kind, mode) != TABLE[rule] or found.st_uid != os.geteuid():
            unlike[name] = oct(found.st_mode)
    assert unlike == {}
    assert met == set(TABLE), "a rule that nothing meets says nothing"


@pytest.mark.timeout(60)
async def test_the_agent_listens_on_nothing_but_its_two_sockets(shell: Shell) -> None:
    shell.install_radios("radio0")
    async with cluster_of(shell) as cluster, agent_of(shell) as agent:
        await cluster.kubelet.until_registered(DRIVER)

        found = sorted(listening(agent.pid))
        assert [os.path.dirname(path) for path in found] == [
            str(shell.kubelet / "plugins/hardpoint.dev"),
            str(shell.kubelet / "plugins_registry"),
        ]
        hidden = [os.path.basename(path) for path in found]  # a socket is renamed after it is bound
        assert all(re.fullmatch(r"\.hp[0-9a-f]{4}", name) for name in hidden), hidden
        assert await ended(agent) == 0


def listening(pid: int) -> set[str]:
    """Return what a process listens on: unix sockets by path as they were bound, TCP by address."""
    own = {
        found[1]
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if (found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link)))
    }
    heard = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = line.split()
        if inode in own and int(flags, 16) & 0x10000:  # __SO_ACCEPTCON
            heard.add(path[0] if path else "abstract")
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in own and words[3] == "0A":  # TCP_LISTEN
                heard.add(words[1])
    return heard
