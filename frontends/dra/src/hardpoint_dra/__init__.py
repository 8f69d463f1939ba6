"""Dynamic resource allocation for Hardpoint. ``Dra`` is the plugin's class."""

from __future__ import annotations

from hardpoint_dra.frontend import Dra

__all__ = ["Dra"]
