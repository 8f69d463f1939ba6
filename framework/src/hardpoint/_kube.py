"""What the API server's answers mean, without a client: collections, refusals, dropped fields."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from hardpoint.errors import (
    KubeBusy,
    KubeConflict,
    KubeDenied,
    KubeError,
    KubeGone,
    KubeInvalid,
    KubeNotFound,
    KubeUnreachable,
)

Json: TypeAlias = "dict[str, Any]"

LONGEST_LINE = 16 << 20
"""Bytes of one watch event; etcd takes 1.5 MiB."""


_A_WHILE = 5.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A collection of the API: ``Resource("resource.k8s.io", "v1", "resourceslices")``."""

    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """What objects carry as ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, or of one object in it."""
        steps = ["apis", self.group] if self.group else ["api"]
        steps.append(self.version)
        if namespace:
            steps += ["namespaces", _step(namespace)]
        if name:
            steps += [self.plural, _step(name)]
            return "/".join([*steps, subresource] if subresource else steps)
        return "/".join([*steps, self.plural])


def _step(name: str) -> str:
    """Return a name as one step of a path, which leads nowhere else whatever it is."""
    if name in (".", ".."):
        raise KubeInvalid(f"{name!r} is no name of an object")
    return quote(name.encode("utf-8", "surrogatepass"), safe=":")


NODES = Resource("", "v1", "nodes")
PODS = Resource("", "v1", "pods")
EVENTS = Resource("", "v1", "events")


@dataclass(frozen=True, slots=True)
class Listing:
    """A collection as it was at one resource version; what is not in it does not exist."""

    items: tuple[Json, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One object that was ``ADDED``, ``MODIFIED`` or ``DELETED`` after the last ``Listing``."""

    type: str
    object: Json


class Backoff:
    """Growing delays in seconds, with jitter, so that a cluster's agents do not knock in step."""

    def __init__(self, first: float = 0.5, most: float = 30.0) -> None:
        self._first, self._most = first, most
        self.failures = 0
        """Attempts in a row that did not work."""

    def next(self) -> float:
        """Return the delay before the next attempt, between half and one and a half of its step."""
        step = min(self._most, self._first * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return step * random.uniform(0.5, 1.5)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """Begin small again: it worked."""
        self.failures = 0

    def worked(self, seconds: float) -> None:
        """Begin small again if it worked for a while: a proxy may end all at their first event."""
        if seconds >= _A_WHILE:
            self.reset()


def decode(raw: bytes) -> Json:
    """Return a JSON object. Raises ``KubeUnreachable`` for anything else."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KubeUnreachable(f"the answer is not JSON: {error!s:.200}") from error
    if not isinstance(found, dict):
        raise KubeUnreachable(f"the answer is not an object: {type(found).__name__}")
    return found


class OwnerReference(msgspec.Struct):
    """Whose an object is."""

    kind: str
    name: str
    uid: str


class ObjectMeta(msgspec.Struct):
    """What every object has."""

    name: str
    uid: str = ""
    resourceVersion: str = ""
    ownerReferences: list[OwnerReference] | None = None
    labels: dict[str, str] | None = None


class Object(msgspec.Struct):
    """The least that an object is."""

    metadata: ObjectMeta


class StoredMeta(ObjectMeta, kw_only=True):
    """What every object has that the server keeps: by these it is replaced and deleted."""

    uid: str
    resourceVersion: str


class Stored(Object):
    """An object that the server keeps; what a dry run answers is none."""

    metadata: StoredMeta


class _Page(msgspec.Struct):
    kind: Annotated[str, msgspec.Meta(pattern="List$")]
    """Without it ``{}`` of somebody else's would be a list of nothing."""
    items: list[Stored] | None = None
    metadata: dict[str, str | int | None] | None = None


class _Marked(msgspec.Struct):
    metadata: dict[str, Any] | None = None


class _Version(msgspec.Struct):
    version: str


class _Group(msgspec.Struct):
    kind: Literal["APIGroup"]
    versions: list[_Version] | None = None


class _Named(msgspec.Struct):
    name: str


class _Groups(msgspec.Struct):
    groups: list[_Named]


PAGE, MARKED, GROUP, GROUPS = _Page, _Marked, _Group, _Groups


def shaped(kind: type[Any], found: Json, what: str) -> Json:
    """Return an answer of the server that has the shape it must have, as far as ``kind`` says.

    Raises ``KubeUnreachable``: who answers so is no API server.
    """
    try:
        msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise KubeUnreachable(f"{what}: the answer is not what the API has: {error}") from error
    return found


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Split at line feeds alone: JSON may hold U+0085, which text line splitters take for one."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > LONGEST_LINE:
            raise KubeUnreachable(f"a watch event of more than {LONGEST_LINE >> 20} MiB")


_ERRORS: Mapping[int, type[KubeError]] = {
    400: KubeInvalid,
    401: KubeDenied,
    403: KubeDenied,
    404: KubeNotFound,
    409: KubeConflict,
    410: KubeGone,
    413: KubeInvalid,
    422: KubeInvalid,
    429: KubeBusy,
}


def refused(what: str, code: int, content: bytes) -> KubeError:
    """Return the error that an HTTP answer of 300 or more stands for; proxies send no JSON."""
    try:
        status = decode(content)
    except KubeUnreachable:
        status = {"message": content[:200].decode("utf-8", "replace").strip()}
    return from_status({**status, "code": code}, what)


def from_status(status: Json, what: str) -> KubeError:
    """Return the error that a ``Status`` object stands for."""
    code = status.get("code")
    text = f"{what}: {code} {status.get('message') or status.get('reason') or ''!s:.600}"
    kind = _ERRORS.get(code if isinstance(code, int) else 0, KubeUnreachable)
    if kind is not KubeInvalid:
        return kind(text)
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else ()
    found = [c for c in causes if isinstance(c, dict)] if isinstance(causes, list) else []
    return KubeInvalid(
        text, tuple((str(c.get("field", "")), str(c.get("message", ""))) for c in found)
    )


def rank(version: str) -> tuple[int, int, int]:
    """Order API versions: v2 after v1 after v1beta2 after v1alpha3."""
    match = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if match is None:
        return (-1, 0, 0)
    major, stage, minor = match.groups()
    return ({"alpha": 0, "beta": 1, None: 2}[stage], int(major), int(minor or 0))


# -- what the server kept -------------------------------------------------------------------------


def dropped(sent: Json, stored: Json) -> tuple[str, ...]:
    """Return the paths of fields that were sent and that the stored object lacks.

    A server drops fields whose feature gate is off, without a word (``spec.devices[0].taints``).
    """
    return tuple(_dropped(sent, stored, ""))


def _dropped(sent: Any, stored: Any, path: str) -> Iterator[str]:
    if not sent:
        return  # nil and empty are the same to the API
    if stored is None or (isinstance(sent, (dict, list)) and not isinstance(stored, type(sent))):
        yield path
    elif isinstance(sent, dict):
        for key, value in sent.items():
            step = f".{key}" if re.fullmatch(r"\w+", key) else f"[{key}]"
            yield from _dropped(value, stored.get(key), (path + step).removeprefix("."))
    elif isinstance(sent, list):
        for index, value in enumerate(sent):
            kept = stored[index] if index < len(stored) else None
            yield from _dropped(value, kept, f"{path}[{index}]")
