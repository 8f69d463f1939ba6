from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import BadValue
from hardpoint.model import Delivery, DeviceNode

VENDOR = "hardpoint.dev"
ONE = [("u1-x", Delivery(nodes=(DeviceNode(path="/dev/x", major=1, minor=3),)))]
TWO = [("u1-x", Delivery(nodes=(DeviceNode(path="/dev/x", major=1, minor=5),)))]


@pytest.fixture
def files(tmp_path: Path) -> CdiDirectory:
    return CdiDirectory(tmp_path / "run" / "cdi")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.field_case("D01")
def test_the_file_and_its_directory_can_be_read_by_the_runtime(files: CdiDirectory) -> None:
    umask = os.umask(0o077)
    try:
        assert files.write(VENDOR, "u1", ONE)
    finally:
        os.umask(umask)
    path = files.directory / "hardpoint.dev-u1.json"
    assert (mode(path), mode(files.directory)) == (0o644, 0o755)
    assert json.loads(path.read_text())["kind"] == "hardpoint.dev/device"
    assert os.listdir(files.directory) == ["hardpoint.dev-u1.json"]


@pytest.mark.field_case("C10")
def test_the_same_content_is_not_written_again(files: CdiDirectory) -> None:
    files.write(VENDOR, "u1", ONE)
    before = files.file(VENDOR, "u1").stat()
    assert not files.write(VENDOR, "u1", ONE)
    assert files.file(VENDOR, "u1").stat() == before
    assert files.write(VENDOR, "u1", TWO)
    assert files.file(VENDOR, "u1").stat().st_ino != before.st_ino


@pytest.mark.field_case("D01")
def test_a_reader_never_sees_half_a_file(files: CdiDirectory) -> None:
    """kubernetes-sigs/dra-driver-cpu!31: the runtime reads on every event of the directory."""
    files.write(VENDOR, "u1", ONE)
    with files.file(VENDOR, "u1").open() as old:
        files.write(VENDOR, "u1", TWO)
        assert json.load(old)["devices"][0]["containerEdits"]["deviceNodes"][0]["minor"] == 3


@pytest.mark.field_case("C11")
def test_a_longer_file_in_the_way_leaves_no_tail(files: CdiDirectory) -> None:
    files.write(VENDOR, "u1", ONE)
    path = files.file(VENDOR, "u1")
    good = path.read_bytes()
    path.write_bytes(good + b"x" * 5000)
    files.directory.joinpath(".hardpoint.dev-u1.tmp").write_bytes(b"y" * 9000)
    files.write(VENDOR, "u1", ONE)
    assert path.read_bytes() == good
    assert files.leftovers([VENDOR]) == []


def test_a_link_in_the_way_is_replaced_and_not_followed(files: CdiDirectory) -> None:
    files.write(VENDOR, "u0", [("u0-x", Delivery())])
    victim = files.directory / "victim"
    victim.write_text("mine")
    files.file(VENDOR, "u1").symlink_to(victim)
    files.write(VENDOR, "u1", ONE)
    assert victim.read_text() == "mine"
    assert not files.file(VENDOR, "u1").is_symlink()


def test_a_bad_spec_leaves_the_old_file(files: CdiDirectory) -> None:
    files.write(VENDOR, "u1", ONE)
    good = files.file(VENDOR, "u1").read_bytes()
    with pytest.raises(BadValue):
        files.write(VENDOR, "u1", [("u1-x", Delivery(env={"": "x"}))])
    assert files.file(VENDOR, "u1").read_bytes() == good


@pytest.mark.field_case("C10", "D01")
def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    """kubernetes/kubernetes#94305; the size limit makes write(2) fail as a full disk does."""
    script = """
import resource, sys
from pathlib import Path
from hardpoint.cdi_files import CdiDirectory
from hardpoint.model import Delivery
files = CdiDirectory(Path(sys.argv[1]))
files.write("a.dev", "u1", [("u1-x", Delivery(env={"A": "b"}))])
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
try:
    files.write("a.dev", "u1", [("u1-x", Delivery(env={"A": "b" * 4000}))])
except OSError as error:
    print(error.errno)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "27"  # EFBIG
    assert os.listdir(tmp_path) == ["a.dev-u1.json"]
    assert json.loads((tmp_path / "a.dev-u1.json").read_text())


def test_removing_is_done_once_and_asked_twice(files: CdiDirectory) -> None:
    files.write(VENDOR, "u1", ONE)
    assert files.remove(VENDOR, "u1")
    assert not files.remove(VENDOR, "u1")
    assert CdiDirectory(files.directory / "none").remove(VENDOR, "u1") is False


def test_our_files_are_told_from_everybody_elses(files: CdiDirectory) -> None:
    files.write(VENDOR, "u1", ONE)
    files.write("hardpoint.dev-x", "u2", [("u2-x", Delivery())])
    for name, text in {
        "nvidia.json": "{}",
        "hardpoint.dev.json": "{}",
        "hardpoint.dev-u3.yaml": "{}",
        "hardpoint.dev-u4.json.bak": "{}",
    }.items():
        (files.directory / name).write_text(text)
    foreign = json.loads(files.file(VENDOR, "u1").read_text()) | {"kind": "hardpoint.dev/gpu"}
    (files.directory / "hardpoint.dev-gpus.json").write_text(json.dumps(foreign))

    good, bad = files.claims([VENDOR, "hardpoint.dev-x"])
    assert [(file.vendor, file.uid) for file in good] == [
        (VENDOR, "u1"),
        ("hardpoint.dev-x", "u2"),
    ]
    assert bad == []
    assert good[0].devices["x"].nodes[0].part == "char:1:3"


@pytest.mark.parametrize(
    "damage", ["", "\0" * 100, "{", '{"cdiVersion": "0.5.0"}', "[]", "\x80", "nul" * 99, "1" * 5000]
)
def test_a_damaged_file_of_ours_is_named_and_costs_no_other(
    files: CdiDirectory, damage: str
) -> None:
    files.write(VENDOR, "u1", ONE)
    (files.directory / "hardpoint.dev-u0.json").write_bytes(damage.encode("latin-1"))
    good, bad = files.claims([VENDOR])
    assert [file.uid for file in good] == ["u1"]
    assert [file.path.name for file in bad] == ["hardpoint.dev-u0.json"]


@given(cut=st.integers(0, 400), junk=st.binary(max_size=12), at=st.integers(0, 400))
def test_a_torn_or_garbled_file_is_never_taken_for_a_hold_it_does_not_say(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes, at: int
) -> None:
    files = CdiDirectory(tmp_path_factory.mktemp("cdi"))
    files.write(VENDOR, "u1", ONE)
    path = files.file(VENDOR, "u1")
    whole = path.read_bytes()
    torn = whole[:cut][:at] + junk + whole[:cut][at:]
    path.write_bytes(torn)
    good, bad = files.claims([VENDOR])
    assert len(good) + len(bad) <= 1
    for file in good:
        assert json.loads(torn)["devices"]
        assert all(file.devices)


def test_a_directory_where_a_file_should_be_is_bad_and_not_fatal(files: CdiDirectory) -> None:
    files.write(VENDOR, "u1", ONE)
    (files.directory / "hardpoint.dev-u2.json").mkdir()
    os.mkfifo(files.directory / "hardpoint.dev-u3.json")
    good, bad = files.claims([VENDOR])
    assert [file.uid for file in good] == ["u1"]
    assert [file.path.name for file in bad] == [
        "hardpoint.dev-u2.json",
        "hardpoint.dev-u3.json",
    ]


@pytest.mark.parametrize("uid", ["", "../x", "a/b", ".hidden", "x" * 200, "a\0b"])
def test_a_uid_that_is_no_file_name_is_refused(files: CdiDirectory, uid: str) -> None:
    with pytest.raises(BadValue):
        files.write(VENDOR, uid, ONE)


def test_leftovers_of_a_crash_are_found_by_their_claim(files: CdiDirectory) -> None:
    files.write(VENDOR, "u1", ONE)
    for name in (".hardpoint.dev-u1.tmp", ".other-u1.tmp", "hardpoint.dev-u1.tmp"):
        (files.directory / name).write_text("")
    assert files.leftovers([VENDOR]) == [(VENDOR, "u1")]
    files.remove_leftover(VENDOR, "u1")
    files.remove_leftover(VENDOR, "u1")
    assert files.leftovers([VENDOR]) == []
