"""What real API servers answered, written down: ``answers/1.37.json`` and so on.

``PYTHONPATH=tests python -m conformance 1.37`` asks a real one and writes the file anew; what has
changed is to be read before it is committed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "answers"
NEWEST = "1.37"


class Written:
    """The answers of each release, by the name of the case; a file is read once."""

    def __init__(self) -> None:
        self._read: dict[str, dict[str, Any]] = {}

    def of(self, version: str) -> dict[str, Any]:
        if version not in self._read:
            self._read[version] = json.loads((HERE / f"{version}.json").read_text())
        return self._read[version]


def versions() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.json"))


def write(version: str, answers: dict[str, Any]) -> None:
    text = json.dumps(answers, indent=1, ensure_ascii=False, sort_keys=True)
    (HERE / f"{version}.json").write_text(text + "\n")


def comparable(answer: Any, version: str) -> Any:
    """Return what is compared: of releases before the newest not the words of a refusal.

    The fake has one release's words; codes, reasons and fields are those of each. (Some of them say
    twice what is wrong with metadata.)
    """
    if version == NEWEST:
        return answer
    if isinstance(answer, list):
        items = [comparable(item, version) for item in answer]
        return [item for index, item in enumerate(items) if item not in items[:index]]
    if isinstance(answer, dict):
        wordless = {"message"} if answer.get("reason") else set()
        return {k: comparable(v, version) for k, v in answer.items() if k not in wordless}
    return answer
