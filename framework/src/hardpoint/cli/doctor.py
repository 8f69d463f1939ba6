"""``hardpoint doctor``: look for what keeps this node from working, and say what to do."""

from __future__ import annotations

import argparse
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_origin

import anyio
from pydantic import BaseModel

from hardpoint._core.offer.shares import TWO_FRONTENDS
from hardpoint._core.offline import look, shares, start_plugins
from hardpoint._core.plugins.discovery import Plugins
from hardpoint._core.state import agent_runs, read_status
from hardpoint.cli import container_runtime, doctor_policies
from hardpoint.cli.common import add_json, add_settings, settings_of, this_machine
from hardpoint.cli.findings import Finding
from hardpoint.cli.output import as_json, in_words, table
from hardpoint.errors import BadSettings, LedgerDamaged, LedgerError
from hardpoint.model import NodeType, Offer
from hardpoint.settings import AgentSettings

KUBELET_ROOTS = (
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/lib/rancher/k3s/agent/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
)
"""Where distributions keep the kubelet's root."""
CDI_DIRS = ("/etc/cdi", "/var/run/cdi", "/var/cdi/dynamic")


_PODS = (
    "mount it, read-only: without it nobody can say which pod has what, and under the device "
    "plugin API devices of pods that ended stay held"
)
_GROUPS = (
    "who is not root there opens no node of mode 0660: set supplementalGroups in the pod's "
    'securityContext to the groups that `hardpoint devices --json` shows as gid, or devices = "cdi"'
)
_NOT_FREE = "mount it, read-only: until it answers, nothing whose grant ended is free"
_LEVELS = {False: "warn", True: "fail"}
_NO_PLUGINS = (
    "the device plugin frontend serves through it, and nothing is offered without: start the "
    "kubelet, and mount its device-plugins directory at this path (device_plugins in [paths])"
)
_PLUGINS = "needed by the device plugin frontend only"
"""What is lost with a socket of the kubelet's that is not there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run every check; exit status 1 if one of them failed."""
    settings = settings_of(arguments)
    findings = [finding for check in CHECKS for finding in _checked(check, settings)]
    if arguments.json:
        keys = ("level", "subject", "found", "do")
        as_json([{key: getattr(finding, key) for key in keys} for finding in findings])
    else:
        table(
            ("", "subject", "found", "do"), [(f.level, f.subject, f.found, f.do) for f in findings]
        )
    return 1 if any(f.level == "fail" for f in findings) else 0


def _checked(
    check: Callable[[AgentSettings], Iterator[Finding]], settings: AgentSettings
) -> Iterator[Finding]:
    """Run one check; one that cannot look says so and the others go on."""
    try:
        yield from check(settings)
    except OSError as error:
        name = check.__name__.strip("_").replace("_", " ")
        yield Finding(
            "warn", name, f"cannot look: {in_words(error)}", "run the doctor as root on the node"
        )
    except LedgerError as error:
        aside = "the agent keeps it aside when it starts, and begins anew"
        remedy = aside if isinstance(error, LedgerDamaged) else ""
        yield Finding("fail", "ledger", str(error), remedy)


def _rights(settings: AgentSettings) -> Iterator[Finding]:
    if os.geteuid() == 0:
        yield Finding("ok", "rights", "runs as root")
    else:
        yield Finding("warn", "rights", "not root", "the agent needs root to write CDI files")
    state = settings.paths.state
    if not state.exists():
        yield Finding("ok", "state", f"{state} is made when the agent starts")
    elif state.stat().st_mode & 0o077:
        yield Finding("warn", "state", f"{state} can be read by others", f"chmod 0700 {state}")
    else:
        yield Finding("ok", "state", f"{state} is private")


def _sysfs(settings: AgentSettings) -> Iterator[Finding]:
    sys = settings.paths.sys
    buses = sorted(os.listdir(sys / "bus")) if (sys / "bus").is_dir() else []
    if buses:
        yield Finding("ok", "sysfs", f"{sys} has {len(buses)} buses")
    else:
        yield Finding("fail", "sysfs", f"{sys}/bus is not there", f"mount sysfs at {sys}")


def _events(settings: AgentSettings) -> Iterator[Finding]:
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15) as events:
            events.bind((0, 1))
    except OSError as error:
        yield Finding(
            "warn",
            "kernel events",
            f"not to be had: {error}",
            "hardware is noticed by the 5-minute scan only; do not set hostUsers: false",
        )
        return
    yield Finding("ok", "kernel events", "netlink group 1 is open")


def _kubelet(settings: AgentSettings) -> Iterator[Finding]:
    root = settings.paths.kubelet
    found = [r for r in KUBELET_ROOTS if (Path(r) / "plugins_registry").is_dir()]
    if (root / "plugins_registry").is_dir():
        yield Finding("ok", "kubelet", f"{root}/plugins_registry is there")
    elif found:
        fix = f'set [paths] kubelet = "{found[0]}" and mount it at that path'
        yield Finding("fail", "kubelet", f"{root}/plugins_registry is not there", fix)
    else:
        looked = ", ".join(dict.fromkeys((str(root), *KUBELET_ROOTS)))
        yield Finding("warn", "kubelet", f"no kubelet root among {looked}", "is this a node?")
    pods, plugins = root / "pod-resources/kubelet.sock", settings.paths.device_plugins
    asked = "pod_resources" in settings.policies
    yield from _socket("pod-resources", pods, _NOT_FREE if asked else _PODS, _LEVELS[asked])
    serves = "deviceplugin" in _serving(settings)
    level, absent = ("fail", _NO_PLUGINS) if serves else ("warn", _PLUGINS)
    yield from _socket("device plugins", plugins / "kubelet.sock", absent, level)


def _serving(settings: AgentSettings) -> set[str]:
    """Return the names of the frontends that these settings run."""
    plugins = start_plugins(settings, this_machine(settings), roles=("frontend",))
    return {plugin.name for plugin in plugins.running("frontend")}


def _socket(subject: str, path: Path, absent: str, level: str = "warn") -> Iterator[Finding]:
    try:
        mode = path.stat().st_mode
    except OSError:
        yield Finding(level, subject, f"{path} is not there", absent)
        return
    if not stat.S_ISSOCK(mode):
        yield Finding("fail", subject, f"{path} is not a socket", "mount the directory, not a file")
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError as error:
            yield Finding("warn", subject, f"{path} does not answer: {error}", "is kubelet up?")
            return
    yield Finding("ok", subject, f"{path} answers")


def _cdi(settings: AgentSettings) -> Iterator[Finding]:
    """Say once what is wrong with the directory; what a runtime reads is said with the runtime."""
    cdi = settings.paths.cdi
    unusual = str(cdi) not in CDI_DIRS and not list(container_runtime.configurations(settings))
    odd, check = ", and is not a usual directory", "check the runtime's cdi_spec_dirs"
    odd, more = (odd, f"; {check}") if unusual else ("", "")
    if not cdi.is_dir():
        done = "it is made when the agent starts"
        yield Finding("warn", "CDI", f"{cdi} is not there{odd}", done + more)
    elif not os.access(cdi, os.W_OK):
        yield Finding("fail", "CDI", f"{cdi} is not writable{odd}", f"mount it read-write{more}")
    elif unusual:
        yield Finding("warn", "CDI", f"{cdi} is writable{odd}", check)
    else:
        yield Finding("ok", "CDI", f"{cdi} is writable")


def _runtime(settings: AgentSettings) -> Iterator[Finding]:
    frontends = start_plugins(settings, this_machine(settings), roles=("frontend",))
    running = frontends.running("frontend")
    bare = [plugin for plugin in running if not getattr(plugin.instance, "needs_cdi", True)]
    for plugin in bare:
        found = f"{plugin.id} passes devices without CDI: containers get none of their groups"
        yield Finding("warn", "groups", found, _GROUPS)
    if bare and len(bare) == len(running):
        yield Finding(
            "ok", "runtime", "devices are passed without CDI: whether it is on is no matter"
        )
        return
    said = anyio.run(container_runtime.version, settings)
    troubles = list(container_runtime.troubles(settings, said))
    for one in troubles:
        yield Finding(one.level, "runtime", one.found, one.do)
    seen = [said] if said else []
    seen += [config.path for config in container_runtime.configurations(settings)]
    if not seen:
        yield Finding("ok", "runtime", "neither its configuration nor its version can be seen here")
    elif not troubles:
        yield Finding("ok", "runtime", f"nothing against CDI in {', '.join(seen)}")


def _selinux(settings: AgentSettings) -> Iterator[Finding]:
    if _text(settings.paths.sys / "fs/selinux/enforce").strip() == "1":
        yield Finding(
            "warn",
            "SELinux",
            "is enforcing",
            "run the agent as spc_t, as privileged does; pods may need the boolean "
            "container_use_devices, or container_use_dri_devices for GPUs",
        )


def _plugins(settings: AgentSettings) -> Iterator[Finding]:
    plugins = start_plugins(settings, this_machine(settings))
    for plugin in plugins.all:
        if plugin.state in ("refused", "missing"):
            level = "fail" if plugin.role == "policy" else "warn"
            yield Finding(level, plugin.id, f"{plugin.state}: {plugin.reason}", "hardpoint plugins")
    yield from _frontends(settings, plugins)
    for role in ("driver", "frontend"):
        names = ", ".join(p.name for p in plugins.running(role))
        if names:
            yield Finding("ok", f"{role}s", names)
        else:
            yield Finding("fail", f"{role}s", "none runs", f"install a {role} package")


def _frontends(settings: AgentSettings, plugins: Plugins) -> Iterator[Finding]:
    """Say what is in force of each frontend's settings, and whether they leave each other room."""
    for plugin in plugins.running("frontend"):
        words = ", ".join(_in_force(getattr(plugin.instance, "settings", None)))
        if words:
            yield Finding("ok", plugin.id, f"settings in force: {words}")
    try:
        shares(settings, plugins).check()
    except BadSettings as error:
        yield Finding("fail", "frontends", str(error), "the agent does not start with this")


def _in_force(settings: object) -> Iterator[str]:
    """Yield what a plugin goes by: choices, numbers, yes and no. Texts may be secrets."""
    if not isinstance(settings, BaseModel):
        return
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if get_origin(field.annotation) is Literal or isinstance(value, bool | int | float):
            yield f"{name} = {value}"


def _settings(settings: AgentSettings) -> Iterator[Finding]:
    found = anyio.run(look, this_machine(settings), settings)
    for one in found.offer.withheld:
        if one.rule == TWO_FRONTENDS:
            yield Finding("fail", one.subject, one.reason, "it is offered through neither")
    for note in found.notes:
        yield Finding("warn", "settings", note, "correct it, or take it out")
    if not found.notes:
        count = len(settings.rules)
        said = f"{count} rules, each matches a device" if count else "no rules"
        yield Finding("ok", "settings", said)
    yield from _links(settings, found.offer)


def _links(settings: AgentSettings, offer: Offer) -> Iterator[Finding]:
    """Say which nodes systemd cannot find by their numbers.

    It sets a container's device rules anew on ``daemon-reload`` and looks nodes up in
    ``/dev/char``; one without a link is lost to a running container
    (NVIDIA/nvidia-container-toolkit#48).
    """
    dev = settings.paths.dev
    if not (dev / "char").is_dir():
        return  # no udev: no systemd either
    folder = {NodeType.CHAR: "char", NodeType.BLOCK: "block"}
    nodes = {
        f"{folder[node.type]}/{node.major}:{node.minor}": node.path
        for offered in offer.devices
        for node in offered.device.nodes
        if node.major is not None and not node.absent_ok
    }
    lost = [path for link, path in nodes.items() if not os.path.lexists(dev / link)]
    if lost:
        count = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        yield Finding(
            "warn",
            "/dev/char",
            f"has no link to {lost[0]}{count}",
            "containers lose them at systemctl daemon-reload: udevadm trigger makes links, or "
            "ln -s by a udev rule",
        )
    elif nodes:
        yield Finding("ok", "/dev/char", "every node offered is found there by its numbers")


def _agent(settings: AgentSettings) -> Iterator[Finding]:
    if not agent_runs(settings.paths.state):
        yield Finding("warn", "agent", "does not run", "hardpoint run")
        return
    yield Finding("ok", "agent", "runs")
    status = read_status(settings.paths.state)
    for fault in status.get("faults", ()):
        times = f" ({fault['count']} times)" if fault["count"] > 1 else ""
        yield Finding("fail", fault["source"], fault["message"] + times, fault["cost"])
    for one in status.get("quarantine", ()):
        yield Finding(
            "fail",
            one["device"],
            f"quarantined: {one['why']}",
            f"hardpoint quarantine clear {one['device']}",
        )


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


CHECKS = (
    _rights,
    _sysfs,
    _events,
    _kubelet,
    _cdi,
    _runtime,
    _selinux,
    _plugins,
    doctor_policies.policies,
    _settings,
    doctor_policies.grants,
    _agent,
)
