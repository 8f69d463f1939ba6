"""Images for pods, made of one static busybox: no registry is asked.

``localhost/pause:1`` is for pods' sandboxes, ``localhost/busybox:1`` for everything else. Both are
one OCI image layout in a tar file, which ``ctr images import`` takes.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path
from typing import Any

PAUSE, BUSYBOX = "localhost/pause:1", "localhost/busybox:1"
_COMMANDS = {PAUSE: ["/bin/sleep", "2147483647"], BUSYBOX: ["/bin/sh"]}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""This machine's word for itself, and Go's and OCI's."""
_OCI = "application/vnd.oci.image"


def write(busybox: Path, out: Path) -> None:
    """Write the archive. The same busybox gives the same bytes."""
    layer = _layer(busybox)
    with tarfile.open(out, "w") as tar:
        layout = _Layout(tar)
        base = layout.add(layer, f"{_OCI}.layer.v1.tar")
        manifests = [_image(layout, base, name, words) for name, words in _COMMANDS.items()]
        layout.file("oci-layout", {"imageLayoutVersion": "1.0.0"})
        layout.file("index.json", {"schemaVersion": 2, "manifests": manifests})


class _Layout:
    """A tar file with blobs named by their content."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar, self._known = tar, set[str]()

    def add(self, content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self._known:
            _put(self._tar, f"blobs/sha256/{digest}", content, 0o644)
            self._known.add(digest)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    def file(self, name: str, content: object) -> None:
        _put(self._tar, name, json.dumps(content).encode(), 0o644)


def _image(layout: _Layout, base: dict[str, Any], name: str, words: list[str]) -> dict[str, Any]:
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Cmd": words, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [base["digest"]]},
    }
    about = layout.add(json.dumps(config).encode(), f"{_OCI}.config.v1+json")
    manifest = {"schemaVersion": 2, "config": about, "layers": [base]}
    entry = layout.add(json.dumps(manifest).encode(), f"{_OCI}.manifest.v1+json")
    return entry | {"annotations": {"io.containerd.image.name": name}}


def _layer(busybox: Path) -> bytes:
    done = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for name in ("bin", "dev", "etc", "proc", "root", "sys"):
            _directory(tar, name, 0o755)
        _directory(tar, "tmp", 0o1777)
        _put(tar, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in sorted(set(done.stdout.split()) - {"busybox"}):
            _link(tar, f"bin/{applet}", "busybox")
        users = b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n"
        _put(tar, "etc/passwd", users, 0o644)
        _put(tar, "etc/group", b"root:x:0:\nuser:x:1000:\n", 0o644)
    return held.getvalue()


def _put(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _directory(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)
