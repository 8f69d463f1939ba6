"""What a ``FakeAgent`` says of grants, releases and conditions: what a test put there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

import anyio

from hardpoint.grants import Grant, NodeCondition, Release
from hardpoint.model import Device


class FakeState:
    """Grants, releases, conditions and labels, kept where a test can change and see them."""

    granted: tuple[Grant, ...] = ()
    """Change them with ``set_state``."""
    releasing: tuple[Release, ...] = ()
    earned: Mapping[str, str] = {}
    """What drivers answer to ``label_node``."""
    governing: tuple[Device, ...] = ()
    """Devices whose kind a grant source governs."""
    withdrawn: str = ""
    """Why nothing is offered."""

    def __init__(self) -> None:
        self.raised: dict[str, NodeCondition] = {}
        """Conditions by type."""
        self._altered = anyio.Event()

    def set_state(
        self,
        *,
        granted: Iterable[Grant] | None = None,
        releasing: Iterable[Release] | None = None,
        earned: Mapping[str, str] | None = None,
        governed: Iterable[Device] | None = None,
    ) -> None:
        """Change what is so, and wake who waits for changes."""
        self.granted = self.granted if granted is None else tuple(granted)
        self.releasing = self.releasing if releasing is None else tuple(releasing)
        self.earned = self.earned if earned is None else dict(earned)
        self.governing = self.governing if governed is None else tuple(governed)
        self._alter()

    def _alter(self) -> None:
        altered, self._altered = self._altered, anyio.Event()
        altered.set()

    # -- the protocol -----------------------------------------------------------------------------

    def grants(self) -> tuple[Grant, ...]:
        """Every grant that is in force."""
        return self.granted

    def governed(self) -> tuple[Device, ...]:
        """Every device whose kind a grant source governs."""
        return self.governing

    def releases(self) -> tuple[Release, ...]:
        """Every release that is not over."""
        return self.releasing

    def conditions(self) -> tuple[NodeCondition, ...]:
        """What is so of the node."""
        return tuple(self.raised[type_] for type_ in sorted(self.raised))

    def raise_condition(self, condition: NodeCondition) -> None:
        """Keep a condition for the test to look at."""
        self.raised[condition.type] = condition
        self._alter()

    def clear_condition(self, type_: str) -> None:
        """Forget a condition."""
        if self.raised.pop(type_, None) is not None:
            self._alter()

    async def changes(self) -> AsyncIterator[None]:
        """Yield now, and after each change."""
        while True:
            altered = self._altered
            yield
            await altered.wait()

    async def labels(self) -> Mapping[str, str]:
        """Return what the test says."""
        return self.earned

    async def withdraw(self, why: str) -> None:
        """Offer nothing from now on."""
        self.withdrawn = why
        self._alter()

    async def resume(self) -> None:
        """Offer again."""
        self.withdrawn = ""
        self._alter()
