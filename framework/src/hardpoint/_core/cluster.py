"""The API server as the settings name it, and what it says of this node."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from hardpoint._core.state import keep_labels, kept_labels, make_private
from hardpoint.errors import BadSettings, KubeError
from hardpoint.settings import AgentSettings, KubeSettings

if TYPE_CHECKING:
    from hardpoint.kube import Kube

_log = logging.getLogger("hardpoint.settings")
_PATIENCE = 30.0


def connect(settings: KubeSettings) -> Kube:
    """Return a connection that is made with its first request.

    Raises ``KubeUnreachable`` outside of a pod where nothing else is set.
    """
    from hardpoint.kube import Kube

    if settings.url:
        return Kube.at(settings.url, settings.token_file, settings.ca_file)
    if settings.kubeconfig:
        return Kube.from_kubeconfig(settings.kubeconfig)
    return Kube.in_cluster()


async def labels_of_node(settings: AgentSettings) -> dict[str, str]:
    """Ask the API server for the node's labels; what it last said serves while it is away.

    Raises ``BadSettings`` where it never answered and nothing is kept: guessing which settings
    apply could offer what this node must not.
    """
    from hardpoint.kube import NODES

    _log.info("asking the API server for the labels of node=%s", settings.node_name)
    last = KubeError("no answer")
    with anyio.move_on_after(_PATIENCE):
        while True:
            try:
                async with connect(settings.kube) as kube:
                    node = await kube.get(NODES, settings.node_name)
            except KubeError as error:
                if str(error) != str(last):
                    _log.warning("no labels yet, trying again for a while why=%r", str(error))
                last = error
                await anyio.sleep(1)
                continue
            labels: dict[str, str] = node["metadata"].get("labels") or {}
            _keep(settings.paths.state, labels)
            return labels
    found = kept_labels(settings.paths.state)
    if found is None:
        raise BadSettings(
            "nodes", f"sections are chosen by label, and the API server does not say them: {last}"
        ) from last
    _log.warning("the API server does not answer; the labels it last said are used")
    return found


def _keep(state: Path, labels: dict[str, str]) -> None:
    """Keep them for the next start; that the disk is full is no reason not to start this time."""
    try:
        make_private(state)
        keep_labels(state, labels)
    except OSError as error:
        _log.warning("the node's labels are not kept for the next start why=%r", str(error))
