"""What the broker asks of its surroundings."""

from __future__ import annotations

from typing import Any, Protocol

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
