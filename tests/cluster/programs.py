"""The programs of a Kubernetes node: found, unpacked or built from Go modules.

``go/kube`` is one binary with etcd, kube-apiserver, kube-controller-manager, kube-scheduler,
kubelet and kubectl in it, in the version that ``go/kube-VERSION`` pins; ``go/node`` pins
containerd, its shim, ctr and two CNI plugins. What was built is kept under a key made of these
sources, in ``$HARDPOINT_CLUSTER_CACHE`` (``~/.cache/hardpoint-cluster``), so that no two sources
share a binary.

Programs that somebody has built from the same sources are taken from ``$HARDPOINT_CLUSTER_BIN`` (or
``shared/cluster/bin`` beside the checkout): a MANIFEST.json there names keys and checksums.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.images import ARCHITECTURES

GO = Path(__file__).parent / "go"
BESIDE = Path(__file__).parents[3] / "shared/cluster/bin"
TOOLS = ("containerd", "containerd-shim-runc-v2", "ctr", "bridge", "host-local")


@dataclass(frozen=True, slots=True)
class Release:
    """A Kubernetes version: the programs' own, and the minor one that they act as, if another."""

    version: str
    emulate: str = ""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs are: the multi-call binary, and the directory of the node's tools."""

    kube: Path
    tools: Path


def releases() -> list[str]:
    """Versions that can be built, the newest last."""
    found = (path.name.removeprefix("kube-") for path in GO.glob("kube-*"))
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def release(wanted: str = "") -> Release:
    """Understand ``1.34`` or ``1.34.4``; nothing is the newest. A minor between is emulated."""
    known = releases()
    exact = [v for v in known if v == wanted or v.startswith(f"{wanted}.")] if wanted else known
    if exact:
        return Release(exact[-1])
    oldest, newest = (int(v.split(".")[1]) for v in (known[0], known[-1]))
    major, _, minor = wanted.partition(".")
    if major != "1" or not minor.isdigit() or not oldest < int(minor) < newest:
        raise ValueError(f"KUBERNETES={wanted}: want 1.{oldest} to 1.{newest}")
    return Release(known[-1], emulate=wanted)


def programs(version: str) -> Programs:
    """Return the programs of a version, built if need be: about ten minutes on two cores."""
    kube = _kept(f"kube-{version}", _key_of(version), lambda out, of: _kube(version, of, out))
    tools = _kept("node", key(GO / "node/go.mod", GO / "node/go.sum"), _tools)
    return Programs(kube / "kube", tools)


def at_hand(version: str) -> bool:
    """Say whether a version's programs are there without a build."""
    of = _key_of(version)
    return (_cache() / f"kube-{version}-{of[:16]}").is_dir() or _fitting("kube", of) is not None


def _key_of(version: str) -> str:
    module = GO / f"kube-{version}"
    return key(module / "go.mod", module / "go.sum", GO / "kube/main.go")


def key(*sources: Path) -> str:
    """Name the sources by their content: SHA-256 over the SHA-256 of each, in order."""
    whole = hashlib.sha256()
    for source in sources:
        whole.update(hashlib.sha256(source.read_bytes()).digest())
    return whole.hexdigest()


def _kept(name: str, of: str, make: Callable[[Path, str], None]) -> Path:
    home = _cache() / f"{name}-{of[:16]}"
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=home.parent) as made:
            make(Path(made, "out"), of)
            try:
                Path(made, "out").rename(home)
            except OSError:  # another run was faster
                if not home.is_dir():
                    raise
    return home


def _cache() -> Path:
    own = os.environ.get("HARDPOINT_CLUSTER_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "hardpoint-cluster"


# -- what somebody has built ----------------------------------------------------------------------


def _prebuilt() -> tuple[Path, dict[str, Any]]:
    directory = Path(os.environ.get("HARDPOINT_CLUSTER_BIN") or BESIDE)
    try:
        manifest: dict[str, Any] = json.loads((directory / "MANIFEST.json").read_text())
    except OSError:
        manifest = {}
    return directory, manifest


def _fitting(part: str, of: str) -> tuple[str, str] | None:
    """Return the version and the checksum under which a part was built from these sources."""
    here = f"linux/{ARCHITECTURES.get(platform.machine())}"
    for version, built in _prebuilt()[1].items():
        if built["keys"][part] == of and built["platform"] == here:
            return version, built["sha256"][part]
    return None


def _unpacked(archive: Path, checksum: str) -> bytes:
    data = lzma.decompress(archive.read_bytes())
    if hashlib.sha256(data).hexdigest() != checksum:
        raise RuntimeError(f"{archive} is not what its MANIFEST.json says")
    return data


def _kube(version: str, of: str, out: Path) -> None:
    found = _fitting("kube", of)
    if found is None:
        _build(GO / f"kube-{version}", out, version)
        return
    out.mkdir()
    (out / "kube").write_bytes(_unpacked(_prebuilt()[0] / f"kube-{found[0]}.xz", found[1]))
    (out / "kube").chmod(0o755)


def _tools(out: Path, of: str) -> None:
    found = _fitting("node", of)
    if found is None:
        _build(GO / "node", out)
        return
    out.mkdir()
    archive = _prebuilt()[0] / "node-tools.tar.xz"
    _unpacked(archive, found[1])
    with tarfile.open(archive) as tar:
        tar.extractall(out, filter="data")


# -- building -------------------------------------------------------------------------------------


def _build(module: Path, out: Path, version: str = "") -> None:
    """Build a module: the multi-call binary where a version is given, else its tools."""
    print(f"building {module.name} from Go modules, some minutes", file=sys.stderr)  # noqa: T201
    with tempfile.TemporaryDirectory(prefix="hardpoint-go-") as work:
        for source in (*module.iterdir(), *((GO / "kube").iterdir() if version else ())):
            shutil.copy(source, work)
        out.mkdir()
        target = ["-o", str(out / "kube"), "."] if version else ["-o", f"{out}/", "tool"]
        stamp = f"-s -w {_stamp(version)}" if version else "-s -w"
        words = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags", stamp, *target]
        environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
        subprocess.run(words, cwd=work, env=environment, check=True)


def _stamp(version: str) -> str:
    """Kubernetes reads its own version from variables that the linker sets."""
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    facts = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X {package}.{name}={value}" for name, value in facts.items())


if __name__ == "__main__":
    for each in sys.argv[1:] or ["1.37"]:
        print(programs(release(each).version))  # noqa: T201
