"""Names as the Kubernetes API writes them, for fakes that refuse what it refuses."""

from __future__ import annotations

import re

_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


def is_dns_subdomain(name: str) -> bool:
    """Say whether a name is a DNS subdomain (RFC 1123) of at most 253 characters."""
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None
