"""When it may be believed that a pod is not there: a kubelet that has just started knows few.

It lists none but its static pods until the API server has told it of the others, and admits them
one after the other then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hardpoint.kubelet.podsource import Checkpoint, Kubelet

ALONE = 3600.0
"""Seconds after which a kubelet that lists nothing but static pods is believed to have no others,
and a checkpoint that was not written any more is believed no longer."""


class Settling:
    """Judges a kubelet by what it lists; all times are seconds of one clock that is never set."""

    def __init__(
        self,
        node: str,
        itself: tuple[str, str] | None,
        *,
        settle: float = 30.0,
        alone: float = ALONE,
    ) -> None:
        self._node, self._itself = node, itself
        self._settle, self._alone = settle, alone
        self._kubelet: Kubelet | None = None
        self._since = 0.0
        self._knows_since: float | None = None
        self._written: tuple[object, float] = (None, 0.0)
        """The checkpoint that was seen last, and since when it is that one."""
        self.doubt = ""
        """Why nothing follows from what is not listed; empty where it does, or soon will."""

    def heard(
        self, pods: Collection[tuple[str, str]], kubelet: Kubelet | None, begun: float
    ) -> bool:
        """Learn which pods a kubelet lists, by namespace and name; say whether it is another one.

        ``begun`` is when the list was asked for.
        """
        another = kubelet != self._kubelet
        if another:
            self._kubelet, self._since, self._knows_since = kubelet, begun, None
        if self._knows_since is None:
            self.doubt = self._why_not(pods, begun)
            if not self.doubt:
                self._knows_since = begun
        return another

    def _why_not(self, pods: Collection[tuple[str, str]], begun: float) -> str:
        if self._itself is not None:
            if self._itself in pods:
                return ""
            return f"the kubelet does not list this agent's own pod {'/'.join(self._itself)}"
        static = f"-{self._node}"  # the kubelet adds it to the name of a pod from a file
        if any(not name.endswith(static) for _, name in pods):
            return ""
        if begun - self._since >= self._alone:
            return ""
        return "the kubelet lists no pod of the API server's"

    def knows(self, kubelet: Kubelet | None) -> bool:
        """Say whether this kubelet has shown that it knows its pods."""
        return kubelet == self._kubelet and self._knows_since is not None

    def settled(self, begun: float) -> bool:
        """Say whether something may follow from what a read does not list."""
        return self._knows_since is not None and begun - self._knows_since >= self._settle

    def believes(self, found: Checkpoint, now: float) -> bool:
        """Say whether what a checkpoint names is somebody's.

        The kubelet writes it anew at each list of a plugin's, ours once a minute at least. Where
        no plugin lists any more nothing is written, and pods that are over stay in it for ever.
        """
        if found.written != self._written[0]:
            self._written = found.written, now
        return now - self._written[1] < self._alone


def own_pod(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return namespace and name of the agent's own pod, as the pod's specification may say them."""
    found = environment.get("POD_NAMESPACE", ""), environment.get("POD_NAME", "")
    return found if all(found) else None
