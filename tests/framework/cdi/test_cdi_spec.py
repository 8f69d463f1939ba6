from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_world import FakeNode
from hypothesis import given
from hypothesis import strategies as st

from hardpoint import cdi
from hardpoint.cdi_rules import check
from hardpoint.errors import BadValue
from hardpoint.model import Addition, Delivery, DeviceNode, Hook, Mount, NodeType

VENDOR = "hardpoint.dev"
NODE = DeviceNode(path="/dev/x", major=10, minor=1)


def edits(delivery: Delivery, newest: str = cdi.NEWEST) -> dict[str, Any]:
    edited: dict[str, Any] = cdi.spec(VENDOR, [("u-x", delivery)], newest)["devices"][0]
    return edited


def version(delivery: Delivery, newest: str = cdi.NEWEST) -> str:
    return str(cdi.spec(VENDOR, [("u-x", delivery)], newest)["cdiVersion"])


def test_names_are_those_of_the_seed_under_its_domain() -> None:
    name = cdi.device_name("0c5e", "usb-1-3")
    assert cdi.qualified("liken.sh", name) == "liken.sh/device=0c5e-usb-1-3"


def test_names_of_shares_and_repeated_requests_never_meet() -> None:
    names = {
        cdi.device_name("u", "nic", "s1"),
        cdi.device_name("u", "nic", "s2"),
        cdi.device_name("u", "nic", request="a"),
        cdi.device_name("u", "nic-a"),
        cdi.device_name("u", "nic", request="a/b"),
        cdi.device_name("u", "nic", "s1", request="a"),
    }
    assert len(names) == 6


@pytest.mark.parametrize("vendor", ["", "1x.dev", "-x", "x.", "x/y", "x y", "x=y"])
def test_a_vendor_that_cdi_would_refuse_is_refused(vendor: str) -> None:
    with pytest.raises(BadValue, match="CDI vendor"):
        cdi.kind(vendor)


@pytest.mark.parametrize(
    ("delivery", "wanted"),
    [
        (Delivery(nodes=(NODE,)), "0.5.0"),
        (Delivery(env={"A": "b"}), "0.5.0"),
        (Delivery(), "0.5.0"),
        (Delivery(nodes=(NODE,), annotations={"a": "b"}), "0.6.0"),
        (Delivery(nodes=(replace(NODE, gid=44),)), "0.7.0"),
        (Delivery(nodes=(NODE,), gids=(44,)), "0.7.0"),
        (Delivery(nodes=(NODE,), gids=(0,)), "0.5.0"),
    ],
)
def test_the_version_is_the_lowest_that_says_it(delivery: Delivery, wanted: str) -> None:
    assert version(delivery) == wanted


def test_what_an_old_runtime_cannot_read_is_left_out_for_it() -> None:
    delivery = Delivery(nodes=(replace(NODE, gid=44),), annotations={"a": "b"})
    assert version(delivery, "0.6.0") == "0.6.0"
    assert version(delivery, "0.5.0") == "0.5.0"
    assert edits(delivery, "0.5.0")["containerEdits"]["deviceNodes"][0]["gid"] == 44
    with pytest.raises(BadValue):
        version(delivery, "0.9.9")


@pytest.mark.field_case("D07")
def test_a_node_carries_all_that_a_daemon_reload_needs() -> None:
    node = DeviceNode(
        path="/dev/in",
        host_path="/dev/out",
        type=NodeType.BLOCK,
        major=8,
        minor=0,
        mode=0o640,
        permissions="r",
    )
    assert edits(Delivery(nodes=(node,)))["containerEdits"]["deviceNodes"] == [
        {
            "path": "/dev/in",
            "hostPath": "/dev/out",
            "type": "b",
            "major": 8,
            "minor": 0,
            "fileMode": 0o640,
            "permissions": "r",
        }
    ]


def test_a_node_without_numbers_is_not_written() -> None:
    with pytest.raises(BadValue, match="numbers"):
        cdi.spec(VENDOR, [("u-x", Delivery(nodes=(DeviceNode(path="/dev/x"),)))])


@pytest.mark.field_case("D07", "H01")
def test_the_host_fills_in_numbers_mode_and_group(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.put("/dev/x", 5, gid=993)
    node.put("/dev/root", 6, gid=0)
    given_ = Delivery(
        nodes=(
            DeviceNode(path="/dev/x"),
            DeviceNode(path="/in", host_path="/dev/root", mode=0o600),
            DeviceNode(path="/dev/later", major=13, minor=64, absent_ok=True),
        )
    )
    first, second, third = cdi.resolve(given_, node).nodes
    assert (first.major, first.minor, first.mode, first.gid) == (240, 5, 0o660, 993)
    assert (second.minor, second.mode, second.gid) == (6, 0o600, None)
    assert (third.major, third.minor, third.mode, third.gid) == (13, 64, 0o660, None)
    assert cdi.groups(cdi.resolve(given_, node)) == [993]


@pytest.mark.field_case("D03", "D05")
def test_a_device_never_has_empty_edits() -> None:
    assert edits(Delivery()) == {
        "name": "u-x",
        "containerEdits": {"env": ["HARDPOINT_DEVICE_U_X=u-x"]},
    }


def test_everything_a_delivery_says_is_in_the_file() -> None:
    delivery = Delivery(
        nodes=(NODE,),
        mounts=(Mount(host_path="/a", container_path="/b", type="bind"),),
        env={"B": "2", "A": "x=y"},
        annotations={"acme.dev/a": "1"},
        hooks=(Hook(name="createContainer", path="/h", args=("h", ""), env=("K=v",)),),
        gids=(7,),
    )
    document = cdi.spec(VENDOR, [("u-x", delivery)])
    device = document["devices"][0]
    assert device["containerEdits"]["env"] == ["A=x=y", "B=2"]
    assert device["containerEdits"]["hooks"] == [
        {"hookName": "createContainer", "path": "/h", "args": ["h", ""], "env": ["K=v"]}
    ]
    again = cdi.delivery_of(device)
    assert (again.mounts, again.env, again.annotations) == (
        delivery.mounts,
        delivery.env,
        delivery.annotations,
    )
    assert (again.hooks, again.gids, again.nodes) == (
        delivery.hooks,
        delivery.gids,
        (NODE,),
    )


def inject(document: dict[str, Any], *names: str) -> dict[str, str]:
    """Apply a spec's devices in order, as the runtime does: a later value replaces one before."""
    env: dict[str, str] = {}
    by_name = {device["name"]: device["containerEdits"] for device in document["devices"]}
    for name in names:
        env |= dict(pair.split("=", 1) for pair in by_name[name].get("env", ()))
    return env


def test_a_variables_name_is_no_way_to_set_another_one() -> None:
    added = Delivery(env={"A": "driver"}).with_additions(Addition(env={"A=policy": ""}))

    with pytest.raises(BadValue, match="A=policy"):
        cdi.spec("acme.dev", [("d", added)])


def test_of_two_devices_that_set_one_variable_the_last_of_the_claim_wins() -> None:
    one, two = Delivery(env={"DEV": "1", "ONE": "y"}), Delivery(env={"DEV": "2"})
    document = cdi.spec(VENDOR, [("u-b", one), ("u-a", two)])
    order = [device["name"] for device in document["devices"]]
    assert order == ["u-b", "u-a"]  # the order of the claim's results, not of the names
    assert inject(document, *order) == {"DEV": "2", "ONE": "y"}
    assert inject(document, "u-b") == {"DEV": "1", "ONE": "y"}


@pytest.mark.parametrize("word", [cdi.ABSENT, cdi.WITHHELD])
def test_a_sentinel_is_a_path_that_the_runtime_has_to_look_for(word: str) -> None:
    delivery = cdi.sentinel(VENDOR, word)
    assert cdi.is_sentinel(delivery)
    assert edits(delivery)["containerEdits"] == {"deviceNodes": [{"path": f"/dev/{VENDOR}/{word}"}]}
    assert not cdi.is_sentinel(Delivery(nodes=(NODE,)))


def test_a_sentinel_is_not_looked_up_on_the_host(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.put(f"/dev/{VENDOR}/device-absent", 1)
    delivery = cdi.sentinel(VENDOR, cdi.ABSENT)
    assert cdi.resolve(delivery, node) == delivery


# -- what the runtime would refuse ----------------------------------------------------------------

GOOD: dict[str, Any] = {
    "cdiVersion": "0.7.0",
    "kind": "hardpoint.dev/device",
    "devices": [
        {
            "name": "u-x",
            "annotations": {"a.b/c": "d"},
            "containerEdits": {
                "env": ["A="],
                "deviceNodes": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 0}],
                "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"]}],
                "hooks": [{"hookName": "prestart", "path": "/x"}],
                "additionalGids": [1],
            },
        }
    ],
}


def changed(path: str, value: object) -> dict[str, Any]:
    import copy

    document = copy.deepcopy(GOOD)
    *steps, last = path.split(".")
    target: Any = document
    for step in steps:
        target = target[int(step)] if step.isdigit() else target[step]
    if value is KeyError:
        del target[last]
    elif last.isdigit():
        target[int(last)] = value
    else:
        target[last] = value
    return document


def test_the_good_spec_of_these_tests_is_good() -> None:
    check(GOOD)


@pytest.mark.field_case("D05")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cdiVersion", "0.6.0"),
        ("cdiVersion", "2.0.0"),
        ("cdiVersion", KeyError),
        ("kind", "hardpoint.dev"),
        ("kind", "hardpoint.dev/1"),
        ("kind", 3),
        ("extra", 1),
        ("devices", []),
        ("devices", {}),
        ("devices.0.name", "-x"),
        ("devices.0.name", "x/y"),
        ("devices.0.name", KeyError),
        ("devices.0.extra", 1),
        ("devices.0.containerEdits", {}),
        ("devices.0.containerEdits", {"env": []}),
        ("devices.0.containerEdits.extra", []),
        ("devices.0.containerEdits.env", ["A"]),
        ("devices.0.containerEdits.env", ["=A"]),
        ("devices.0.containerEdits.env", ["A=\0"]),
        ("devices.0.containerEdits.env", ["A=\ud800"]),
        ("devices.0.containerEdits.deviceNodes.0.path", "dev/x"),
        ("devices.0.containerEdits.deviceNodes.0.path", KeyError),
        ("devices.0.containerEdits.deviceNodes.0.type", "q"),
        ("devices.0.containerEdits.deviceNodes.0.major", -1),
        ("devices.0.containerEdits.deviceNodes.0.major", True),
        ("devices.0.containerEdits.deviceNodes.0.fileMode", 0o170000),
        ("devices.0.containerEdits.deviceNodes.0.permissions", "rx"),
        ("devices.0.containerEdits.deviceNodes.0.permissions", ""),
        ("devices.0.containerEdits.mounts.0.containerPath", ""),
        ("devices.0.containerEdits.mounts.0.hostPath", KeyError),
        ("devices.0.containerEdits.hooks.0.hookName", "later"),
        ("devices.0.containerEdits.additionalGids", [-1]),
        ("devices.0.annotations", {"a b": "c"}),
        ("devices.0.annotations", {"/c": "d"}),
        ("devices.0.annotations", {"a": 1}),
        ("devices.0.annotations", {"a": "x" * (257 << 10)}),
        ("devices.0", {"name": "x", "containerEdits": []}),
    ],
)
def test_a_spec_that_the_runtime_would_refuse_is_never_written(path: str, value: object) -> None:
    with pytest.raises(BadValue):
        check(changed(path, value))


def test_annotations_that_are_no_text_are_refused() -> None:
    """JSON can escape half of a character, which no file in UTF-8 holds."""
    with pytest.raises(BadValue, match="UTF-8"):
        check(changed("annotations", {"a.dev/x": "\ud800"}))


def test_two_devices_of_one_name_are_refused() -> None:
    with pytest.raises(BadValue, match="once"):
        cdi.spec(VENDOR, [("u-x", Delivery()), ("u-x", Delivery())])


texts = st.text(max_size=8)
nodes = st.builds(
    DeviceNode,
    path=texts | st.just("/dev/x"),
    major=st.none() | st.integers(-1, 300),
    minor=st.none() | st.integers(-1, 300),
    permissions=st.sampled_from(["r", "rw", "rwm", "", "x"]),
    mode=st.none() | st.integers(-1, 0o10000),
    gid=st.none() | st.integers(-1, 70000),
    host_path=texts,
)
deliveries = st.builds(
    Delivery,
    nodes=st.lists(nodes, max_size=2).map(tuple),
    env=st.dictionaries(texts, texts, max_size=2),
    annotations=st.dictionaries(texts, texts, max_size=2),
    gids=st.lists(st.integers(0, 70000), max_size=2).map(tuple),
)


@given(deliveries)
def test_whatever_a_driver_delivers_is_refused_or_written_as_a_good_spec(
    delivery: Delivery,
) -> None:
    try:
        document = cdi.spec(VENDOR, [("u-x", delivery)])
    except BadValue:
        return
    check(document)
    assert cdi.spec(VENDOR, [("u-x", cdi.delivery_of(document["devices"][0]))]) == document
