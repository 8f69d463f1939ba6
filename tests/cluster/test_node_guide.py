"""The seed's guide, "Give a workload a device", on a real node: its manifests as they stand there.

Only the domain is set (``HARDPOINT_DOMAIN=liken.sh``). The machine is the guide's with one card;
where the guide speaks of two, the second is plugged in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from cluster import pods
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import FIRST, GUIDE, LIKEN, SECOND, WHOLE, World

LOOK = ("ls", "-1", "/dev/dri")
CANNOT = "cannot allocate all claims"
PLAYER = {"gpu": "player-gpu"}


@pytest.fixture
def media(world: World) -> Iterator[Namespace]:
    with world.namespace("media-" + next(world.fresh)) as made:
        yield made


@pytest.fixture
def home(world: World) -> Iterator[Namespace]:
    with world.namespace("home-" + next(world.fresh)) as made:
        yield made


@pytest.fixture
def one_card(world: World) -> None:
    world.machine.unplug_card()
    world.until_published({name for name in WHOLE if not name.startswith(SECOND)})


def follow(namespace: Namespace, page: str, **changes: str) -> None:
    """Apply a page of the guide, in a namespace of this test's own."""
    for body in yaml.safe_load_all((GUIDE / page).read_text()):
        del body["metadata"]["namespace"]
        body["metadata"] |= changes
        namespace.create(body)


def player(namespace: Namespace, name: str) -> None:
    """A player's claim with the constraint of "Two requests, one card"."""
    spec = yaml.safe_load((GUIDE / "one-card.yaml").read_text())["spec"]
    namespace.create(pods.claim(f"{name}-gpu") | {"spec": spec})
    namespace.create(pods.deployment(name, {"gpu": f"{name}-gpu"}, type="Recreate"))


def test_a_node_shows_the_three_devices_of_the_guides_card(world: World) -> None:
    devices = world.witness.devices(LIKEN)

    render = devices["pci-0000-00-02-0"]
    assert render.get("allowMultipleAllocations", False) is world.modern
    assert render["attributes"]["renderNode"] == {"bool": True}
    assert render["attributes"]["name"] == {"string": "Alder Lake-N [UHD Graphics]"}
    assert render["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": "0000:00:02.0"}
    assert devices["pci-0000-00-02-0-display"]["attributes"]["displayNode"] == {"bool": True}
    assert devices["pci-0000-00-02-0-i2c-dev"]["attributes"]["subsystem"] == {"string": "i2c-dev"}
    assert [one["metadata"]["name"] for one in world.witness.slices(LIKEN)] == ["n0-liken.sh"]


@pytest.mark.usefixtures("one_card")
def test_a_transcoder_receives_the_render_node_and_not_the_card(media: Namespace) -> None:
    follow(media, "transcoder.yaml")
    media.create(pods.deployment("transcoder", {"gpu": "transcoder-gpu"}, type="Recreate"))
    [pod] = media.until_app_runs("transcoder")

    listed = media.run(pod, "ls", "-l", "/dev/dri")

    assert "226, 128" in listed
    assert "renderD128" in listed
    assert "card0" not in listed
    assert "i2c" not in media.run(pod, "ls", "/dev")


@pytest.mark.usefixtures("one_card")
def test_a_second_transcoder_runs_on_the_same_card_at_the_same_time(
    world: World, media: Namespace
) -> None:
    if not world.modern:
        pytest.skip("before 1.36 the server drops allowMultipleAllocations")
    for name in ("transcoder", "second"):
        follow(media, "transcoder.yaml", name=f"{name}-gpu")
        media.create(pods.deployment(name, {"gpu": f"{name}-gpu"}, type="Recreate"))

    found = [media.run(media.until_app_runs(n)[0], *LOOK) for n in ("transcoder", "second")]

    assert [one.split() for one in found] == [["renderD128"]] * 2
    assert media.allocated("transcoder-gpu") == media.allocated("second-gpu") == [FIRST]


@pytest.mark.usefixtures("one_card")
def test_a_player_has_both_nodes_and_a_second_player_waits_for_it(media: Namespace) -> None:
    follow(media, "player.yaml")
    follow(media, "player.yaml", name="second-gpu")
    media.create(pods.pod("player", PLAYER))
    media.until_running("player")
    media.create(pods.pod("second", {"gpu": "second-gpu"}))

    media.until_says("second", CANNOT)
    assert sorted(media.run("player", *LOOK).split()) == ["card0", "renderD128"]
    media.delete("Pod", "player")

    media.until_running("second")
    assert media.allocated("player-gpu") == []


def test_a_player_gets_both_halves_of_one_card_while_another_display_is_taken(
    media: Namespace,
) -> None:
    taken = f"device.attributes['{LIKEN}'].address == '0000:00:02.0'"
    selectors = [{"cel": {"expression": taken}}]
    display = {"deviceClassName": "gpu-display", "selectors": selectors}
    media.create(pods.claim("kiosk", display=display))
    media.create(pods.pod("kiosk", {"gpu": "kiosk"}))
    media.until_running("kiosk")

    player(media, "player")

    [pod] = media.until_app_runs("player")
    assert sorted(media.allocated("player-gpu")) == [SECOND, f"{SECOND}-display"]
    assert sorted(media.run(pod, *LOOK).split()) == ["card1", "renderD129"]


def test_a_third_player_waits_on_a_machine_with_two_cards(media: Namespace) -> None:
    for name in ("one", "two"):
        player(media, name)
        media.until_app_runs(name)
    player(media, "three")

    pod = until("its pod", lambda: media.pods("three"))[0]["metadata"]["name"]
    media.until_says(pod, CANNOT)
    media.delete("Deployment", "one")

    media.until_app_runs("three")


def test_a_rolling_update_waits_until_the_old_pod_releases_the_adapter(home: Namespace) -> None:
    follow(home, "zigbee.yaml")
    claims = {"adapter": "template:zigbee"}
    home.create(pods.deployment("zigbee", claims))
    [old] = home.until_app_runs("zigbee")
    assert "188,   0" in home.run(old, "ls", "-l", "/dev/ttyUSB0")

    again = {"metadata": {"annotations": {"again": "1"}}}
    home.witness.patch("Deployment", "zigbee", {"spec": {"template": again}}, home.name)

    def others() -> list[str]:
        return [n for p in home.pods("zigbee") if (n := p["metadata"]["name"]) != old]

    [new] = until("a new pod beside the old one", others)
    home.until_says(new, CANNOT)
    home.until_running(old)
    home.delete("Pod", old)
    home.until_running(new)


def test_two_pods_on_one_claim_both_receive_the_adapter(home: Namespace) -> None:
    home.create(pods.claim("zigbee", adapter="zigbee-adapter"))
    for name in ("one", "two"):
        home.create(pods.pod(name, {"adapter": "zigbee"}))

    home.until_running("one", "two")

    assert all("188,   0" in home.run(pod, "ls", "-l", "/dev/ttyUSB0") for pod in ("one", "two"))
    home.delete_pods("one")
    assert "188,   0" in home.run("two", "ls", "-l", "/dev/ttyUSB0")


# -- when a claim does not schedule ---------------------------------------------------------------


def test_a_claim_that_no_device_matches_says_so_at_the_pod(media: Namespace) -> None:
    wanted = f"device.driver == '{LIKEN}' && has(device.attributes['{LIKEN}'].mdev)"
    selectors = [{"cel": {"expression": wanted}}]
    media.create(pods.claim("k", gpu={"deviceClassName": "gpu-render", "selectors": selectors}))
    media.create(pods.pod("p", {"gpu": "k"}))

    said = media.until_says("p", CANNOT)

    assert re.match(r"FailedScheduling: 0/(\d) nodes are available: \1 cannot allocate", said)
    assert media.allocated("k") == []


def test_an_unguarded_attribute_that_a_device_lacks_is_named_at_the_pod(media: Namespace) -> None:
    selectors = [{"cel": {"expression": f"device.attributes['{LIKEN}'].serial == '0001'"}}]
    media.create(pods.claim("k", gpu={"deviceClassName": "gpu-render", "selectors": selectors}))
    media.create(pods.pod("p", {"gpu": "k"}))

    said = media.until_says("p", "no such key: serial")

    assert said.startswith("FailedScheduling")


def test_the_holder_of_a_device_is_found_among_the_claims(media: Namespace) -> None:
    for name in ("holder", "waits"):
        media.create(pods.claim(name, adapter="zigbee-adapter"))
        media.create(pods.pod(name, {"adapter": name}))
        if name == "holder":
            media.until_running("holder")
    media.until_says("waits", CANNOT)

    status = media.claim("holder")["status"]

    assert [one["name"] for one in status["reservedFor"]] == ["holder"]
    assert media.allocated("waits") == []
