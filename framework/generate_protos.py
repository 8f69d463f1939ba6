"""Generate ``hardpoint.kubelet``'s message classes from its ``.proto`` files.

Run as ``python framework/generate_protos.py [DIRECTORY]``; without a directory the generated files
are written beside their sources. They are committed: nobody who installs Hardpoint needs protoc.

Generated code runs on the protobuf release that its protoc belongs to, and later ones up to the
end of the next major; so the lower bound in ``pyproject.toml`` follows the ``grpcio-tools`` that
is used here. ``_pb2_grpc.py`` is left out on purpose: it would also tie us to one grpcio, and
``hardpoint.kubelet.services`` does its work from the descriptors.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "src"
PACKAGE = "hardpoint/kubelet"


def protos() -> list[str]:
    """Return the files' names as the descriptor pool knows them: distinct, below our package.

    Two files called ``api.proto`` cannot be loaded into one process, whatever their directories.
    """
    return [f"{PACKAGE}/{path.name}" for path in sorted((SOURCE / PACKAGE).glob("*.proto"))]


def generate(into: Path) -> None:
    """Write ``_pb2.py`` and ``_pb2.pyi`` of every file below a directory."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    for proto in protos():
        arguments = ["protoc", f"-I{SOURCE}", f"--python_out={into}", f"--pyi_out={into}", proto]
        if protoc.main(arguments) != 0:
            raise SystemExit(f"protoc refused {proto}")
        _complete(into / proto.replace(".proto", "_pb2.pyi"))


def _complete(stub: Path) -> None:
    """Name the types of a bare ``Mapping``: strict type checkers refuse it without."""
    text = re.sub(r"\b_Mapping\]", "_Mapping[str, _Any]]", stub.read_text())
    stub.write_text(
        text.replace("import ClassVar as _ClassVar,", "import Any as _Any, ClassVar as _ClassVar,")
    )


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
