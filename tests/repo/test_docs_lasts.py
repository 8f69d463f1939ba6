"""The run of the how-to page is walked, with the outcome that the page states."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tutorial import block

from hardpoint.testing.durable import unsupported

PAGE = "howto/test-what-lasts.md"


@pytest.mark.skipif(bool(unsupported()), reason=unsupported())
@pytest.mark.timeout(90)
def test_the_first_test_of_the_page_passes_and_the_second_names_the_step(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_saves.py").write_text(block(PAGE, "python", "class Saves"))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "test_saves.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "FAILED test_saves.py::test_and_a_power_cut" in done.stdout
    assert "Reboot(lost=True) at 5 end" in done.stdout
