"""Parts: the physical things that devices take, and that no two holders may contend for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A physical thing that a device takes: ``pci:0000:0a:00.0``, ``usb:1-2``, ``char:226:128``.

    Two holds contend when they take one part and at least one of them takes it exclusively.
    """

    name: str
    exclusive: bool

    def contends(self, other: Part) -> bool:
        """Say whether two holds may not take both at the same time."""
        return self.name == other.name and (self.exclusive or other.exclusive)

    def __str__(self) -> str:
        return f"{self.name} ({'exclusive' if self.exclusive else 'shared'})"


def exclusive(name: str) -> Part:
    """Take a part alone."""
    return Part(name, True)


def shared(name: str) -> Part:
    """Take a part beside others that share it."""
    return Part(name, False)
