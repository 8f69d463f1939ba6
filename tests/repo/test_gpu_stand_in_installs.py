"""Acme's GPU driver of the cluster tests, built and installed, is a driver like any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.gpus import DRIVER, SOURCE, install

from hardpoint.testing.gpus import FakeGpus
from hardpoint.testing.sysfs import FakeMachine


@pytest.mark.timeout(120)
def test_the_stand_in_for_gpus_is_installed_like_any_third_partys(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path / "machine")
    gpus = FakeGpus(machine)
    whole, cut = gpus.add(), gpus.add(mig=2)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HARDPOINT_")}
    chosen = {"HARDPOINT_CONFIG": os.devnull, "HARDPOINT_DRIVERS": DRIVER}

    done = subprocess.run(
        [sys.executable, "-m", "hardpoint.cli", "devices", "--json", "--sysfs", machine.root],
        env=kept | chosen | {"PYTHONPATH": str(install(SOURCE, tmp_path))},
        capture_output=True,
        text=True,
        check=True,
    )

    found = {one["name"]: one["driver"] for one in json.loads(done.stdout)["devices"]}
    assert found == dict.fromkeys([whole.name, *cut.parts], DRIVER)
