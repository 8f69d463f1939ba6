"""A drain that was asked for is asked for after a kill and a power cut, and no other is."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardpoint.policies.drain.request import read, remove, write
from hardpoint.testing.durable import DurableRun, Fault, Kill, Reboot, heard, told, walk

FAULTS = pytest.mark.parametrize("fault", [Kill(), Reboot()], ids=["kill", "power cut"])


class Asks(DurableRun):
    """What `hardpoint drain` does on a node where no agent has ever run."""

    watch = ("state",)

    def begin(self, root: Path) -> None:
        pass

    def work(self, root: Path) -> None:
        asked = write(root / "state/drain", by="root", why="it moves")
        told(root, asked.id)

    def look(self, root: Path) -> None:
        said = [id_ for (id_,) in heard(root)]
        try:
            found = read(root / "state/drain")
        except FileNotFoundError:
            found = None
        if said:
            assert found is not None
            assert found.id == said[0]
        elif found is not None:
            assert (found.by, found.why) == ("root", "it moves")  # whole, or not there
        again = write(root / "state/drain", by="root", why="again")
        assert read(root / "state/drain") == again


class TakesBack(DurableRun):
    """What `hardpoint drain --undo` does."""

    watch = ("state",)

    def begin(self, root: Path) -> None:
        write(root / "state/drain", by="root", why="it moves")

    def work(self, root: Path) -> None:
        told(root, str(remove(root / "state/drain")))

    def look(self, root: Path) -> None:
        found = read(root / "state/drain")
        assert not (found and heard(root))
        assert found is None or found.why == "it moves"


@FAULTS
def test_what_was_asked_for_is_asked_for_still(tmp_path: Path, fault: Fault) -> None:
    assert not walk(Asks, tmp_path, fault).problems


@FAULTS
def test_what_was_taken_back_stays_so(tmp_path: Path, fault: Fault) -> None:
    assert not walk(TakesBack, tmp_path, fault).problems
