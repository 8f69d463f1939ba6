"""What a frontend sees of the agent: a small typed object, and the names things go by."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hardpoint.allocation import Allocation, Assigned, Assignment, RankRequest
from hardpoint.grants import Grant, NodeCondition, Release
from hardpoint.model import (
    Claim,
    ClaimKey,
    Device,
    Domain,
    Event,
    Hold,
    Offer,
    PreparedDevice,
)
from hardpoint.node import Node

if TYPE_CHECKING:
    from hardpoint.kube import Kube


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where the agent reads and writes on the host."""

    state: Path = Path("/var/lib/hardpoint")
    """Ledger and locks; mode 0700."""
    cdi: Path = Path("/var/run/cdi")
    kubelet: Path = Path("/var/lib/kubelet")
    """The kubelet's ``--root-dir``: ``plugins``, ``plugins_registry``, ``pod-resources``."""
    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    """Compiled into the kubelet: it does not follow the root."""


class Agent(Protocol):
    """The agent, as handed to ``serve_frontend``."""

    @property
    def node(self) -> Node:
        """The machine; ``node.name`` is the Kubernetes node."""

    @property
    def paths(self) -> Paths:
        """Directories of the host."""

    @property
    def instance(self) -> str:
        """This process: the pod's UID, or empty outside a pod. Two may overlap in an update."""

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Every domain that a configured driver publishes under."""

    @property
    def offer(self) -> Offer:
        """What may be offered now."""

    def offers(self) -> AsyncIterator[Offer]:
        """Yield the offer now and after each change; a slow reader sees only the latest."""

    async def prepare(
        self, key: ClaimKey, read: Callable[[], Awaitable[Claim]]
    ) -> tuple[PreparedDevice, ...]:
        """Hold a claim's devices and write its CDI file.

        ``read`` fetches the claim, under the claim's lock; it is not called for a claim that is
        held already. Raises ``HoldError``, or what ``read`` raises.
        """

    async def unprepare(self, key: ClaimKey) -> None:
        """End a claim's holds. Success for an unknown claim, without the API server."""

    async def allocate(self, wanted: Sequence[Assignment]) -> tuple[Assigned, ...]:
        """Hold devices for the kubelet's ``Allocate``, all or none; durable when this returns.

        Kubelets ask for an id that is held already for the containers after an init container, and
        for a pod that comes after one whose end nobody has seen yet. For the first the CDI file is
        made true again and the same names are answered; for the second the old hold is undone and
        scrubbed first. Which of the two it is the kubelet writes down at a list: where its driver
        undoes or scrubs, this takes until the frontend has sent the list once more. No network
        call. Raises ``HoldError`` with the reason: not offered at
        this moment, vetoed, unhealthy, or held, and by whom.
        """

    def allocations(self) -> tuple[Allocation, ...]:
        """Every device held under a resource and an id, and which pods have it."""

    async def rank(self, driver: str, request: RankRequest) -> tuple[str, ...]:
        """Ask a driver which of its devices go well together (``rank_devices``).

        At most ``request.count`` names of ``request.available``, the required first; fewer, or
        none, where the driver has no opinion. Never raises.
        """

    def announce(self, resource: str, assignments: Sequence[Assignment]) -> None:
        """Say which ids a resource has, before the kubelet is told: each time that they change.

        The ids of a resource that was announced are ours wherever the kubelet lists them: one that
        a pod has and that nothing holds, since the ledger was lost, is held again. What was
        announced earlier and is missing now is still known; the frontend need not remember it.
        """

    def holds(self) -> tuple[Hold, ...]:
        """Every hold in the ledger, those of device plugin allocations too."""

    def grants(self) -> tuple[Grant, ...]:
        """Every grant that is in force."""

    def governed(self) -> tuple[Device, ...]:
        """Every device of the node whose kind a running grant source governs, offered or not."""

    def releases(self) -> tuple[Release, ...]:
        """Every release that is not over: of grants that ended, of a drain, of what is outside."""

    def conditions(self) -> tuple[NodeCondition, ...]:
        """What is so of the node now, one of each type, in order of type."""

    def raise_condition(self, condition: NodeCondition) -> None:
        """Say that something is so of the node; the last of each type stands."""

    def clear_condition(self, type_: str) -> None:
        """Say that it is so no more."""

    def changes(self) -> AsyncIterator[None]:
        """Yield now, and after each change of the offer, the grants, releases or conditions.

        Changes in a burst are one for a slow reader.
        """

    async def labels(self) -> Mapping[str, str]:
        """Return the labels that plugins say the node has earned (``label_node``)."""

    @property
    def withdrawn(self) -> str:
        """Why nothing is offered, since the node is handed back; empty while it is not."""

    async def withdraw(self, why: str) -> None:
        """Offer nothing from now on, also after a restart; what is held becomes a release.

        Durable when this returns. Raises ``LedgerError``.
        """

    async def resume(self) -> None:
        """Offer again what may be offered. Raises ``LedgerError``."""

    def writing(self) -> bool:
        """Say whether this process is the one of two that writes slices and lists."""

    async def until_writing(self) -> None:
        """Wait until this process is the one that writes."""

    def connect(self) -> Kube:
        """Return a connection to the API server as the settings name it; close it when done.

        Raises ``KubeUnreachable`` where none is named and the agent is not in a pod.
        """

    def status(self) -> Mapping[str, Any]:
        """What ``hardpoint status --json`` shows, as JSON values: devices, holds and who has them,
        faults, grants, releases.
        """

    def note(self, source: str, facts: Mapping[str, object]) -> None:
        """Say what is so now, for ``hardpoint status``: pools, registration. Replaces the last."""

    def on_fault(self, source: str, message: str) -> None:
        """Put a failure of the frontend's surroundings on the fault board; repeats are counted."""

    def clear_fault(self, source: str) -> None:
        """Take a failure off the board: it works again."""

    def report(self, event: Event) -> None:
        """Tell observers, the log and the metrics of something that changed."""
