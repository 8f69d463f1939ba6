from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint._core.claims.narrowing import widened
from hardpoint.model import Delivery, DeviceNode, Hook, Mount

NODE = DeviceNode(path="/dev/x", major=1, minor=2, permissions="rw", mode=0o660)
MOUNT = Mount(host_path="/a", container_path="/b", options=("rw", "bind"))
FULL = Delivery(
    nodes=(NODE, replace(NODE, path="/dev/y", minor=3)),
    mounts=(MOUNT,),
    env={"A": "1", "B": "2"},
    annotations={"n": "1"},
    hooks=(Hook(name="prestart", path="/h"),),
    gids=(44, 993),
    cdi_devices=("a.dev/b=c",),
)


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": ()},
        {"nodes": FULL.nodes[1:]},
        {"nodes": (replace(NODE, permissions="r"),)},
        {"mounts": ()},
        {"mounts": (replace(MOUNT, options=("ro", "bind")),)},
        {"mounts": (replace(MOUNT, options=("bind", "ro")),)},
        {"env": {"B": "2"}},
        {"annotations": {}},
        {"hooks": ()},
        {"gids": (993,)},
        {"cdi_devices": ()},
    ],
)
def test_taking_away_is_narrowing(change: dict[str, Any]) -> None:
    assert widened(FULL, replace(FULL, **change)) == ""


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"nodes": (*FULL.nodes, replace(NODE, path="/dev/z"))}, "node /dev/z"),
        ({"nodes": (replace(NODE, permissions="rwm"),)}, "node /dev/x"),
        ({"nodes": (replace(NODE, permissions=""),)}, "node /dev/x"),
        ({"nodes": (replace(NODE, minor=3),)}, "node /dev/x"),
        ({"nodes": (replace(NODE, host_path="/dev/sda"),)}, "node /dev/x"),
        ({"nodes": (replace(NODE, mode=0o666),)}, "node /dev/x"),
        ({"mounts": (replace(MOUNT, host_path="/"),)}, "mount /b"),
        ({"mounts": (replace(MOUNT, options=("rw", "bind", "suid")),)}, "mount /b"),
        ({"mounts": (replace(MOUNT, options=("bind",)),)}, "mount /b"),
        ({"env": {"A": "2"}}, "environment variable A"),
        ({"env": {"C": "1"}}, "environment variable C"),
        ({"annotations": {"m": "1"}}, "annotation m"),
        ({"hooks": (Hook(name="prestart", path="/evil"),)}, "hook prestart"),
        ({"gids": (0, 44)}, "group 0"),
        ({"cdi_devices": ("a.dev/b=all",)}, "CDI device a.dev/b=all"),
    ],
)
def test_anything_else_is_widening_and_is_named(change: dict[str, Any], what: str) -> None:
    assert widened(FULL, replace(FULL, **change)) == what


picks = st.tuples(
    st.lists(st.sampled_from(FULL.nodes), unique=True),
    st.lists(st.sampled_from(sorted(FULL.env.items())), unique=True),
    st.lists(st.sampled_from(FULL.gids), unique=True),
)


@given(picks)
def test_a_part_of_a_delivery_is_narrower_and_the_whole_is_wider_than_it(picked: Any) -> None:
    nodes, env, gids = picked
    part = replace(FULL, nodes=tuple(nodes), env=dict(env), gids=tuple(gids))
    assert widened(FULL, part) == ""
    whole = part.gids == FULL.gids and len(nodes) == 2 and part.env == FULL.env
    assert bool(widened(part, FULL)) is not whole
