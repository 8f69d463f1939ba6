"""``python -m cluster.can``: says why no real node can be had here, and ends with 1 then.

For CI, which runs its tests wherever they can run.
"""

from __future__ import annotations

import shutil
import sys

from cluster.node import CannotRun, check_machine
from cluster.programs import at_hand, release


def why_not() -> str:
    """Return what is missing; empty where a cluster comes up, if need be after a build."""
    try:
        check_machine()
    except CannotRun as error:
        return str(error)
    version = release().version
    if not at_hand(version) and shutil.which("go") is None:
        return f"no programs of Kubernetes {version} are at hand, and no Go to build them with"
    return ""


if __name__ == "__main__":
    sys.exit(why_not() or 0)
