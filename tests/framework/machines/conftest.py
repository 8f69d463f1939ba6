from __future__ import annotations

from recorded_machines import recorded

__all__ = ["recorded"]
