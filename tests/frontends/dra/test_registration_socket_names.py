"""Where sockets are, for every length of root, driver and instance."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardpoint.kubelet.sockets import LONGEST_PATH
from hardpoint_dra.names import Directories

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
KUBELET, MICROK8S = "/var/lib/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"


def test_without_an_instance_the_names_are_the_plain_ones() -> None:
    names = Directories(Path(KUBELET), "hardpoint.dev")

    assert str(names.service("")) == f"{KUBELET}/plugins/hardpoint.dev/dra.sock"
    assert str(names.registrar("")) == f"{KUBELET}/plugins_registry/hardpoint.dev-reg.sock"


def test_an_instance_has_names_of_its_own() -> None:
    names = Directories(Path(KUBELET), "hardpoint.dev")

    assert names.service(UID).name == f"dra-{UID}.sock"
    assert names.registrar(UID).name == f"hardpoint.dev-{UID}-reg.sock"


@pytest.mark.parametrize(
    ("length", "name"),
    [
        (27, f"{'d' * 27}-{UID}-reg.sock"),
        (28, f"{'d' * 28}-0iXqVz5WAmI-reg.sock"),
        (52, f"{'d' * 52}-0iXqVz5WAmI-reg.sock"),
        (53, "dra-AAAAAAAAAAAAAAAAAAAAAA-reg.sock"),
    ],
)
def test_a_registrars_name_is_shortened_in_two_steps(length: int, name: str) -> None:
    """The longest driver names for each form, as the Go library's arithmetic has them."""
    found = Directories(Path(KUBELET), "d" * length).registrar(UID)

    assert len(str(found)) <= LONGEST_PATH
    shape = [part if part in (UID, "d" * length) else len(part) for part in _parts(found.name)]
    want = [part if part in (UID, "d" * length) else len(part) for part in _parts(name)]
    assert shape == want


def _parts(name: str) -> list[str]:
    stem = name.removesuffix("-reg.sock")
    if stem.startswith("d" * 27):
        driver = stem[: stem.rindex("d-") + 1] if "d-" in stem else stem
        return [driver, stem.removeprefix(f"{driver}-")]
    return ["dra", stem.removeprefix("dra-")]


def test_the_longest_driver_name_fits_below_the_usual_root() -> None:
    names = Directories(Path(KUBELET), "d" * 63)

    for path in (names.service(UID), names.registrar(UID), names.service(""), names.registrar("")):
        assert len(str(path)) <= LONGEST_PATH


@pytest.mark.parametrize("driver", ["a", "hardpoint.dev", "gpu.hardpoint.dev", "d" * 20])
@pytest.mark.parametrize("root", [KUBELET, "/var/lib/k0s/kubelet", MICROK8S])
@pytest.mark.field_case("A12")
def test_common_roots_and_driver_names_fit(root: str, driver: str) -> None:
    names = Directories(Path(root), driver)

    for path in (names.service(UID), names.registrar(UID), names.service(""), names.registrar("")):
        assert len(str(path)) <= LONGEST_PATH


def test_shortened_names_differ_by_instance_and_by_driver() -> None:
    other = UID.replace("0", "1")
    names, twin = Directories(Path(MICROK8S), "d" * 35), Directories(Path(MICROK8S), "e" * 35)

    found = {names.registrar(UID), names.registrar(other), twin.registrar(UID)}

    assert len(found) == 3
    assert all(path.name.startswith("dra-") for path in found)
