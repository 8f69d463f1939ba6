"""Every error of Hardpoint, named for its condition; constructors build the sentence from facts.

A plugin raises two of them, ``TryAgain`` and ``Refuse``. Anything else that leaves a plugin is a
fault: it is caught, shown on the fault board, and costs only that plugin's own answer.
"""

from __future__ import annotations


class HardpointError(Exception):
    """Base of all of them. ``str(error)`` is a sentence fit for a log line or a pod event."""


# -- what plugins raise ---------------------------------------------------------------------------


class TryAgain(HardpointError):
    """Not possible now, and likely later: the kubelet will repeat the call.

    ``after`` is a hint in seconds.
    """

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.why, self.after = why, after


class Refuse(HardpointError):
    """Not possible as asked. ``reason`` is one short word, fit for a metric label."""

    def __init__(self, why: str, reason: str = "refused") -> None:
        super().__init__(why)
        self.why, self.reason = why, reason


# -- plugins --------------------------------------------------------------------------------------


class PluginRefused(HardpointError):
    """An installed plugin that is not run; the others are."""

    def __init__(self, plugin: str, reason: str) -> None:
        super().__init__(f"plugin {plugin!r} is not run: {reason}")
        self.plugin, self.reason = plugin, reason


class HookFault(HardpointError):
    """One call of one hook that raised, ran late, or answered what the contract does not allow."""

    def __init__(self, plugin: str, hook: str, what: str) -> None:
        super().__init__(f"{hook} of plugin {plugin!r} failed: {what}")
        self.plugin, self.hook, self.what = plugin, hook, what


class HookLate(HookFault):
    """A call that is not over within its budget. It still runs; whoever asks again joins it."""


class BadValue(HardpointError, ValueError):
    """A name, attribute or node that the Kubernetes API or CDI would refuse."""

    def __init__(self, field: str, found: object, want: str) -> None:
        super().__init__(f"{field}: found {found!r:.80}, want {want}")
        self.field, self.found, self.want = field, found, want


class BadSelector(BadValue):
    """A CEL expression that is none, or that fails on a device; says what CEL makes of it."""

    def __init__(self, field: str, said: str, want: str) -> None:
        super().__init__(field, said, want)
        self.args = (f"{field}: {said:.300}; want {want}",)


class BadSettings(HardpointError):
    """A settings file or variable that cannot be used; says where, what, and what would do."""

    def __init__(self, where: str, found: str, want: str = "") -> None:
        super().__init__(f"{where}: {found}" + (f"; {want}" if want else ""))
        self.where, self.found, self.want = where, found, want


# -- recorded machines ----------------------------------------------------------------------------


class NotAMachine(HardpointError):
    """A path that is no recorded machine, or one that must not be opened."""

    def __init__(self, path: str, what: str) -> None:
        shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)
        super().__init__(f"{shown} is no recorded machine: {what}")
        self.path, self.what = path, what


# -- claims and holds -----------------------------------------------------------------------------


class HoldError(HardpointError):
    """A claim that was not prepared or unprepared. ``reason`` is one word, ``retry`` a promise."""

    reason = "error"
    retry = True

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class HoldDenied(HoldError):
    """The device is not to be had for this claim: not offered, not admitted, bad parameters."""

    def __init__(self, why: str, reason: str = "denied") -> None:
        super().__init__(why)
        self.reason = reason


class HoldFailed(HoldError):
    """A plugin, the ledger or the runtime's directory failed; the same call may work later."""

    def __init__(self, why: str, reason: str = "failed") -> None:
        super().__init__(why)
        self.reason = reason


class HoldConflict(HoldError):
    """Another hold has one of the device's parts."""

    reason = "held"

    def __init__(self, device: str, part: str, holder: str) -> None:
        super().__init__(f"device {device} is in use: {holder} holds {part}")
        self.device, self.part, self.holder = device, part, holder


class HoldOvertaken(HoldError):
    """A later unprepare for the same claim arrived while this prepare waited or ran."""

    reason = "overtaken"

    def __init__(self, claim: str) -> None:
        super().__init__(f"claim {claim} was unprepared while it was being prepared")


class HoldBusy(HoldError):
    """The earlier call for this claim still runs in its driver; repeat the call later."""

    reason = "busy"

    def __init__(self, claim: str, what: str) -> None:
        super().__init__(f"claim {claim}: {what} is still running; try again")


class WrongClaim(HoldDenied):
    """The API server's claim is not the one the kubelet asked for."""

    def __init__(self, asked: str, found: str) -> None:
        super().__init__(
            f"the kubelet asked for claim UID {asked}, the API server has {found}: "
            "it was deleted and created again under the same name",
            reason="wrong-uid",
        )


# -- state ----------------------------------------------------------------------------------------


class LedgerError(HardpointError):
    """The ledger in the state directory cannot be used."""


class LedgerTooNew(LedgerError):
    """Written by a later release that this one cannot read."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path} has schema version {found}, this release reads up to {known}: "
            "run the newer release, or drain the node and remove the file"
        )
        self.found, self.known = found, known


class LedgerDamaged(LedgerError):
    """Not a readable SQLite file, or its contents contradict each other."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} is damaged: {what}")
        self.path, self.what = path, what


class LedgerUnwritable(LedgerError):
    """A durable write failed: disk full, read-only, or over quota. Nothing was changed."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"cannot write {path}: {what}")
        self.path, self.what = path, what


class LedgerLost(LedgerError):
    """The file was removed or replaced under a running agent: another may go by another ledger."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was removed or replaced while it was in use: the agent ends, and begins anew "
            "with what the CDI files say"
        )
        self.path = path


# -- the kubelet ----------------------------------------------------------------------------------


class SocketError(HardpointError):
    """A unix socket that cannot be served or dialled as asked."""


class SocketPathTooLong(SocketError):
    """Longer than Linux can address, less one byte that gRPC wants for itself."""

    def __init__(self, path: str, length: int, limit: int) -> None:
        super().__init__(
            f"socket path {path} has {length} bytes, the most is {limit}: "
            "use a shorter driver name or kubelet root"
        )
        self.path, self.length, self.limit = path, length, limit


class SocketInUse(SocketError):
    """Another process serves a socket of this name; taking it would cut that process off."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"another process serves {path}: two agents on one node need different instance "
            "names (the pod's UID)"
        )
        self.path = path


class CallFailed(HardpointError):
    """A gRPC call over a unix socket that failed. ``code`` is gRPC's word: ``UNAVAILABLE`` …"""

    def __init__(self, path: str, method: str, code: str, details: str = "") -> None:
        super().__init__(
            f"{method} at {path} failed with {code}" + (f": {details}" * bool(details))
        )
        self.path, self.method, self.code, self.details = path, method, code, details


# -- the API server -------------------------------------------------------------------------------


class AnothersNode(HardpointError):
    """A Node of the agent's name is another machine's: nothing of it is changed."""


class KubeError(HardpointError):
    """The API server could not be asked, or did not do what was asked."""


class KubeUnreachable(KubeError):
    """No answer: connection refused, time-out, TLS, or a 5xx."""


class KubeBusy(KubeUnreachable):
    """429: not now. Of an eviction: a disruption budget does not allow it."""


class KubeDenied(KubeError):
    """401 or 403: the token or its role does not allow it."""


class KubeNotFound(KubeError):
    """404 for an object, or an API that this server does not serve."""


class KubeConflict(KubeError):
    """409: the object exists already, or has changed since it was read."""


class KubeGone(KubeError):
    """410: the resource version is too old; list again."""


class KubeInvalid(KubeError):
    """422: the object was refused. ``causes`` are pairs of a field's path and what is wrong."""

    def __init__(self, what: str, causes: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(what)
        self.causes = causes
