"""A whole run at debug level over recorded machines: nothing that is theirs or secret is logged.

Serial numbers, MAC addresses, worldwide names and UUIDs are read from the recorded tree itself; the
token and the claim's contents are ours. They may be published and delivered, never written down.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from recorded_machines import DATA
from shell import MEMORY, Cluster, Shell, cluster_of, ended, log_of

from hardpoint.testing.kubelet import Pod, PodFailed

TOKEN = "eyJhbGciOi.T0KEN-of-the-agent.c2ln"
IN_CLAIM = "C4NARY-in-a-claim"
TELLING = re.compile(
    r"(serial|serial_number|unique_id|uniq|wwid|wwn|uuid|address|mac|nguid|eui|manfid|product_serial"
    r"|board_serial|chassis_serial|product_uuid|device__serial|iSerial)"
)
"""Names of sysfs attributes that tell one unit from another."""
PLAIN = re.compile(r"[0-9a-fA-F:.\-]{0,4}|0+|(00:?)+|[0-9]+|.*\.[0-9]|[0-9a-f]{4}:[0-9a-f]{2}:.*")
"""Values that stand elsewhere too: empty, zeros, numbers, PCI addresses."""


def told(archive: Path) -> set[str]:
    """Return what the machine says of single units."""
    found = set()
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isreg() and TELLING.fullmatch(os.path.basename(member.name)):
                content = tar.extractfile(member)
                text = (content.read() if content else b"").decode("utf-8", "replace").strip()
                if len(text) > 5 and not PLAIN.fullmatch(text):
                    found.add(text)
    return found


@asynccontextmanager
async def agent_on(shell: Shell, archive: Path) -> AsyncIterator[Process]:
    with (shell.root / "agent.log").open("ab") as log:
        process = await anyio.open_process(
            shell.words("run", "--sysfs", str(archive)),
            env=shell.environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


@pytest.fixture
def unpacked() -> Iterator[Path]:
    """Where 40,000 small files cost two seconds rather than twenty."""
    path = Path(tempfile.mkdtemp(prefix="hp-quiet-", dir=MEMORY))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def secretive(cluster: Cluster, device: str, name: str, key: str) -> Pod:
    """Make a claim with canaries in an annotation, and in a parameter of the driver."""
    pod = cluster.allocate(device, name=name)
    parameters = {"apiVersion": "hardpoint.dev/v1", "kind": "UsbParameters", key: IN_CLAIM}
    opaque = {"driver": "hardpoint.dev", "parameters": parameters}

    def change(body: dict[str, Any]) -> None:
        body["metadata"]["annotations"] = {"note": IN_CLAIM}
        body["status"]["allocation"]["devices"]["config"] = [
            {"source": "FromClaim", "requests": ["r"], "opaque": opaque}
        ]

    cluster.server.edit("resourceclaims", name, "default").change(change)
    return pod


@pytest.mark.timeout(120)
@pytest.mark.parametrize("machine", ["usbzoo", "desktop", "disks"])
async def test_nothing_of_the_hardware_and_no_secret_is_in_what_a_run_logs(
    shell: Shell, unpacked: Path, machine: str
) -> None:
    archive = DATA / f"{machine}.tar.gz"
    secrets = {*told(archive), TOKEN, IN_CLAIM}
    assert len(secrets) > 3
    (shell.root / "token").write_text(TOKEN)
    shell.environment |= {
        "HARDPOINT_LOG__LEVEL": "debug",
        "HARDPOINT_KUBE__TOKEN_FILE": str(shell.root / "token"),
        "HARDPOINT_DRIVERS": "pci_drm,usb",
        "TMPDIR": str(unpacked),
    }
    async with cluster_of(shell) as cluster:
        cluster.server.require_token(TOKEN)
        async with agent_on(shell, archive) as agent:
            await cluster.server.until(lambda: cluster.published, seconds=60)
            await cluster.kubelet.until_registered("hardpoint.dev")
            await claims_come_and_go(cluster)
            cluster.server.require_token("another")
            cluster.server.close_watches()
            await cluster.server.until(lambda: refused(cluster), seconds=30)
            said = [shell(word) for word in ("status", "holds", "plugins")]
            assert await ended(agent) == 0

    logged = log_of(shell)
    assert "claim=default/claim-1" in logged
    shown = "".join(answer.out + answer.err for answer in said)
    assert [secret for secret in secrets if secret in logged] == []
    assert [secret for secret in (TOKEN, IN_CLAIM) if secret in shown] == []


async def claims_come_and_go(cluster: Cluster) -> None:
    """Prepare a device of each driver, with parameters that are wrong in one way each."""
    for number, device in enumerate(cluster.published[:8]):
        for key in ("usbfs", "unknown"):
            pod = secretive(cluster, device, f"claim-{number}-{key}", key)
            with suppress(PodFailed):
                await cluster.kubelet.prepare(pod)
                await cluster.kubelet.unprepare(pod)


def refused(cluster: Cluster) -> bool:
    return any(seen.status == 401 for seen in cluster.server.requests)
