"""Whether a machine is, or ever was, a worker of some cluster: then pods may run that nobody lists.

A kubelet that is stopped leaves its containers running.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hardpoint.kubelet.podsource import CHECKPOINT
from hardpoint.node import Node

WORKER_FILES = (
    Path("/etc/kubernetes/bootstrap-kubelet.conf"),
    Path("/etc/kubernetes/kubelet.conf"),
    Path("/var/lib/k0s/kubelet.conf"),
    Path("/var/lib/rancher/k3s/agent/kubelet.kubeconfig"),
    Path("/var/lib/rancher/rke2/agent/kubelet.kubeconfig"),
    Path("/var/snap/microk8s/current/credentials/kubelet.config"),
)
"""Where kubeadm and the distributions keep a kubelet's credentials."""

_IN_ROOT = (
    "config.yaml",
    "cpu_manager_state",
    "kubeconfig",
    "memory_manager_state",
    "pki",
    "pod-resources",
    "pods",
)
"""What a kubelet alone makes below its root; not ``plugins_registry``, which a driver may make."""
_POD = "KUBERNETES_SERVICE_HOST"
"""Every container of a pod has it."""


class Worker:
    """Looks for what a kubelet leaves behind. Once a worker, always a worker, to this process."""

    def __init__(self, node: Node, files: Iterable[Path], environment: Mapping[str, str]) -> None:
        self._marks = (
            *(node.kubelet / name for name in _IN_ROOT),
            node.device_plugins / CHECKPOINT,
            node.device_plugins / "kubelet.sock",
            *files,
        )
        self._is = _POD in environment

    def is_or_was(self) -> bool:
        """Say whether it is, or was; also where that cannot be looked up."""
        self._is = self._is or any(map(_may_exist, self._marks))
        return self._is


def _may_exist(path: Path) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
