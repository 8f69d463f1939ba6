"""Acme's GPUs on a node: the stand-in driver of the test kit, built and installed as a stranger's.

gpus = NodeGpus(root)
whole, cut = gpus.add(), gpus.add(mig=2)
gpus.lay()
settings = gpus.settings(install(SOURCE, work))
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from cluster.boards import install
from cluster.machine import lay_nodes, trees

from hardpoint.testing.gpus import FakeGpu, FakeGpus
from hardpoint.testing.sysfs import FakeMachine

SOURCE = Path(__file__).parent / "driver_gpus"
DRIVER = "acme_gpu"
_TERMINALS = 4
"""Major of the virtual terminals, whose nodes everybody may open: so can a container its GPU's."""
_FIRST_UNUSED = 48

__all__ = ["DRIVER", "SOURCE", "NodeGpus", "install"]


class NodeGpus(FakeGpus):
    """GPUs whose nodes are real ones that a process can have open."""

    def __init__(self, root: Path) -> None:
        super().__init__(FakeMachine(root))
        self._minors = count(_FIRST_UNUSED)
        (self.machine.proc / "2").mkdir()
        (self.machine.proc / "2/comm").write_text("kthreadd\n")  # the host's processes are seen

    def add(self, **how: Any) -> FakeGpu:
        """Add a GPU, as ``FakeGpus.add`` does."""
        return super().add(**{"numbers": (_TERMINALS, next(self._minors))} | how)

    def lay(self) -> None:
        """Make the nodes of the GPUs that were added; needs root."""
        lay_nodes(self.machine)

    def settings(self, site: Path) -> dict[str, str]:
        """Return settings by which an agent runs the driver on this machine."""
        found = {"HARDPOINT_DRIVERS": DRIVER, "PYTHONPATH": str(site)}
        return trees(self.machine.root) | found
