"""Devices given to Kubernetes and taken back by hand: `hardpoint grant`, `hardpoint revoke`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
from shell import Answer, Shell

from hardpoint import Device, Grant, GrantOutcome, Outcome, Release
from hardpoint._core.ledger.grantrows import (
    KnownGrant,
    KnownRelease,
    Meant,
    forget_grant,
    keep_grant,
    keep_release,
)
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.state import mark_running
from hardpoint.cdi_rules import check
from hardpoint.policies.cdi_grants.reports import Reports
from hardpoint.testing.gpus import FakeGpu, FakeGpus

SETTINGS = """
drivers = ["acme_gpu"]
policies = ["cdi_grants"]

[policy.cdi_grants]
directory = "{directory}"
vendor = "bcd.dev"
"""


class Node:
    """A node with a whole GPU, one in two partitions, and one in two slots."""

    def __init__(self, shell: Shell) -> None:
        self.shell, self.directory = shell, shell.root / "etc-cdi"
        self.directory.mkdir()
        info = shell.root / "packages/acme_gpu-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme_gpu\nVersion: 1.0\n")
        driver = "acme_gpu = hardpoint.testing.gpus:GpuStandIn"
        (info / "entry_points.txt").write_text(f"[hardpoint.drivers]\n{driver}\n")
        shell.config.write_text(SETTINGS.format(directory=self.directory))
        gpus = FakeGpus(shell.machine)
        self.whole, self.mig, self.slots = gpus.add(), gpus.add(mig=2), gpus.add(slots=2)

    def grant(self, *words: str) -> Answer:
        return self.shell("grant", "--sysfs", self.shell.tree, *words)

    def revoke(self, *words: str) -> Answer:
        return self.shell("revoke", *words)

    def file(self, allocation: str) -> Path:
        return self.directory / f"bcd-{allocation}.json"

    def spec(self, allocation: str) -> Any:
        return json.loads(self.file(allocation).read_text())

    @contextmanager
    def agent(self) -> Iterator[None]:
        running = mark_running(self.shell.state)
        try:
            yield
        finally:
            os.close(running)


@pytest.fixture
def node(shell: Shell) -> Node:
    shell.state.mkdir(mode=0o700)
    return Node(shell)


def part(gpu: FakeGpu, index: int = 0) -> str:
    return gpu.parts[index]


def test_a_device_is_granted_by_a_file_that_is_a_whole_cdi_spec(node: Node) -> None:
    with node.agent():
        answer = node.grant("training", node.whole.name)

    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"{node.file('training')} grants {node.whole.name}.\n"
    document = node.spec("training")
    check(document)
    assert document["kind"] == "bcd.dev/gpu"
    assert document["annotations"] == {"bcd.dev/binding": "kubernetes"}
    (entry,) = document["devices"]
    assert entry["annotations"] == {"bcd.dev/uuid": node.whole.uuid}
    (path,) = entry["containerEdits"]["deviceNodes"]
    assert (path["path"], path["major"], path["minor"]) == ("/dev/acme/gpu0", 247, 0)
    assert "env" not in entry["containerEdits"]
    assert node.file("training").stat().st_mode & 0o777 == 0o644


def test_a_device_may_be_named_by_its_uuid_and_the_answer_be_json(node: Node) -> None:
    answer = node.grant("a", part(node.mig), "--uuid", node.whole.uuid, "--json")

    assert answer.json == {
        "allocation": "a",
        "file": str(node.file("a")),
        "devices": [part(node.mig), node.whole.name],
    }


def test_a_slot_does_not_state_the_uuid_of_its_gpu(node: Node) -> None:
    """It would mean the whole GPU once that is no longer in slots."""
    node.grant("a", part(node.slots))

    assert "annotations" not in node.spec("a")["devices"][0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "name a device, or give --uuid; of the kinds gpu, gpu.* there are: gpu-"),
        (["a", "gpu-9"], "this node has no device gpu-9; of the kinds gpu, gpu.* there are: gpu-"),
        (["a", "--uuid", "GPU-9"], "this node has no device GPU-9"),
        (["a/b", "WHOLE"], "'a/b' is no allocation id"),
        (["../x", "WHOLE"], "is no allocation id"),
        (["a", "WHOLE", "WHOLE"], "WHOLE is wanted too"),
        (["a", "WHOLE", "--uuid", "UUID"], "WHOLE is wanted too"),
        (["taken", "WHOLE"], "is there already; revoke taken first"),
        (["b", "MIG"], "MIG is granted under allocation taken"),
    ],
)
def test_what_cannot_be_granted_is_said_and_nothing_is_written(
    node: Node, words: list[str], said: str
) -> None:
    node.grant("taken", part(node.mig))
    before = {path.name: path.read_bytes() for path in node.directory.iterdir()}

    def known(text: str) -> str:
        text = text.replace("WHOLE", node.whole.name).replace("UUID", node.whole.uuid)
        return text.replace("MIG", part(node.mig))

    answer = node.grant(*(known(word) for word in words))

    assert answer.code == 1
    assert known(said) in answer.err
    assert len(answer.err.splitlines()) == 1
    assert {path.name: path.read_bytes() for path in node.directory.iterdir()} == before


def test_a_whole_gpu_is_not_granted_beside_a_part_of_it(shell: Shell) -> None:
    shell.state.mkdir(mode=0o700)
    node = Node(shell)
    both = FakeGpus(shell.machine)
    both.all = [node.whole, node.mig, node.slots]
    gpu = both.add(mig=1, whole=True)
    node.grant("a", part(gpu))

    answer = node.grant("b", gpu.name)

    assert f"{gpu.name} is one with device {part(gpu)}, which is granted under" in answer.err


def test_a_device_of_another_kind_needs_no_grant(node: Node) -> None:
    node.shell.config.write_text(
        SETTINGS.format(directory=node.directory) + 'kinds = ["gpu.mig"]\n'
    )

    assert (
        f"{node.whole.name} is a gpu, which needs no grant" in node.grant("a", node.whole.name).err
    )


def test_without_the_directory_nothing_is_made(node: Node) -> None:
    node.directory.rmdir()

    answer = node.grant("a", node.whole.name)

    assert answer.code == 1
    assert f"{node.directory} cannot be read" in answer.err
    assert not node.directory.exists()


def test_a_policy_that_does_not_run_is_pointed_out(node: Node) -> None:
    text = node.shell.config.read_text().replace('policies = ["cdi_grants"]', "")
    node.shell.config.write_text(text)

    answer = node.grant("a", node.whole.name)

    assert answer.code == 0
    assert 'policies = ["cdi_grants"]' in answer.err


def test_settings_of_the_policy_that_are_wrong_are_named(node: Node) -> None:
    node.shell.config.write_text(node.shell.config.read_text() + 'vendr = "x"\n')

    for answer in (node.grant("a", node.whole.name), node.revoke("a")):
        assert answer.code == 1
        assert "policy.cdi_grants.vendr" in answer.err


def test_a_runtime_that_reads_no_annotations_cannot_read_a_hold(node: Node) -> None:
    node.shell.config.write_text('cdi_version = "0.5.0"\n' + node.shell.config.read_text())

    answer = node.grant("a", node.whole.name)

    assert "a hold needs CDI 0.6.0, and cdi_version is 0.5.0" in answer.err
    assert list(node.directory.iterdir()) == []


def test_a_file_that_cannot_be_read_is_pointed_out_and_left(node: Node) -> None:
    node.file("bad").write_text("{")

    answer = node.grant("a", node.whole.name)

    assert answer.code == 0
    assert "bcd-bad.json" in answer.err
    assert node.file("bad").read_text() == "{"


def test_what_was_granted_is_revoked(node: Node) -> None:
    node.grant("a", node.whole.name)
    node.grant("b", part(node.mig))

    plain, as_json = node.revoke("a"), node.revoke("b", "--json")

    assert plain.out == f"{node.file('a')} is removed.\n"
    assert as_json.json == {"allocation": "b", "file": str(node.file("b"))}
    assert list(node.directory.iterdir()) == []


def test_while_no_agent_runs_it_is_said_when_it_takes_effect(node: Node) -> None:
    note = f"hardpoint: note: no agent runs with {node.shell.state}; "

    assert node.grant("a", node.whole.name).err == f"{note}they are offered once one does\n"
    assert node.revoke("a").err == f"{note}it is released once one does\n"
    with node.agent():
        assert node.grant("a", node.whole.name).err == ""
        assert node.revoke("a").err == ""


def test_only_what_grants_is_revoked(node: Node) -> None:
    node.grant("a", node.whole.name)
    others = {
        "bcd-vm.json": json.dumps(node.spec("a") | {"annotations": {"bcd.dev/binding": "vm"}}),
        "bcd-bad.json": "{",
        "nvidia.json": "{}",
    }
    for name, text in others.items():
        (node.directory / name).write_text(text)

    said = {word: node.revoke(word) for word in ("vm", "bad", "none", "../nvidia")}

    assert {answer.code for answer in said.values()} == {1}
    assert "grants allocation vm; granted are: a" in said["vm"].err
    assert "look at it and remove it yourself" in said["bad"].err
    assert "is no allocation id" in said["../nvidia"].err
    assert {path.name for path in node.directory.iterdir()} == {*others, "bcd-a.json"}


def test_revoke_waits_until_the_release_is_reported(node: Node) -> None:
    reports, grant = Reports(node.shell.state / "grants"), Grant(allocation="a")
    release = Release(id="r", allocation="a", source="", devices=(), since=1.0)
    reports.tell_release(grant, release)  # of another time
    reports.tell_grant(grant, GrantOutcome(Outcome.IN_FORCE))
    node.grant("a", node.whole.name)
    with node.agent():
        process = subprocess.Popen(
            node.shell.words("revoke", "a", "--wait"),
            env=node.shell.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        assert process.stdout.readline() == f"{node.file('a')} is removed.\n"
        assert process.poll() is None
        reports.tell_release(grant, release)
        out, err = process.communicate(timeout=15)

    assert (process.returncode, err) == (0, "")
    assert out == "Nobody can be using it any more.\n"


def test_a_release_that_is_not_over_ends_the_waiting_in_time(node: Node) -> None:
    node.grant("a", node.whole.name)

    answer = node.revoke("a", "--wait", "--timeout", "0")

    assert answer.code == 1
    assert "no agent runs" in answer.err
    assert "was not released within 0 s" in answer.err


def test_of_a_grant_that_was_refused_nobody_waits_for_the_end(node: Node) -> None:
    node.grant("a", node.whole.name)
    outcome = GrantOutcome(Outcome.OVERLAP, "gpu-0 is granted to b")
    Reports(node.shell.state / "grants").tell_grant(Grant(allocation="a"), outcome)
    with node.agent():
        answer = node.revoke("a", "--wait")

    assert answer.code == 0
    assert "never in force: gpu-0 is granted to b" in answer.out


OVERLAP = GrantOutcome(Outcome.OVERLAP, "gpu-1 is granted to b")
SOURCE = "policy/cdi_grants"
HAD = Meant("hardpoint.dev", Device(name="gpu-0", kind="gpu"))


def written_down(node: Node, *devices: Meant) -> None:
    """Have it in the ledger as the agent writes a grant that is refused."""
    grant = Grant(allocation="a", source=SOURCE)
    ledger = Ledger(node.shell.state)
    known = KnownGrant(grant=grant, devices=devices, outcome=OVERLAP)
    anyio.run(ledger.write, lambda db: keep_grant(db, known))
    ledger.close()
    Reports(node.shell.state / "grants").tell_grant(grant, OVERLAP)
    node.grant("a", node.whole.name)


def forgotten(node: Node) -> None:
    ledger = Ledger(node.shell.state)
    anyio.run(ledger.write, lambda db: forget_grant(db, (SOURCE, "a")))
    ledger.close()


@pytest.mark.parametrize("runs", [True, False])
def test_a_grant_that_is_refused_and_keeps_what_it_had_is_waited_for(
    node: Node, runs: bool
) -> None:
    """Its file was changed to name a device too many: what pods have of it they have still."""
    written_down(node, HAD)
    with node.agent() if runs else nullcontext():
        answer = node.revoke("a", "--wait", "--timeout", "0")

    assert answer.code == 1
    assert "never in force" not in answer.out
    assert "was not released within 0 s" in answer.err


def test_a_release_of_a_refused_grant_is_waited_for(node: Node) -> None:
    written_down(node)
    forgotten(node)
    grant = Grant(allocation="a", source=SOURCE)
    ended = KnownRelease(id="r", grant=grant, devices=(HAD,), since=1.0)
    ledger = Ledger(node.shell.state)
    anyio.run(ledger.write, lambda db: keep_release(db, ended))
    ledger.close()

    assert node.revoke("a", "--wait", "--timeout", "0").code == 1


def test_what_an_agent_may_yet_put_in_force_is_not_called_free(node: Node) -> None:
    """It read the file before it went: it knows that it went when it has forgotten the grant."""
    written_down(node)
    with node.agent():
        early = node.revoke("a", "--wait", "--timeout", "0")
        forgotten(node)
        node.grant("a", node.whole.name)
        late = node.revoke("a", "--wait", "--timeout", "0")

    assert early.code == 1
    assert (late.code, late.out.splitlines()[-1]) == (
        0,
        "It was never in force: gpu-1 is granted to b",
    )
