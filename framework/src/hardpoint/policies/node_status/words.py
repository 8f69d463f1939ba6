"""What a label or a taint may be called, and what its value may be."""

from __future__ import annotations

import re

from hardpoint.attributes import is_subdomain

LONGEST = 63
"""Characters of a label's value, and of the name in its key (``LabelValueMaxLength``)."""

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_ODD = re.compile(r"[^-A-Za-z0-9_.]+")
_ENDS = "-_."


def is_key(key: str) -> bool:
    """Say whether a label may be called so: ``pool``, ``example.com/pool``."""
    domain, slash, name = key.rpartition("/")
    named = len(name) <= LONGEST and _NAME.fullmatch(name) is not None
    return named and (not slash or is_subdomain(domain))


def is_value(value: str) -> bool:
    """Say whether a label may have this value."""
    return not value or (len(value) <= LONGEST and _NAME.fullmatch(value) is not None)


def fitting(value: str) -> str:
    """Return a label's value for any text: ``NVIDIA H100 80GB`` is ``NVIDIA-H100-80GB``.

    What the API would refuse becomes a dash, and what is too long is cut; nothing may be left.
    """
    return _ODD.sub("-", value).strip(_ENDS)[:LONGEST].rstrip(_ENDS)
