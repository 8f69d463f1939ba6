"""USB devices for Hardpoint. ``Usb`` is the plugin's class.

It is imported when it is asked for, so that the ``hardpoint-serio`` program, which lives in this
package too, runs on the standard library alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardpoint_usb.driver import Usb

__all__ = ["Usb"]


def __getattr__(name: str) -> Any:
    """Import the driver on first use."""
    if name == "Usb":
        from hardpoint_usb.driver import Usb

        return Usb
    raise AttributeError(name)
