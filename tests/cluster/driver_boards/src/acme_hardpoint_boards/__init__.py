"""Acme's boards: a third party's driver that uses whatever dynamic resource allocation offers.

The kernel's driver (there is none) lists boards, slices of boards and memory pools in
``/sys/class/acme``. What the attributes of an entry mean is said at ``describe``.
"""

from collections.abc import Iterator

from hardpoint import (
    Addition,
    Capacity,
    Claim,
    Condition,
    Delivery,
    Device,
    Effect,
    Entry,
    Health,
    Hold,
    Node,
    Parameters,
    Part,
    Settings,
    Taint,
    Verdict,
    exclusive,
    hookimpl,
    shared,
)

_OWN_NAMESPACE = "observers-"


class BoardParameters(Parameters):
    """What a claim may ask of a board."""

    mode: str = "plain"
    """What the board is told while the claim has it."""


class Boards:
    Parameters = BoardParameters

    def __init__(self, node: Node, settings: Settings | None) -> None:
        self.node = node

    @hookimpl
    def publish_devices(self) -> Iterator[Device]:
        for entry in self.node.each("class/acme"):
            yield describe(entry)

    @hookimpl
    def check_device(self, device: Device) -> Health:
        said = self._entry(device).text("fault")
        return Health(Condition.UNHEALTHY, said) if said else Health(Condition.HEALTHY)

    @hookimpl
    def deliver_device(self, device: Device, parameters: BoardParameters) -> Delivery:
        return Delivery(
            nodes=device.nodes,
            env={"ACME_BOARD": device.name, "ACME_MODE": parameters.mode},
        )

    @hookimpl
    def prepare_device(self, device: Device, hold: Hold) -> None:
        hold.remember(was=self._entry(device).text("taken"))
        self._entry(device).write("taken", share(hold))

    @hookimpl
    def unprepare_device(self, hold: Hold) -> None:
        entry = self._entry(hold.device)
        if hold.remembered and entry.exists():
            entry.write("freed", share(hold))

    def _entry(self, device: Device) -> Entry:
        return self.node.entry(f"class/acme/{device.name}")


class Observers:
    """A policy: whoever may put pods into certain namespaces may look at what others hold."""

    def __init__(self, node: Node, settings: Settings | None) -> None:
        """Nothing is kept."""

    @hookimpl
    def admit_claim(self, claim: Claim) -> Verdict | None:
        wanted = any(allotment.admin_access for allotment in claim.allotments)
        if wanted and claim.key.namespace.startswith(_OWN_NAMESPACE):
            return Verdict.allow()
        return None

    @hookimpl
    def annotate_delivery(self, hold: Hold) -> Addition:
        return Addition(env={"ACME_SHARE": share(hold)})


def share(hold: Hold) -> str:
    """Return which share of a device a hold has, and how much: ``SHARE-ID 4Gi``, or ``alone``."""
    return f"{hold.share_id} {hold.consumed['memory']}" if hold.share_id else "alone"


def describe(entry: Entry) -> Device:
    """Return what an entry is.

    ``slices`` names what of a card it takes, ``taint`` and ``effect`` why it should not be used,
    ``memory`` what its users share among themselves, ``waits_for`` and ``fails_with`` what Acme's
    controller says of it for each claim.
    """
    memory, size = entry.text("memory"), entry.number("size")
    return Device(
        name=entry.name,
        kind=f"acme.{entry.text('sort')}",
        nodes=entry.nodes(),
        attributes={"serial": entry.text("serial"), **({"size": size} if size else {})},
        parts=tuple(_parts(entry, bool(memory))),
        shareable=bool(memory),
        capacity={"memory": _portions(memory)} if memory else {},
        taints=tuple(_taints(entry)),
        binding_conditions=tuple(entry.text("waits_for").split()),
        binding_failure_conditions=tuple(entry.text("fails_with").split()),
    )


def _parts(entry: Entry, several: bool) -> Iterator[Part]:
    yield from entry.beside() if several else entry.whole()
    for one in entry.text("slices").split():
        yield shared(f"acme:{one}") if several else exclusive(f"acme:{one}")


def _portions(memory: str) -> Capacity:
    return Capacity(value=memory, default="1Gi", minimum="1Gi", maximum=memory, step="1Gi")


def _taints(entry: Entry) -> Iterator[Taint]:
    if key := entry.text("taint"):
        yield Taint(key, Effect(entry.text("effect") or "NoSchedule"))
