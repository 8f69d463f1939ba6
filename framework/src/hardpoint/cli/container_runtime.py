"""What the doctor finds out about the container runtime: does it read CDI files, and ours.

A runtime without CDI, or with CDI turned off, starts containers without their devices and says
nothing (kubernetes issue 121350). Its configuration is read as the host has it, below process 1's
root; its version is asked of the API server.
"""

from __future__ import annotations

import glob
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from hardpoint._core.cluster import connect
from hardpoint.cdi_rules import number
from hardpoint.errors import KubeError
from hardpoint.settings import AgentSettings

CONTAINERD = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
)
CRIO = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d")
"""A file, and a directory of files that are read after it, in order of name."""
DEFAULT_DIRS = ("/etc/cdi", "/var/run/cdi")
_CRI = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
"""What containerd calls its CRI plugin, in version 2 and 3 of its configuration."""
_ON_BY_DEFAULT = (2, 0)
_READ_BY_1_7 = "0.6.0"
_PATIENCE = 3.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, how sure that is (``fail`` or ``warn``), and what to do."""

    level: str
    found: str
    do: str


@dataclass(frozen=True, slots=True)
class Config:
    """What one runtime's configuration says of CDI."""

    path: str
    enabled: bool | None
    """None where it does not say: then the runtime's version decides."""
    directories: tuple[str, ...]


def troubles(settings: AgentSettings, said: str) -> Iterator[Trouble]:
    """Yield what keeps the runtime from giving devices; ``said`` is its version as nodes say it."""
    name, version = parsed(said)
    configs = list(configurations(settings))
    for config in configs:
        yield from _of_config(config, settings)
    if name == "containerd" and version < _ON_BY_DEFAULT:
        yield from _of_old_containerd(said, version, configs, settings)


def parsed(said: str) -> tuple[str, tuple[int, int]]:
    """Return name and version of ``containerd://1.7.24``; an empty name for what is none."""
    found = re.fullmatch(r"([a-z-]+)://v?(\d+)\.(\d+).*", said)
    return (found[1], (int(found[2]), int(found[3]))) if found else ("", (0, 0))


async def version(settings: AgentSettings) -> str:
    """Return what the node says of its runtime (``containerd://2.1.4``); ``""`` if not to be had.

    Never raises for a server that does not answer.
    """
    from hardpoint.kube import NODES

    try:
        with anyio.fail_after(_PATIENCE):
            async with connect(settings.kube) as kube:
                node = await kube.get(NODES, settings.node_name)
    except (KubeError, TimeoutError):
        return ""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion", ""))


def _of_config(config: Config, settings: AgentSettings) -> Iterator[Trouble]:
    if config.enabled is False:
        yield Trouble("fail", f"{config.path} has enable_cdi = false", "enable CDI there")
    ours = os.path.realpath(settings.paths.cdi)
    if ours not in map(os.path.realpath, config.directories):
        yield Trouble(
            "fail",
            f"{config.path} reads CDI files from {', '.join(config.directories) or 'nowhere'} only",
            f"add {settings.paths.cdi} to cdi_spec_dirs there, or set [paths] cdi to one of them",
        )


def _of_old_containerd(
    said: str, version: tuple[int, int], configs: list[Config], settings: AgentSettings
) -> Iterator[Trouble]:
    if version < (1, 7):
        yield Trouble("fail", f"{said} knows no CDI", "use containerd 1.7 or later")
        return
    if not any(config.enabled for config in configs):
        do = f'set enable_cdi = true in [plugins."{_CRI[0]}"] of its configuration'
        level = "fail" if configs else "warn"
        yield Trouble(level, f"{said} has CDI off unless its configuration says otherwise", do)
    if number(settings.cdi_version) > number(_READ_BY_1_7):
        yield Trouble(
            "fail",
            f"{said} reads CDI {_READ_BY_1_7} at most, and files are written up to "
            f"{settings.cdi_version}",
            f'set cdi_version = "{_READ_BY_1_7}"',
        )
    if not on_host(settings, "/etc/cdi").is_dir():
        found = f"/etc/cdi is not there, and some releases of {said.partition('.')[0]} then read no"
        yield Trouble("warn", f"{found} other directory either", "mkdir /etc/cdi on the host")


# -- configurations -------------------------------------------------------------------------------


def configurations(settings: AgentSettings) -> Iterator[Config]:
    """Yield what the runtimes that are configured on this host say of CDI."""
    for path in CONTAINERD:
        read = _toml(on_host(settings, path))
        if read:
            merged: dict[str, Any] = {}
            for part in (read, *_imported(settings, path, read)):
                plugins = _table(part, "plugins")
                for name in _CRI:
                    merged |= _table(plugins, name)
            yield _config(path, merged)
    file, folder = (on_host(settings, path) for path in CRIO)
    files = [one for one in (file, *sorted(folder.glob("*.conf"))) if one.is_file()]
    runtime: dict[str, Any] = {}
    for one in files:
        runtime |= _table(_table(_toml(one), "crio"), "runtime")
    if files:
        yield _config(CRIO[0], runtime)


def _imported(
    settings: AgentSettings, path: str, read: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the files that a configuration of containerd takes in: paths or patterns."""
    patterns = read.get("imports")
    for pattern in patterns if isinstance(patterns, list) else ():
        at = on_host(settings, os.path.join(os.path.dirname(path), str(pattern)))
        for one in sorted(glob.glob(str(at))):
            yield _toml(Path(one))


def _config(path: str, table: Mapping[str, Any]) -> Config:
    enabled, directories = table.get("enable_cdi"), table.get("cdi_spec_dirs")
    known = DEFAULT_DIRS if directories is None else directories
    listed = tuple(map(str, known)) if isinstance(known, list | tuple) else ()
    return Config(path, enabled if isinstance(enabled, bool) else None, listed)


def on_host(settings: AgentSettings, path: str) -> Path:
    """Return where a file of the host is: seen by process 1, which a pod with hostPID can ask."""
    root = settings.paths.proc / "1/root"
    return root / path.lstrip("/") if os.access(root, os.X_OK) else Path(path)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _table(of: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}
