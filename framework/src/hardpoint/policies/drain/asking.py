"""Whether the node is to be handed back, as a file and an annotation of its Node say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio.to_thread

from hardpoint.policies._own_node import Faults, OwnNode
from hardpoint.policies.drain.request import Request, read

if TYPE_CHECKING:
    from hardpoint.agent import Agent
    from hardpoint.kube import Kube
    from hardpoint.policies.drain.settings import DrainSettings

OURS = "drain: "
"""What the reason begins with by which the agent is withdrawn; that of others is left to them."""


class Asking:
    """Reads both. What is not known is as it was: a node that is handed back stays so."""

    def __init__(
        self,
        agent: Agent,
        settings: DrainSettings,
        kube: Kube | None,
        source: str,
        changed: Callable[[], None],
    ) -> None:
        self._agent, self._settings, self._source = agent, settings, f"{source}: request"
        self._faults = Faults(agent)
        self.file = settings.file_in(agent.paths.state)
        self._request: Request | None = None
        follows = kube is not None and settings.follow_annotation
        self._node = OwnNode(kube, agent, source, changed) if kube and follows else None
        self.is_known = False
        """True where both have said something."""

    async def follow(self) -> None:
        """Hear of the Node's changes, for ever."""
        if self._node is not None:
            await self._node.follow()

    @property
    def id(self) -> str:
        """The id of the request in the file."""
        return self._request.id if self._request is not None else ""

    @property
    def is_withdrawn(self) -> bool:
        """Whether nothing is offered for a drain's sake."""
        return self._agent.withdrawn.startswith(OURS)

    def reason(self, why: str) -> str:
        """Return why nothing is offered."""
        return OURS + why

    async def why(self) -> str:
        """Return by what a drain is asked for; empty where it is known that nothing does."""
        words = [await self._by_file(), self._by_annotation()]
        said = next((word for word in words if word), "")
        self.is_known = None not in words
        if said or self.is_known:
            return said
        return self._agent.withdrawn.removeprefix(OURS) if self.is_withdrawn else ""

    async def _by_file(self) -> str | None:
        try:
            found = await anyio.to_thread.run_sync(read, self.file)
        except OSError as error:
            why = f"whether a drain is asked for is not known: {error.strerror}: {self.file}"
            self._faults.say(self._source, why)
            return None
        self._faults.clear(self._source)
        self._request = found
        if found is None:
            return ""
        by = f" by {found.by}" if found.by else ""
        return f"asked for{by} in {self.file}" + (f": {found.why}" if found.why else "")

    def _by_annotation(self) -> str | None:
        if self._node is None:
            return ""
        node = self._node.found
        if node is None:  # not known, or deleted: it is made again when the machine comes back
            return None
        annotation = self._settings.drain_annotation
        value = (node["metadata"].get("annotations") or {}).get(annotation)
        asked = value is not None and str(value).strip().lower() != "false"
        return f"annotation {annotation} of the Node" if asked else ""
