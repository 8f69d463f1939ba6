"""The batch system's policy of the how-to page, installed as a third party's package, does as said.

The agent that runs it is ``hardpoint run``, with the GPU driver of the cluster tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cluster.gpus import DRIVER, SOURCE, install
from e2e_node import EndToEnd, end_to_end
from tutorial import Tutorial, block

from hardpoint.grants import is_name_of
from hardpoint.model import Verdict
from hardpoint.testing._policy_node import PolicyNode, policy_node
from hardpoint.testing.gpus import FakeGpus

PAGE = "howto/write-a-policy.md"
MODULE = "acme_hardpoint_batch"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Tutorial:
    site = Tutorial(PAGE, MODULE, tmp_path_factory.mktemp("acme"), about="class Batch:")
    site.add_contract()
    return site


@pytest.fixture(scope="module")
def batch(site: Tutorial) -> ModuleType:
    at = site.folder / f"src/{MODULE}/__init__.py"
    spec = importlib.util.spec_from_file_location(MODULE, at)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(180)
def test_the_pages_grant_source_keeps_the_contract(site: Tutorial) -> None:
    answer = site.run("pytest", "-v", "-p", "no:randomly", "-p", "no:cacheprovider", "tests")

    assert answer.returncode == 0, answer.stdout
    for test in (
        "grants_that_cannot_be_read_are_not_fewer_grants",
        "a_report_that_does_not_arrive_is_said",
        "it_hints_when_what_it_reads_has_changed",
        "a_pod_is_spared_in_words",
    ):
        assert re.search(rf"{test} PASSED", answer.stdout), test


@pytest.mark.timeout(120)
def test_the_settings_of_the_page_turn_the_grant_source_on(site: Tutorial, tmp_path: Path) -> None:
    config = tmp_path / "hardpoint.toml"
    config.write_text(block(PAGE, "toml", "[policy.batch]"))

    answer = site.run("hardpoint.cli", "plugins", HARDPOINT_CONFIG=str(config))

    for name in ("batch", "kubepods_processes", "pod_reaper", "pod_resources", "prepared_claims"):
        assert re.search(rf"policy +{name} +running", answer.stdout), answer.stdout


# -- whom it keeps --------------------------------------------------------------------------------


@pytest.fixture
async def node(batch: ModuleType) -> AsyncIterator[PolicyNode]:
    async with policy_node(batch.Batch, lambda root: {"directory": str(root)}) as node:
        yield node


async def _verdict(node: PolicyNode, name: str, labels: dict[str, str]) -> Verdict | None:
    async def still_holds() -> bool:
        return True

    pod = node.holding(node.add_pod(name, metadata={"labels": labels}), still_holds)
    found: Verdict | None = await node.policy().ask("admit_reap", pod=pod, release=node.release())
    return found


def _in(**time: float) -> str:
    return (datetime.now(UTC) + timedelta(**time)).strftime("%Y%m%dT%H%MZ")


async def test_a_pod_is_kept_until_the_time_of_its_label_and_no_longer(
    node: PolicyNode, batch: ModuleType
) -> None:
    later = _in(days=2)

    assert await _verdict(node, "later", {batch.KEEP: later}) == Verdict.deny(
        f"its label keeps it until {later}"
    )
    assert await _verdict(node, "past", {batch.KEEP: _in(minutes=-2)}) is None
    assert await _verdict(node, "never", {batch.KEEP: "forever"}) is None
    assert await _verdict(node, "none", {}) is None


async def test_no_label_keeps_a_pod_longer_than_the_admin_lets_it(
    node: PolicyNode, batch: ModuleType
) -> None:
    async def still_holds() -> bool:
        return True

    pod = node.add_pod("greedy", metadata={"labels": {batch.KEEP: _in(days=300)}})
    asked = {"pod": node.holding(pod, still_holds), "release": node.release()}

    assert await node.policy(keep_at_most_s=60).ask("admit_reap", **asked) is None
    assert await node.policy(keep_at_most_s=6000).ask("admit_reap", **asked)


async def test_a_pod_that_cannot_be_read_is_kept(node: PolicyNode) -> None:
    pod = node.add_pod("train")

    async def still_holds() -> bool:
        return True

    node.server.down = True
    with pytest.raises(Exception, match="admit_reap"):
        await node.policy().ask(
            "admit_reap", pod=node.holding(pod, still_holds), release=node.release()
        )


# -- the whole agent ------------------------------------------------------------------------------


@contextmanager
def _agent(node: EndToEnd, site: Tutorial, gpus: Path) -> Iterator[None]:
    """Run the agent on the machine of files, with both third parties' packages."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HARDPOINT_")}
    own = {
        "HARDPOINT_DRIVERS": DRIVER,
        "HARDPOINT_POLICIES": "batch,prepared_claims",
        "HARDPOINT_POLICY__BATCH__DIRECTORY": str(node.root / "batch"),
        "PYTHONPATH": f"{site.folder / 'site'}{os.pathsep}{gpus}",
    }
    command = [sys.executable, "-m", "hardpoint.cli", "run", "--sysfs", str(node.root / "machine")]
    with (node.root / "log").open("wb") as log:
        process = subprocess.Popen(command, env=kept | node.environment | own, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@pytest.mark.timeout(120)
async def test_a_job_has_its_gpus_while_the_file_names_it_and_is_told_when_they_are_free(
    site: Tutorial, tmp_path: Path, short_path: Path
) -> None:
    async with end_to_end(short_path) as node:
        gpus = FakeGpus(node.machine)
        mine, other = gpus.add(), gpus.add()
        jobs, said = node.root / "batch/jobs.json", node.root / "batch/job-17.said"
        jobs.parent.mkdir()
        _write(jobs, {"job-17": [mine.uuid]})

        def offered(*names: str) -> bool:
            found = list(node.published)
            return len(found) == len(names) and all(map(is_name_of, sorted(found), sorted(names)))

        with _agent(node, site, install(SOURCE, tmp_path)):
            await node.server.until(lambda: offered(mine.name), 30)
            await node.eventually(lambda: said.exists() and said.read_text() == "in-force\n")

            _write(jobs, {"job-17": [mine.name], "job-18": ["gpu-9", other.name]})
            refused = node.root / "batch/job-18.said"
            await _within(node, lambda: refused.exists())
            assert refused.read_text().startswith("unknown-device ")
            assert offered(mine.name)

            _write(jobs, {})
            await node.server.until(lambda: offered(), 30)
            await _within(node, lambda: said.read_text() == "over\n")


async def _within(node: EndToEnd, true: Any, seconds: float = 60) -> None:
    """Wait for what takes the agent's own time: a grant that is gone is looked at twice."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, (node.root / "log").read_text()[-3000:]
        try:
            await node.eventually(true)
        except TimeoutError:
            continue


def _write(jobs: Path, what: dict[str, list[str]]) -> None:
    new = jobs.with_suffix(".new")
    new.write_text(json.dumps(what))
    new.rename(jobs)
