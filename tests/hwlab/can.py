"""``python -m hwlab.can``: says why no machine can be booted here, and ends with 1 then. For CI."""

from __future__ import annotations

import sys

from hwlab.lab import NoLab, find


def why_not() -> str:
    """Return what is missing; empty where a machine can be booted."""
    try:
        find()
    except NoLab as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(why_not() or 0)
