"""Names that the kubelet is told: resources by its own rules, and one socket per resource.

A resource is refused when the settings are read, in place of a registration that the kubelet
refuses: ``IsExtendedResourceName`` of k8s.io/component-helpers.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from hardpoint.attributes import LONGEST_NAME, is_subdomain
from hardpoint.errors import BadValue
from hardpoint.kubelet.sockets import LONGEST_PATH, remove_left_behind, remove_stale

KUBELET = "kubelet.sock"
LONGEST_PREFIX = 253 - len("requests.")
"""``requests.<name>`` has to be a name too: quota counts it."""

_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SOCKET = re.compile(r"hardpoint-.*-[0-9a-f]{12}\.sock")


def check_resource(name: str) -> str:
    """Return a resource's name. Raises ``BadValue`` for one that the kubelet would refuse."""
    prefix, slash, word = name.partition("/")
    if not slash:
        raise BadValue("resource", name, "a domain of your own before it: example.com/zigbee")
    if f"{prefix}/".endswith("kubernetes.io/") or name.startswith("requests."):
        raise BadValue(
            "resource",
            name,
            "another domain: names in kubernetes.io and names that begin with requests. are "
            "Kubernetes' own",
        )
    if not is_subdomain(prefix) or len(prefix) > LONGEST_PREFIX:
        want = f"a lower-case DNS subdomain of at most {LONGEST_PREFIX} characters before the slash"
        raise BadValue("resource", name, want)
    check_word(word)
    return name


def check_word(word: str) -> str:
    """Return what may follow the slash. Raises ``BadValue`` as the kubelet would."""
    if len(word) > LONGEST_NAME or not _WORD.fullmatch(word):
        raise BadValue(
            "resource",
            word,
            "1 to 63 letters, digits, '-', '_' and '.' after the slash, a letter or digit at "
            "both ends",
        )
    return word


def socket_path(directory: Path, resource: str, instance: str) -> Path:
    """Return where a resource is served; two instances of the agent never share a socket.

    It has the end of the resource's name in it for people, as much as a socket's path has room for.
    """
    digest = hashlib.sha256(f"{resource}\0{instance}".encode()).hexdigest()[:12]
    room = LONGEST_PATH - len(str(directory).encode()) - len("/hardpoint--.sock") - len(digest)
    word = resource.rpartition("/")[2][: max(room, 0)].rstrip("-_.") or "x"
    return directory / f"hardpoint-{word}-{digest}.sock"


def remove_dead(directory: Path) -> tuple[Path, ...]:
    """Unlink sockets of killed agents: only names of ours, and only those that nobody serves."""
    ours = [path for path in directory.glob("hardpoint-*.sock") if _SOCKET.fullmatch(path.name)]
    return remove_left_behind(directory) + remove_stale(ours)
