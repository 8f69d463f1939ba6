"""Words for the interface classes of USB, a closed list that usb.org defines."""

from __future__ import annotations

HUB = "09"
MASS_STORAGE = "08"

_WORDS = {
    "01": "audio",
    "02": "communications",
    "03": "hid",
    "06": "imaging",
    "07": "printer",
    "08": "mass-storage",
    "0a": "cdc-data",
    "0b": "smart-card",
    "0e": "video",
    "10": "audio-video",
    "e0": "wireless",
    "ff": "vendor-specific",
}


def class_word(code: str) -> str:
    """Return the word for two hexadecimal digits of ``bInterfaceClass``; ``""`` for the rest.

    Classes without a word (``05``, ``fe`` …) are told apart by the published code.
    """
    return _WORDS.get(code.lower(), "")
