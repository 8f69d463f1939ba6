from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(180)
def test_an_agent_killed_at_any_step_loses_no_device_and_hands_none_out_twice(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "kill_everywhere.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    *problems, rounds = done.stdout.splitlines()
    assert problems == []
    assert int(rounds) > 40
