"""Hold files of every kind, and what each grants."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hold_files import Ground, node_entry, spec

from hardpoint import DeviceNode, Grant, NodeType, Release
from hardpoint._core.grants import granting
from hardpoint.errors import TryAgain
from hardpoint.policies.cdi_grants import NAME, CdiGrantsSettings, holds
from hardpoint.policies.cdi_grants.documents import LARGEST, LONGEST, MOST_DEVICES
from hardpoint.policies.cdi_grants.holds import MOST_FILES, Unreadable, distrusted


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


# -- what is granted ------------------------------------------------------------------------------


async def test_a_hold_of_bcd_grants_its_devices_by_its_own_cdi_names(ground: Ground) -> None:
    common = {"deviceNodes": [node_entry(255, path="/dev/nvidiactl")]}
    ground.hold("alloc_01k", spec("gpu-0", "gpu-1", containerEdits=common))

    grant = (await ground.grants())["alloc_01k"]

    assert [one.name for one in grant.devices] == ["gpu-0", "gpu-1"]
    assert grant.devices[1].cdi_id == "bcd.dev/gpu=gpu-1"
    assert [(node.path, node.minor) for node in grant.devices[1].nodes] == [
        ("/dev/nvidia1", 1),
        ("/dev/nvidiactl", 255),
    ]
    assert not grant.unsupported
    assert ground.source.kinds == ("gpu", "gpu.*")
    assert ground.agent.faults == {}


async def test_a_device_may_state_its_uuid_and_a_file_its_allocation(ground: Ground) -> None:
    entry = spec("gpu-0")["devices"][0] | {"annotations": {"bcd.dev/uuid": "GPU-1"}}
    annotations = {"bcd.dev/binding": "kubernetes", "bcd.dev/allocation": "a.7"}
    ground.hold("file", spec(entry, annotations=annotations))

    (grant,) = (await ground.grants()).values()

    assert grant.allocation == "a.7"
    assert grant.devices[0].uuid == "GPU-1"


async def test_every_name_in_a_hold_can_be_another(tmp_path: Path) -> None:
    ground = Ground(
        tmp_path,
        prefix="hold.",
        binding="acme.dev/for",
        binding_value="pods",
        allocation="acme.dev/id",
        uuid="acme.dev/serial",
        kinds=("fpga",),
    )
    entry = spec("gpu-0")["devices"][0] | {"annotations": {"acme.dev/serial": "S1"}}
    annotations = {"acme.dev/for": "pods", "acme.dev/id": "job-1"}
    ground.hold("x", spec(entry, annotations=annotations), name="hold.x.json")
    ground.hold("y", spec("gpu-1"))

    (grant,) = (await ground.grants()).values()

    assert (grant.allocation, grant.devices[0].uuid) == ("job-1", "S1")
    assert ground.source.kinds == ("fpga",)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("bcd-a.json", spec("gpu-0", kind="acme.dev/gpu")),
        ("bcd-b.json", spec("gpu-0", annotations={})),
        ("bcd-c.json", spec("gpu-0", annotations={"bcd.dev/binding": "vm"})),
        ("bcd-d.json.tmp", spec("gpu-0")),
        (".bcd-e.json", spec("gpu-0")),
        ("nvidia.json", spec("gpu-0")),
        ("nvidia.yaml", b"kind: nvidia.com/gpu\n"),
        ("other.json", b"\0"),
    ],
)
async def test_what_is_not_about_kubernetes_is_left_alone(
    ground: Ground, name: str, document: Any
) -> None:
    path = ground.hold("", document, name=name)
    before = path.read_bytes()

    assert await ground.grants() == {}
    assert ground.agent.faults == {}
    assert path.read_bytes() == before


async def test_of_files_with_a_holds_name_the_status_says_why_they_grant_nothing(
    ground: Ground,
) -> None:
    ground.hold("a", spec("gpu-0", kind="acme.dev/gpu"))
    ground.hold("b", spec("gpu-0", annotations={}))
    (ground.directory / "nvidia.json").write_text("{}")
    note = f"policy/{NAME}"
    await ground.grants()
    first = ground.agent.notes[note]

    for number in range(3):
        ground.hold(f"c{number}", spec("gpu-0", annotations={}))
    await ground.grants()
    many = ground.agent.notes[note]
    for path in ground.directory.glob("bcd-*"):
        path.unlink()
    await ground.grants()

    assert first == {
        "left alone": "bcd-a.json: its kind is not of the vendor bcd.dev; "
        "bcd-b.json: it has no annotation bcd.dev/binding: kubernetes"
    }
    assert str(many["left alone"]).endswith(
        "; bcd-c0.json: it has no annotation bcd.dev/binding: kubernetes; 2 more"
    )
    assert ground.agent.notes[note] == {"left alone": ""}


async def test_a_hold_that_is_removed_grants_nothing_any_more(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    path = ground.hold("b", spec("gpu-1"))
    assert set(await ground.grants()) == {"a", "b"}

    path.unlink()

    assert set(await ground.grants()) == {"a"}


async def test_a_hold_that_comes_changes_or_goes_is_noticed_at_once(ground: Ground) -> None:
    noticed = anyio.Event()

    async def notices() -> None:
        nonlocal noticed
        with anyio.fail_after(5):
            await noticed.wait()
        await anyio.wait_all_tasks_blocked()
        noticed = anyio.Event()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ground.source.watch_devices, lambda: noticed.set())
        await notices()  # the directory, at first
        path = ground.hold("a", spec("gpu-0"))
        await notices()
        ground.hold("a", spec("gpu-1"))
        await notices()
        path.unlink()
        await notices()
        tasks.cancel_scope.cancel()


def test_what_was_not_noticed_is_seen_after_five_seconds() -> None:
    assert granting.EVERY <= 5.0


# -- what asks for more than is known -------------------------------------------------------------


def _edits(**edits: Any) -> dict[str, Any]:
    return spec({"name": "gpu-0", "containerEdits": {"env": ["A=b"], **edits}})


@pytest.mark.parametrize(
    ("document", "word"),
    [
        (spec("gpu-0", cdiVersion="9.0.0"), "9.0.0"),
        (spec("gpu-0", limits={"seconds": 60}), "limits"),
        (spec({**spec("gpu-0")["devices"][0], "share": 2}), "share"),
        (_edits(intelRdt={"closID": "x"}), "intelRdt"),
        (_edits(env=["NVIDIA_VISIBLE_DEVICES=all"]), "NVIDIA_VISIBLE_DEVICES"),
        (_edits(env=["BCD_CGROUP_PARENT=bcd-alloc-a.slice"]), "BCD_CGROUP_PARENT"),
        (
            spec("gpu-0", containerEdits={"env": ["NVIDIA_VISIBLE_DEVICES=GPU-1"]}),
            "NVIDIA_VISIBLE_DEVICES",
        ),
        (
            spec("gpu-0", annotations={"bcd.dev/binding": "kubernetes", "bcd.dev/until": "noon"}),
            "bcd.dev/until",
        ),
        (
            spec(
                "gpu-0",
                annotations={"bcd.dev/binding": "kubernetes", "x.bcd.dev/cgroup-parent": "a"},
            ),
            "x.bcd.dev/cgroup-parent",
        ),
        (
            spec({**spec("gpu-0")["devices"][0], "annotations": {"bcd.dev/watts": "300"}}),
            "bcd.dev/watts",
        ),
    ],
)
async def test_a_hold_that_asks_for_what_is_not_known_is_refused_whole(
    ground: Ground, document: dict[str, Any], word: str
) -> None:
    ground.hold("a", document)
    ground.hold("b", spec("gpu-1"))

    grants = await ground.grants()

    assert word in grants["a"].unsupported
    assert [(one.name, one.cdi_id) for one in grants["a"].devices] == [("gpu-0", "")]
    assert not grants["b"].unsupported


async def test_every_field_of_the_format_is_known(ground: Ground) -> None:
    """Of version 0.7.0 (cncf-tags/container-device-interface, specs-go/config.go)."""
    hook = {"hookName": "createContainer", "path": "/x", "args": ["x"], "env": [], "timeout": 5}
    mount = {"hostPath": "/a", "containerPath": "/a", "options": ["ro"], "type": "bind"}
    node = node_entry(0, hostPath="/dev/x", type="c", fileMode=438, permissions="rw", uid=0, gid=5)
    edits = {"hooks": [hook], "mounts": [mount], "deviceNodes": [node], "additionalGids": [5]}
    entry = {"name": "gpu-0", "annotations": {"a.dev/b": "c"}, "containerEdits": edits}
    ground.hold("a", spec(entry, cdiVersion="0.7.0", containerEdits=edits))

    assert not (await ground.grants())["a"].unsupported


async def test_annotations_that_ask_for_nothing_can_be_named(tmp_path: Path) -> None:
    ground = Ground(tmp_path, informational=("bcd.dev/tenant*",))
    annotations = {"bcd.dev/binding": "kubernetes", "bcd.dev/tenant-id": "acme", "a.dev/x": "y"}
    ground.hold("a", spec("gpu-0", annotations=annotations))

    assert not (await ground.grants())["a"].unsupported


# -- what cannot be read --------------------------------------------------------------------------


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _good(path: Path, mode: int) -> None:
    path.write_text(json.dumps(spec("gpu-0")))
    path.chmod(mode)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _linked(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere.json"
    elsewhere.write_text(json.dumps(spec("gpu-0")))
    path.symlink_to(elsewhere)


WHOLE = json.dumps(spec("gpu-0")).encode()
BAD: dict[str, Callable[[Path], Any] | bytes] = {
    "empty": b"",
    "truncated": WHOLE[: len(WHOLE) // 2],
    "nuls": b"\0" * len(WHOLE),
    "nul inside": WHOLE.replace(b"nvidia0", b"nvidia\\u0000"),
    "not UTF-8": WHOLE.replace(b"gpu-0", b"gpu-\xff"),
    "BOM": b"\xef\xbb\xbf" + WHOLE,
    "yaml": b"kind: bcd.dev/gpu\n",
    "a list": b"[]",
    "a word": b"null",
    "no kind": b"{}",
    "a key twice": WHOLE.replace(b'"kind"', b'"kind": "bcd.dev/gpu", "kind"'),
    "no number": WHOLE.replace(b'"minor": 0', b'"minor": NaN'),
    "deep": b"[" * 100_000,
    "a long number": b"9" * 10_000,
    "annotations are a list": json.dumps(spec("gpu-0", annotations=[])).encode(),
    "no devices": json.dumps(spec()).encode(),
    "a device without edits": json.dumps(spec({"name": "gpu-0", "containerEdits": {}})).encode(),
    "a device twice": json.dumps(spec("gpu-0", "gpu-0")).encode(),
    "devices are a word": json.dumps(spec("gpu-0", devices="all")).encode(),
    "unknown and without devices": json.dumps(spec(more=1)).encode(),
    "unknown and badly named": json.dumps(
        spec({"name": "-", "containerEdits": {"env": ["A=b"]}, "more": 1})
    ).encode(),
    "unknown and nameless": json.dumps(spec("gpu-0", devices=[{}], more=1)).encode(),
    "an old version": json.dumps(spec("gpu-0", cdiVersion="0.5.0")).encode(),
    "a relative path": WHOLE.replace(b"/dev/nvidia0", b"dev/nvidia0"),
    "no allocation": json.dumps(
        spec("gpu-0", annotations={"bcd.dev/binding": "kubernetes", "bcd.dev/allocation": "a/b"})
    ).encode(),
    "a long name": WHOLE.replace(b"gpu-0", b"g" * LONGEST),
    "a long path": WHOLE.replace(b"/dev/nvidia0", b"/dev/" + b"n" * LONGEST),
    "a long uuid": json.dumps(
        spec({**spec("gpu-0")["devices"][0], "annotations": {"bcd.dev/uuid": "U" * 513}})
    ).encode(),
    "more devices than a node has": json.dumps(
        spec(devices=[{"name": f"g{number}"} for number in range(MOST_DEVICES + 1)], more=1)
    ).encode(),
    "huge": WHOLE + b" " * LARGEST,
    "sparse": _sparse,
    "a dangling link": _link("/nowhere/at/all"),
    "a loop": _link("bcd-bad.json"),
    "a link elsewhere": _linked,
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a directory": lambda path: path.mkdir(),
    "written by its group": lambda path: _good(path, 0o664),
    "written by anybody": lambda path: _good(path, 0o646),
}


def _put(ground: Ground, how: Callable[[Path], Any] | bytes, name: str = "bcd-bad.json") -> None:
    if isinstance(how, bytes):
        ground.hold("bad", how, name=name)
        return
    path = ground.directory / name
    path.unlink(missing_ok=True)
    how(path)


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_file_keeps_what_it_granted_and_costs_no_other(
    ground: Ground, what: str
) -> None:
    ground.hold("bad", spec("gpu-0"))
    gone = ground.hold("b", spec("gpu-1"))
    before = await ground.grants()

    _put(ground, BAD[what])
    ground.hold("c", spec("gpu-2"))
    gone.unlink()
    after = await ground.grants()

    assert set(after) == {"bad", "c"}
    assert after["bad"] == before["bad"]
    assert ground.source.unread.startswith(f"{ground.directory}/bcd-bad.json: "), "nobody is reaped"


@pytest.mark.parametrize("what", BAD)
async def test_of_a_bad_file_that_was_never_good_nothing_is_granted(
    ground: Ground, what: str
) -> None:
    ground.hold("a", spec("gpu-1"))
    await ground.grants()

    assert ground.source.unread == ""

    _put(ground, BAD[what])

    assert set(await ground.grants()) == {"a"}
    assert "bcd-bad.json" in ground.source.unread, "whom it grants something is not known"


@pytest.mark.parametrize("what", BAD)
async def test_after_a_restart_a_bad_file_may_have_granted_anything(
    ground: Ground, what: str
) -> None:
    ground.hold("a", spec("gpu-1"))
    _put(ground, BAD[what])

    with pytest.raises(Unreadable, match=r"bcd-bad\.json"):
        await ground.grants()

    (message,) = ground.agent.faults["policy/cdi_grants bcd-bad.json"]
    assert message.startswith(f"{ground.directory}/bcd-bad.json: ")
    assert "mend or remove" in message


async def test_after_a_restart_the_ledger_says_what_a_bad_file_granted(ground: Ground) -> None:
    ground.hold("bad", spec("gpu-0"))
    ground.hold("a", spec("gpu-1"))
    before = await ground.grants()
    ground.agent.set_state(granted=before.values())

    ground.restart()
    ground.hold("bad", b"{")

    assert await ground.grants() == before


async def test_a_bad_file_is_told_of_until_it_is_mended(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    await ground.grants()
    ground.hold("a", b"{")
    await ground.grants()
    told = dict(ground.agent.faults)

    ground.hold("a", spec("gpu-0", "gpu-1"))
    (grant,) = (await ground.grants()).values()

    (message,) = told["policy/cdi_grants bcd-a.json"]
    assert "it is not JSON" in message
    assert "what it granted before stands" in message
    assert "nobody is reaped" in message
    assert len(grant.devices) == 2
    assert (ground.agent.faults, ground.source.unread) == ({}, "")


async def test_of_many_bad_files_a_few_are_named_and_the_others_counted(ground: Ground) -> None:
    await ground.grants()
    for number in range(5):
        ground.hold(f"a{number}", b"{")

    assert await ground.grants() == {}

    assert ground.source.unread.count(".json: ") == 3
    assert ground.source.unread.endswith("; 2 more")


@pytest.mark.parametrize(("name", "told"), [("a", True), ("b", False)])
async def test_a_release_is_not_told_that_an_unreadable_file_may_take_back(
    ground: Ground, name: str, told: bool
) -> None:
    await ground.grants()
    ground.hold(name, b"{")
    await ground.grants()
    ended = Release(id="r", allocation="b", source="", devices=(), since=1.0)

    def tell() -> None:
        ground.source.report_release(Grant(allocation="b"), ended, ground.agent)

    if told:
        tell()
    else:
        with pytest.raises(TryAgain, match=r"bcd-b\.json may state it again: it is not JSON"):
            tell()
        (ground.directory / "bcd-b.json").unlink()
        await ground.grants()
        tell()
    assert (ground.agent.paths.state / "grants/b.json").exists()


async def test_of_a_file_that_is_being_written_nobody_is_told(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    await ground.grants()

    (ground.directory / "bcd-a.json").write_text("{")  # a moment ago

    assert set(await ground.grants()) == {"a"}
    assert ground.agent.faults == {}
    assert "bcd-a.json" in ground.source.unread, "it may grant what somebody is to be reaped for"


async def test_a_bad_file_that_is_removed_ends_its_grant(ground: Ground) -> None:
    path = ground.hold("a", spec("gpu-0"))
    ground.hold("b", spec("gpu-1"))
    await ground.grants()
    ground.hold("a", b"")
    await ground.grants()

    path.unlink()

    assert set(await ground.grants()) == {"b"}
    assert ground.agent.faults == {}


@pytest.mark.parametrize("second", [spec("gpu-1"), spec("gpu-0"), b"---\n"])
async def test_two_files_of_one_allocation_are_nobodys_guess(ground: Ground, second: Any) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.hold("b", spec("gpu-2"))
    before = await ground.grants()

    ground.hold("a", second, name="bcd-a.yaml")
    both = await ground.grants()
    told = dict(ground.agent.faults)
    (ground.directory / "bcd-a.json").unlink()
    (ground.directory / "bcd-a.yaml").unlink()

    assert both == before
    assert any("bcd-a.json and bcd-a.yaml" in text for texts in told.values() for text in texts)
    assert set(await ground.grants()) == {"b"}


async def test_a_hold_in_json_may_be_named_as_yaml(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"), name="bcd-a.yaml")

    assert set(await ground.grants()) == {"a"}


async def test_one_device_in_two_files_is_the_agents_to_judge(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.hold("b", spec("gpu-0"))

    assert set(await ground.grants()) == {"a", "b"}


async def test_a_name_that_is_no_text_is_told_of_in_letters(ground: Ground) -> None:
    await ground.grants()
    path = Path(os.fsdecode(os.fsencode(ground.directory) + b"/bcd-\xff\x1b.json"))
    path.write_text("{")
    os.utime(path, (1e9, 1e9))

    assert await ground.grants() == {}
    ((source, (message,)),) = ground.agent.faults.items()
    (source + message).encode()
    assert "\x1b" not in source + message


# -- the directory --------------------------------------------------------------------------------


async def test_a_directory_that_is_missing_is_not_one_without_holds(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    await ground.grants()
    ground.directory.rename(ground.root / "away")

    with pytest.raises(Unreadable, match="make it, or set"):
        await ground.grants()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
async def test_in_a_directory_that_others_write_nothing_is_believed(
    ground: Ground, mode: int
) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.directory.chmod(mode)

    with pytest.raises(Unreadable, match="can be written by others"):
        await ground.grants()


async def test_more_files_than_a_node_can_have_are_not_read(ground: Ground) -> None:
    for number in range(MOST_FILES + 1):
        (ground.directory / f"bcd-{number}.json").touch()

    with pytest.raises(Unreadable, match="at most"):
        await ground.grants()


async def test_a_swapped_directory_ends_no_grant_before_a_second_look(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("hardpoint.policies.cdi_grants.time.monotonic", lambda: clock[0])
    ground.hold("a", spec("gpu-0"))
    ground.hold("b", spec("gpu-1"))
    await ground.grants()
    ground.directory.rename(ground.root / "away")
    ground.directory.mkdir()
    ground.hold("a", spec("gpu-0"))

    for clock[0] in (100.0, 105.0, 109.9):
        with pytest.raises(Unreadable, match=r"without bcd-b\.json"):
            await ground.grants()
    clock[0] = 110.1

    assert set(await ground.grants()) == {"a"}


async def test_a_directory_that_is_back_has_lost_nothing(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    before = await ground.grants()
    ground.directory.rename(ground.root / "away")
    ground.directory.mkdir()
    with pytest.raises(Unreadable):
        await ground.grants()

    ground.directory.rmdir()
    (ground.root / "away").rename(ground.directory)

    assert await ground.grants() == before


async def test_another_directory_with_the_same_files_says_the_same(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    before = await ground.grants()
    ground.directory.rename(ground.root / "away")
    ground.directory.mkdir()
    ground.hold("a", spec("gpu-0"))

    assert await ground.grants() == before


def test_settings_that_name_no_vendor_prefix_or_annotation_are_refused() -> None:
    for wrong in (
        {"vendor": "-"},
        {"vendor": "a/b"},
        {"prefix": "../x"},
        {"prefix": ".x"},
        {"binding": "a b"},
        {"kinds": ()},
        {"device_class": ""},
        {"whatever": 1},
    ):
        with pytest.raises(ValueError, match="validation error"):
            CdiGrantsSettings.model_validate(wrong)


def test_what_is_not_set_follows_from_the_vendor() -> None:
    settings = CdiGrantsSettings(vendor="bcd.dev")

    assert settings.file_prefix == "bcd-"
    assert settings.binding_key == "bcd.dev/binding"
    assert str(settings.directory) == "/etc/cdi"


async def test_a_node_without_numbers_is_the_hosts_of_that_name(ground: Ground) -> None:
    entry = {"name": "gpu-0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
    ground.hold("a", spec(entry))

    (grant,) = (await ground.grants()).values()

    assert grant.devices[0].nodes == (
        DeviceNode(path="/dev/nvidia0", type=NodeType.CHAR, permissions="rwm"),
    )


@pytest.mark.parametrize("user", [1, 65534])
def test_what_another_user_owns_is_not_roots_word(user: int) -> None:
    assert user != os.geteuid()
    status = os.stat_result((0o100644, 1, 1, 1, user, 0, 0, 0, 0, 0))

    assert f"user {user}" in distrusted(status)
    assert not distrusted(os.stat_result((0o100644, 1, 1, 1, 0, 0, 0, 0, 0, 0)))


async def test_a_file_that_changes_while_it_is_read_is_read_again_later(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes it in place: the first half of one and the second of another is a word of
    nobody's."""
    ground.hold("a", spec("gpu-0"))
    before = await ground.grants()
    path = ground.hold("a", spec("gpu-1"))
    real, looks = os.fstat, iter(range(100))

    def fstat(descriptor: int) -> os.stat_result:
        if next(looks) == 2:  # of the directory, of the file, and now of what was read
            path.write_text(json.dumps(spec("gpu-2")))
        return real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("hardpoint.policies.cdi_grants.holds.os.fstat", fstat)
        meanwhile = await ground.grants()

    assert meanwhile == before
    assert [one.name for one in (await ground.grants())["a"].devices] == ["gpu-2"]


async def test_a_grant_of_another_source_is_no_word_on_a_bad_file(ground: Ground) -> None:
    ground.agent.set_state(granted=[Grant(allocation="bad", source="policy/other")])
    ground.hold("bad", b"")

    with pytest.raises(Unreadable):
        await ground.grants()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that were read, with every file as old as caches want it."""
    names: list[str] = []

    real = holds.read_spec

    def read(name: str, directory: int) -> Any:
        names.append(name)
        return real(name, directory)

    later = time.time() + 60
    monkeypatch.setattr("hardpoint.policies.cdi_grants.holds.time.time", lambda: later)
    monkeypatch.setattr("hardpoint.policies.cdi_grants.holds.read_spec", read)
    return names


async def test_a_file_that_is_the_same_is_not_read_again(ground: Ground, reads: list[str]) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.hold("vm", spec("gpu-1", annotations={}))
    ground.hold("bad", b"{")
    first = ground.hold("x", spec("gpu-3")), await _or_nothing(ground)
    ground.hold("bad", spec("gpu-2"))
    before = await ground.grants()
    reads.clear()

    again = await ground.grants()
    nothing = list(reads)
    ground.hold("a", spec("gpu-4"))
    changed = await ground.grants()

    assert first[1] == {}
    assert again == before
    assert nothing == []
    assert reads == ["bcd-a.json"]
    assert changed["a"].devices[0].name == "gpu-4"


async def _or_nothing(ground: Ground) -> dict[str, Grant]:
    try:
        return await ground.grants()
    except Unreadable:
        return {}


async def test_a_file_that_others_may_write_now_is_looked_at_again(
    ground: Ground, reads: list[str]
) -> None:
    path = ground.hold("a", spec("gpu-0"))
    await ground.grants()

    path.chmod(0o666)
    await ground.grants()

    assert reads == ["bcd-a.json", "bcd-a.json"]
    assert "can be written by others" in str(ground.agent.faults)


async def test_a_file_of_this_moment_is_read_again(ground: Ground) -> None:
    """Two changes within one tick of the file system's clock look like one."""
    path = ground.hold("a", spec("gpu-0"))
    await ground.grants()
    before = path.stat()

    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"gpu-0"))
        file.write(b"gpu-7")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert (await ground.grants())["a"].devices[0].name == "gpu-7"
