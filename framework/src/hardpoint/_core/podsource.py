"""The kubelet's answers, as the agent reads them: ``hardpoint.kubelet.podsource``."""

from __future__ import annotations

from hardpoint.kubelet.podsource import CHECKPOINT, Checkpoint, Kubelet, PodSource

__all__ = ["CHECKPOINT", "Checkpoint", "Kubelet", "PodSource"]
