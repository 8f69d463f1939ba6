"""Device metadata files (KEP-5304): what a container was given, for the programs inside to read.

For each request of a claim there is one file on the host, below the driver's own directory of the
kubelet and keyed by the claim's UID, since a claim may be made anew under its name. One CDI file of
the claim mounts them. A file's content is replaced in place: a container has it bind-mounted, and
would never see another file that takes its name.

Everything here blocks; callers run it in a thread.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardpoint.errors import BadValue
from hardpoint.files import sync_directory
from hardpoint.model import AttributeValue, Claim, ClaimKey, PreparedDevice
from hardpoint_dra.translate import attribute

GROUP = "metadata.resource.k8s.io"
VERSIONS = ("v1beta1", "v1alpha1")
"""Newest first: readers take the first document that they know."""
IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
MOST_ATTRIBUTES = 32

_FILE = "metadata.json"
_LONGEST = 1 << 20
"""Characters of one document."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""What may become a file's name: UIDs, and names as the API server allows them."""

Attributes = Callable[[str], Mapping[str, AttributeValue]]
"""Attributes of one of the driver's devices by its name; empty for one that is not known."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """Whose metadata a file holds."""

    uid: str
    namespace: str
    name: str
    pod_claim_name: str


class MetadataFiles:
    """The metadata files of one driver's claims."""

    def __init__(
        self, driver: str, plugin: Path, cdi: Path, versions: Sequence[str] = VERSIONS
    ) -> None:
        if not driver[:1].isalpha():
            raise BadValue("driver name", driver, "a letter first, as in every CDI vendor's name")
        self._driver = driver
        self._versions = tuple(version for version in VERSIONS if version in versions)
        self._directory = plugin / "dra-device-metadata"
        self._cdi = cdi

    # -- claims -----------------------------------------------------------------------------------

    def write(
        self, claim: Claim, devices: Sequence[PreparedDevice], attributes: Attributes
    ) -> dict[str, str]:
        """Write a claim's files; return the CDI name to add for each request, by its base name.

        Raises ``OSError``, and ``BadValue`` for a name that is no file name.
        """
        subject = _Subject(claim.key.uid, claim.key.namespace, claim.key.name, claim.pod_claim_name)
        for request, group in _by_request(devices).items():
            path = self._host_file(subject.uid, request)
            document = self._document(subject, group, attributes)
            kept = _read(path)
            document["metadata"]["generation"] = _next_generation(kept, document)
            if kept != document:
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                _write_in_place(path, self._text(document))
            if kept is None:  # its name is answered: it is there after a power cut too
                for made in (path.parent, *path.parent.parents[:4]):
                    sync_directory(made)
        return self.again(claim.key)

    def has(self, key: ClaimKey, devices: Sequence[PreparedDevice]) -> bool:
        """Say whether there is a readable file for every request of a claim."""
        return _by_request(devices).keys() <= self._documents(key.uid).keys()

    def again(self, key: ClaimKey) -> dict[str, str]:
        """Make a known claim's CDI file true again, and return the names as ``write`` does."""
        documents = self._documents(key.uid)
        if documents:
            _replace(self._cdi_file(key.uid), json.dumps(self._spec(key.uid, documents), indent=2))
        return {request: self._cdi_name(key.uid, request) for request in documents}

    def remove(self, uid: str) -> None:
        """Remove what was written for a claim; nothing for an unknown one. Raises ``OSError``."""
        self._cdi_file(uid).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            shutil.rmtree(self._claim_directory(uid))

    # -- all of them ------------------------------------------------------------------------------

    def restore(self, held: Iterable[ClaimKey], before: float) -> None:
        """After a start: make CDI files anew (``/run`` is empty after a boot), drop old leavings.

        What was written after ``before`` (seconds since 1970) stays: its claim may be unknown to
        ``held`` because it is just being prepared.
        """
        keys = {key.uid: key for key in held}
        for uid in self._uids():
            if uid in keys:
                self.again(keys[uid])
            elif self._claim_directory(uid).stat().st_mtime < before:
                self.remove(uid)

    def refresh(self, attributes: Attributes) -> None:
        """Bring every file up to date with what is known of its devices now."""
        for uid in self._uids():
            for request, document in self._documents(uid).items():
                new = json.loads(json.dumps(document))
                for device in (d for r in new["requests"] for d in r["devices"]):
                    known = attributes(device["name"])
                    if known:
                        device["attributes"] = _encode(known)
                new["metadata"]["generation"] = _next_generation(document, new)
                if new != document:
                    _write_in_place(self._host_file(uid, request), self._text(new), create=False)

    def _uids(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._directory) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []

    def _documents(self, uid: str) -> dict[str, dict[str, Any]]:
        """Return a claim's readable documents, by the request's base name."""
        found = {}
        for path in sorted(self._claim_directory(uid).glob(f"*/{_FILE}")):
            document = _read(path)
            if document is not None:
                found[path.parent.name] = document
        return found

    # -- paths and names --------------------------------------------------------------------------

    def _claim_directory(self, uid: str) -> Path:
        return self._directory / _file_name("claim UID", uid)

    def _host_file(self, uid: str, request: str) -> Path:
        return self._claim_directory(uid) / _file_name("request", request) / _FILE

    def _cdi_file(self, uid: str) -> Path:
        return self._cdi / f"{self._driver}_metadata_{_file_name('claim UID', uid)}.json"

    def _cdi_name(self, uid: str, request: str) -> str:
        return f"{self._driver}/metadata={uid}_{request}"

    def _container_path(self, document: Mapping[str, Any], request: str) -> str:
        template = document.get("podClaimName")
        where = (
            f"resourceclaimtemplates/{template}"
            if template
            else f"resourceclaims/{document['metadata']['name']}"
        )
        return f"{IN_CONTAINER}/{where}/{request}/{self._driver}-metadata.json"

    # -- contents ---------------------------------------------------------------------------------

    def _document(
        self, subject: _Subject, devices: Sequence[PreparedDevice], attributes: Attributes
    ) -> dict[str, Any]:
        requests: dict[str, list[dict[str, Any]]] = {}
        for device in devices:
            entry = {"driver": self._driver, "pool": device.pool, "name": device.device}
            known = _encode(attributes(device.device))
            requests.setdefault(device.request, []).append(
                {**entry, **({"attributes": known} if known else {})}
            )
        document: dict[str, Any] = {
            "metadata": {
                "name": subject.name,
                "namespace": subject.namespace,
                "uid": subject.uid,
                "generation": 1,
            },
            "requests": [{"name": name, "devices": list_} for name, list_ in requests.items()],
        }
        if subject.pod_claim_name:
            document["podClaimName"] = subject.pod_claim_name
        return document

    def _text(self, document: Mapping[str, Any]) -> str:
        """Return the document once for each version, one after another."""
        head = {"kind": "DeviceMetadata"}
        return "".join(
            json.dumps({"apiVersion": f"{GROUP}/{version}", **head, **document}) + "\n"
            for version in self._versions
        )

    def _spec(self, uid: str, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the CDI file: 0.5.0 is the first version with names that begin with a digit."""
        devices = []
        for request, document in documents.items():
            mount = {
                "hostPath": str(self._host_file(uid, request)),
                "containerPath": self._container_path(document, request),
                "options": ["ro", "bind"],
            }
            name = f"{uid}_{request}"
            devices.append({"name": name, "containerEdits": {"mounts": [mount]}})
        return {"cdiVersion": "0.5.0", "kind": f"{self._driver}/metadata", "devices": devices}


def with_metadata(
    devices: Sequence[PreparedDevice], names: Mapping[str, str]
) -> tuple[PreparedDevice, ...]:
    """Add each request's CDI name to its first device."""
    left = dict(names)
    return tuple(_with(device, left.pop(_base(device.request), None)) for device in devices)


def _with(device: PreparedDevice, name: str | None) -> PreparedDevice:
    if name is None:
        return device
    return PreparedDevice(
        request=device.request,
        pool=device.pool,
        device=device.device,
        cdi_ids=(*device.cdi_ids, name),
        share_id=device.share_id,
    )


def _by_request(devices: Iterable[PreparedDevice]) -> dict[str, list[PreparedDevice]]:
    groups: dict[str, list[PreparedDevice]] = {}
    for device in devices:
        groups.setdefault(_base(device.request), []).append(device)
    return groups


def _base(request: str) -> str:
    return request.partition("/")[0]


def _file_name(what: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadValue(what, name, "letters, digits, dots and dashes")
    return name


def _encode(attributes: Mapping[str, AttributeValue]) -> dict[str, dict[str, Any]]:
    """Return attributes as a ResourceSlice writes them."""
    return {name: attribute(value) for name, value in sorted(attributes.items())[:MOST_ATTRIBUTES]}


# -- files ----------------------------------------------------------------------------------------


def _next_generation(kept: Mapping[str, Any] | None, new: Mapping[str, Any]) -> int:
    """Return the kept generation if nothing else differs, or one more."""
    if kept is None:
        return 1
    generation = int(kept["metadata"]["generation"])
    same = {**new, "metadata": {**new["metadata"], "generation": generation}} == kept
    return generation if same else generation + 1


def _read(path: Path) -> dict[str, Any] | None:
    """Return a file's first document without its type; None if there is none, or it is torn."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with open(os.open(path, flags), encoding="utf-8") as file:
            document = json.loads(file.readline(_LONGEST))
        document.pop("apiVersion")
        document.pop("kind")
        if not isinstance(document["metadata"]["generation"], int) or not document["requests"]:
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return dict(document)


def _write_in_place(path: Path, text: str, create: bool = True) -> None:
    """Overwrite, so that the inode stays; a reader may see a torn file and reads again.

    What is no plain file, or has another name elsewhere, is not written to.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags | (os.O_CREAT if create else 0), 0o644)
    with open(descriptor, "wb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise FileExistsError(errno.EEXIST, "not a file of ours", str(path))
        os.fchmod(descriptor, 0o644)  # whatever the umask: programs inside are not root
        file.write(text.encode())
        file.truncate()
        file.flush()
        os.fsync(descriptor)


def _replace(path: Path, text: str) -> None:
    """Put a whole file in place by a rename in its directory, which is what runtimes watch for."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        temporary.unlink(missing_ok=True)  # not through a link that somebody put there
        with open(os.open(temporary, flags, 0o644), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
        temporary.rename(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
