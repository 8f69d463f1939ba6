"""`hardpoint demo`: the whole road on one machine, told to a newcomer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import MEMORY, Shell

from hardpoint.testing.sysfs import FakeMachine

DATA = Path(__file__).parent.parent / "data/machines"


@pytest.fixture
def gpu(shell: Shell) -> Shell:
    card = shell.machine.pci(
        "0000:00:02.0", vendor="8086", device="46d2", klass="030000", driver="i915"
    )
    card.drm(card=0, render=128).i2c(4)
    return shell


def test_the_demo_walks_one_claim_through_and_back(gpu: Shell) -> None:
    answer = gpu("demo", "--sysfs", gpu.tree)

    assert (answer.code, answer.err) == (0, "")
    steps = [line[:2] for line in answer.out.splitlines() if line[1:3] == ". "]
    assert steps == ["1.", "2.", "3.", "4."]
    assert "ResourceSlice demo-hardpoint.dev: 3 devices" in answer.out
    assert "2. A pod asks for pci-0000-00-02-0\n" in answer.out
    assert "A container of the pod finds /dev/dri/renderD128, and nothing else" in answer.out
    assert "CDI files left: 0. Holds left: 0." in answer.out


def test_the_demo_walks_a_pod_without_dra_through_and_back(gpu: Shell) -> None:
    answer = gpu("demo", "--frontend", "deviceplugin", "--sysfs", gpu.tree)

    assert (answer.code, answer.err) == (0, "")
    steps = [line[:2] for line in answer.out.splitlines() if line[1:3] == ". "]
    assert steps == ["1.", "2.", "3.", "4.", "5."]
    assert "hardpoint.dev/drm.render   1         1            pci-0000-00-02-0\n" in answer.out
    assert "2. A pod asks for one hardpoint.dev/drm.render\n" in answer.out
    assert "It chose pci-0000-00-02-0. The agent held it" in answer.out
    assert "The container finds /dev/dri/renderD128, and nothing else" in answer.out
    assert "registered hardpoint.dev/drm.render again" in answer.out
    assert "CDI files left: 0. Holds left: 0." in answer.out


def test_the_demo_shows_the_file_that_a_runtime_would_read(gpu: Shell) -> None:
    lines = gpu("demo", "--sysfs", gpu.tree).out.splitlines()

    start, end = lines.index("    {"), lines.index("    }")
    shown = json.loads("\n".join(lines[start : end + 1]))
    assert shown["kind"] == "hardpoint.dev/device"


def test_the_demo_leaves_nothing_behind(gpu: Shell) -> None:
    scratch = gpu.root / "scratch"
    scratch.mkdir()
    before = set(gpu.root.iterdir())

    assert gpu("demo", "--sysfs", gpu.tree, TMPDIR=str(scratch)).code == 0

    assert list(scratch.iterdir()) == []
    assert set(gpu.root.iterdir()) == before
    assert gpu("holds").out == "No claim holds a device.\n"


def test_the_demo_uses_the_domain_of_the_settings(gpu: Shell) -> None:
    answer = gpu("demo", "--sysfs", gpu.tree, HARDPOINT_DOMAIN="liken.sh")

    assert answer.code == 0
    assert "ResourceSlice demo-liken.sh: 3 devices" in answer.out


def test_a_recorded_machine_walks_the_road(shell: Shell) -> None:
    answer = shell("demo", "--sysfs", str(DATA / "graphics.tar.gz"), TMPDIR=MEMORY)

    assert answer.code == 0
    assert "CDI files left: 0. Holds left: 0." in answer.out


def _nothing_here(shell: Shell) -> dict[str, str]:
    empty = FakeMachine(shell.root / "empty")
    return {f"HARDPOINT_PATHS__{word.upper()}": str(empty.root / word) for word in ("sys", "dev")}


def test_where_nothing_is_to_be_offered_a_recorded_machine_stands_in(gpu: Shell) -> None:
    answer = gpu("demo", "--fallback", gpu.tree, **_nothing_here(gpu))

    assert answer.code == 0
    assert answer.out.startswith("This machine has nothing to offer (hardpoint devices --why")
    assert "CDI files left: 0. Holds left: 0." in answer.out


def test_where_nothing_is_to_be_offered_and_nothing_stands_in_it_says_so(gpu: Shell) -> None:
    answer = gpu("demo", **_nothing_here(gpu))

    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("hardpoint: this machine has nothing to offer")


def test_an_empty_tree_is_said_to_offer_nothing(shell: Shell) -> None:
    answer = shell("demo", "--sysfs", shell.tree)

    assert answer.code == 1
    assert answer.err.startswith("hardpoint: the recorded machine")
    assert "has nothing to offer" in answer.err


def test_the_demo_of_pods_goes_by_the_resources_that_the_settings_make(gpu: Shell) -> None:
    """Some devices are of no resource then, and an id need not be a device's name."""
    gpu.config.write_text(
        """
frontends = ["deviceplugin"]
[frontend.deviceplugin]
kinds = []
[[frontend.deviceplugin.resources]]
name = "example.com/render"
selector = 'has(device.attributes["hardpoint.dev"].renderNode)'
replicas = 2
"""
    )

    told = gpu("demo", "--frontend", "deviceplugin", "--sysfs", gpu.tree).out

    assert "2. A pod asks for one example.com/render" in told
    assert "It chose pci-0000-00-02-0::" in told
    assert "Holds left: 0." in told


def test_the_story_of_a_release_reports_nothing_free_before_the_pod_is_gone(shell: Shell) -> None:
    done = shell("demo", "--scenario", "release")

    assert done.code == 0, done.err
    told = [line.split(maxsplit=2)[2] for line in done.out.splitlines() if " s  " in line[:12]]
    order = [
        next(i for i, line in enumerate(told) if words in line)
        for words in (
            "its hold file is gone",
            "does not start its container again",
            "must not have any more",
            "have ended",
            "nobody uses",
            "'released': True",
        )
    ]
    assert order == sorted(order)


@pytest.mark.parametrize("option", [("--sysfs", "any.tar.gz"), ("--frontend", "dra")])
def test_the_story_of_a_release_ignores_no_option(shell: Shell, option: tuple[str, str]) -> None:
    done = shell("demo", "--scenario", "release", *option)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("hardpoint: the scenario release ")
