"""The agent's own Node object: what the API server last said of it, and writes that are retried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio

from hardpoint.errors import AnothersNode, KubeError, KubeNotFound, KubeUnreachable
from hardpoint.kube import NODES, Backoff, Json, Listing
from hardpoint.reading import decimal

if TYPE_CHECKING:
    from hardpoint.agent import Agent
    from hardpoint.kube import Kube

_NAMING = "the agent's name for its node is the setting `node_name`, or NODE_NAME"

Sleep = Callable[[float], Awaitable[None]]


class Faults:
    """Failures on the fault board; one that is not there is not taken off again and again."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._clear: set[str] = set()

    def say(self, source: str, message: str) -> None:
        """Put one on it."""
        self._clear.discard(source)
        self._agent.on_fault(source, message)

    def set(self, source: str, message: str) -> None:
        """Put one on it if there is something to say; else take it off."""
        if message:
            self.say(source, message)
        else:
            self.clear(source)

    def clear(self, source: str) -> None:
        """Take it off: it works again."""
        if source not in self._clear:
            self._clear.add(source)
            self._agent.clear_fault(source)


class OwnNode:
    """One Node, watched. ``changed`` is called after each news of it."""

    def __init__(self, kube: Kube, agent: Agent, source: str, changed: Callable[[], None]) -> None:
        self._kube, self._agent, self._changed = kube, agent, changed
        self._source, self._faults = f"{source}: Node", Faults(agent)
        self._named, self._boot_id = f"{source}: name", agent.node.boot_id
        self._version = self._heard = -1
        """Of what is believed, and of what the server itself has told: never a write's answer."""
        self.known = False
        """True once the API server has said whether there is one."""
        self._found: Json | None = None

    @property
    def found(self) -> Json | None:
        """The Node, or None where there is none, none is known, or it is another machine's."""
        node = self._found
        return None if node is not None and is_anothers(node, self._boot_id) else node

    async def follow(self) -> None:
        """Keep it current for ever; failures are on the fault board, and cost its news only.

        Every API server has nodes: who knows of none is a proxy that has no server to ask.
        """
        backoff = Backoff()
        while True:
            try:
                await self._follow()
            except KubeNotFound as error:
                self._say_trouble(error)
            await anyio.sleep(backoff.next())

    async def _follow(self) -> None:
        name = self._agent.node.name
        watch = self._kube.watch(
            NODES, fields={"metadata.name": name}, on_trouble=self._say_trouble
        )
        async with aclosing(watch) as news:
            async for each in news:
                if isinstance(each, Listing):
                    self._listed(each)
                else:
                    self._heard = max(self._heard, _version(each.object))
                    gone = each.type == "DELETED"
                    self._take(None if gone else each.object, each.object)
                self._faults.set(self._named, self._missing(name))
                self._changed()

    def wrote(self, stored: Json) -> None:
        """Take over what the server answered to a write of ours."""
        self._take(stored, stored)

    def _listed(self, listing: Listing) -> None:
        """Replace what is known, but for an answer that came while this was under way.

        A list is never older than what the server told before it, unless that was restored from a
        backup: then nothing counts that was said before.
        """
        self.known = True
        version = decimal(listing.version) or 0
        if version < self._heard:
            self._version = -1
        self._heard = version
        if listing.items:
            self._take(listing.items[0], listing.items[0])
        elif version >= self._version:
            self._found, self._version = None, version

    def _take(self, found: Json | None, said: Json) -> None:
        """Believe the newest: a write's answer may come after the news of what happened later."""
        version = _version(said)
        if version >= self._version:
            self._found, self._version = found, version

    def _missing(self, name: str) -> str:
        """Return why nothing can be said of the Node; one that is not there may be made anew."""
        if self.found is not None:
            return ""
        return anothers(name) if self._found else f"the API server has no Node {name}: {_NAMING}"

    def _say_trouble(self, error: KubeError | None) -> None:
        self._faults.set(self._source, "" if error is None else str(error))


async def own_node(kube: Kube, agent: Agent) -> Json | None:
    """Return the Node as it is now; None where there is none.

    Raises ``AnothersNode`` for another machine's, and ``KubeError``.
    """
    name = agent.node.name
    try:
        node = await kube.get(NODES, name)
    except KubeNotFound:
        return None
    if is_anothers(node, agent.node.boot_id):
        raise AnothersNode(anothers(name))
    return node


def is_anothers(node: Json, boot_id: str) -> bool:
    """Say whether a Node is another machine's: its kubelet runs on one of another boot.

    After a boot that is so until the kubelet has told of it (``status.nodeInfo.bootID``).
    """
    its = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID")
    return bool(its) and boot_id not in ("unknown", its)


def anothers(name: str) -> str:
    """Return what is said of a Node that is another machine's."""
    return (
        f"Node {name} is another machine's, or its kubelet has not told of this boot yet: its "
        f"bootID is not this machine's; {_NAMING}"
    )


def _version(item: Json) -> int:
    """Resource versions are numbers that grow with every write (enhancement 5504)."""
    return decimal(str(item["metadata"].get("resourceVersion", ""))) or 0


class Budget:
    """``most`` at once, and then one in ``every`` seconds: what flaps must not flood a cluster."""

    def __init__(self, most: int, every: float, clock: Callable[[], float]) -> None:
        self._most, self._every, self._clock = most, every, clock
        self._left, self._at = float(most), clock()

    def take(self) -> float:
        """Count one, and return how many seconds the next one has to wait."""
        now = self._clock()
        back = max(0.0, now - self._at) / self._every
        self._left, self._at = min(float(self._most), self._left + back) - 1, now
        return max(0.0, 1 - self._left) * self._every


class Writer:
    """Does one thing again whenever it was touched: seldom, and with back-off while it fails.

    ``act`` says whether it wrote something. What is forbidden or refused is tried again slowly.
    """

    def __init__(
        self,
        agent: Agent,
        source: str,
        act: Callable[[], Awaitable[bool]],
        *,
        gap: float,
        budget: Budget,
    ) -> None:
        self._faults, self._source, self._act = Faults(agent), source, act
        self._gap, self._budget = gap, budget
        self._touched = anyio.Event()
        self._away, self._refused = Backoff(1.0, 30.0), Backoff(5.0, 600.0)

    def touch(self) -> None:
        """Look again."""
        self._touched.set()

    async def run(self, sleep: Sleep) -> None:
        """Act for ever; a failure costs nothing but the delay."""
        while True:
            await self._touched.wait()
            self._touched = anyio.Event()
            await sleep(await self._once())

    async def _once(self) -> float:
        """Act, and return how many seconds to wait before anything else."""
        try:
            wrote = await self._act()
        except KubeError as error:
            self._faults.say(self._source, str(error))
            self.touch()
            away = isinstance(error, KubeUnreachable)
            return (self._away if away else self._refused).next()
        self._faults.clear(self._source)
        self._away.reset()
        self._refused.reset()
        return max(self._gap, self._budget.take()) if wrote else 0.0
