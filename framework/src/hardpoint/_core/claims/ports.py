"""What the broker asks of its surroundings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from hardpoint._core.ledger.records import Record
from hardpoint.grants import GrantedDevice
from hardpoint.model import Offered
from hardpoint.parameters import Parameters


class Hooks(Protocol):
    """Calls into plugins, under each hook's dispatch, fault rule and budget: the relay."""

    async def owner(self, hook: str, driver: str, subject: str, **arguments: Any) -> Any:
        """Ask one driver; None if it does not implement the hook.

        Raises ``HookFault``, ``HookLate`` (it still runs, and a repeated call joins it),
        ``TryAgain`` or ``Refuse``.
        """

    async def gather(self, hook: str, subject: str = "", **arguments: Any) -> dict[str, Any]:
        """Ask all at once; the answers by plugin. Raises where the hook's faults refuse."""

    async def fold(self, hook: str, subject: str, value_name: str, **arguments: Any) -> Any:
        """Ask one after the other, each given what the one before answered."""

    def implements(self, driver: str, hook: str) -> bool:
        """Say whether a driver runs and implements a hook."""

    def parameters_model(self, driver: str) -> type[Parameters] | None:
        """Return the claim parameters' model of a driver."""

    def known_kinds(self) -> tuple[str, ...]:
        """Return the kinds of claim parameters that some driver takes."""

    def running(self, driver: str, hook: str, subject: str) -> bool:
        """Say whether a call to a driver has not ended yet, late ones included."""


class Granted(Protocol):
    """What is known of grants."""

    async def confirm(self, offered: Iterable[Offered]) -> None:
        """Raise ``HoldDenied`` for what is granted no more."""

    async def confirm_held(self, records: Iterable[Record]) -> None:
        """Do the same for what is held, offered or not."""

    def entry(self, record: Record) -> GrantedDevice | None:
        """Return how the grant names a device that is held under it."""


class NothingGoverned:
    """No source of grants runs."""

    async def confirm(self, offered: Iterable[Offered]) -> None:
        """Agree."""

    async def confirm_held(self, records: Iterable[Record]) -> None:
        """Agree."""

    def entry(self, record: Record) -> GrantedDevice | None:
        """Know of none."""
