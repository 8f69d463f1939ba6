"""The machines of the lab that these tests boot, and which of them have their turn today."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

A_DAY = 2
"""Machines that are booted on one day where nobody names them: each takes minutes."""


@dataclass(frozen=True, slots=True)
class Boot:
    """One start of the virtual machine, which serves every test that asks for it."""

    name: str
    profile: str = ""
    """The lab's profile; the name, unless it says otherwise."""
    options: tuple[str, ...] = field(default=())
    """Further options of ``hwlab run``."""

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments of ``hwlab run`` that choose this machine."""
        return (self.profile or self.name, *self.options)


BOOTS = {
    boot.name: boot
    for boot in (
        Boot("desktop"),
        Boot("virtual", options=("--mem", "1024")),
        Boot("many", options=("--mem", "3072")),
        Boot("bluetooth", options=("--mem", "1024")),
        Boot("usbzoo"),
        Boot("graphics"),
        Boot("disks", options=("--mem", "1536")),
        Boot("legacy", options=("--mem", "1024")),
        Boot("gadget"),
        Boot("no-udev", "minimal", ("--no-udev", "--mem", "1024")),
    )
}
"""By name, in the order of their turns: of two on one day the first takes long, the second less."""


class UnknownMachine(ValueError):
    """A name that no machine here has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"PROFILE={name}: there are {', '.join(BOOTS)}, all and today")


def in_turn(day: datetime.date, names: Sequence[str] = tuple(BOOTS)) -> tuple[str, ...]:
    """Return the machines of a day: the next ones each day, all within five days."""
    first = day.toordinal() * A_DAY
    return tuple(names[(first + step) % len(names)] for step in range(A_DAY))


def chosen(environment: Mapping[str, str], day: datetime.date) -> tuple[str, ...]:
    """Return the machines that ``PROFILE`` names (``desktop,disks``, ``all``), or today's.

    Raises ``UnknownMachine``.
    """
    wanted = environment.get("PROFILE", "") or "today"
    found: dict[str, None] = {}
    for name in filter(None, wanted.replace(",", " ").split()):
        if name not in {*BOOTS, "all", "today"}:
            raise UnknownMachine(name)
        several = {"all": tuple(BOOTS), "today": in_turn(day)}
        found |= dict.fromkeys(several.get(name, (name,)))
    return tuple(found)
