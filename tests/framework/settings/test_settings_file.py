"""Settings say where they are wrong and what would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardpoint.errors import BadSettings
from hardpoint.model import Domain
from hardpoint.settings import AgentSettings, load, needs_labels


def _load(tmp_path: Path, toml: str = "", **environment: str) -> AgentSettings:
    file = tmp_path / "hardpoint.toml"
    file.write_text(toml)
    return load(file, environment)


def test_without_a_file_everything_has_a_default() -> None:
    settings = load(None, {"HARDPOINT_CONFIG": ""})

    assert settings.domain_of("usb") == Domain.named("hardpoint.dev")
    assert settings.domain_of("nvidia_gpu").dra_driver == "gpu.hardpoint.dev"


def test_one_variable_renames_everything_that_is_published(tmp_path: Path) -> None:
    settings = _load(tmp_path, 'domain = "acme.example"', HARDPOINT_DOMAIN="liken.sh")

    assert settings.domain_of("usb") == Domain.named("liken.sh")
    assert settings.domain_of("nvidia_gpu") == Domain.named("liken.sh")


def test_each_name_can_be_set_alone_and_per_driver(tmp_path: Path) -> None:
    settings = _load(
        tmp_path,
        """
        domain = "bcd.dev"
        dra_driver = "gpu.bcd.dev"
        [names.usb]
        domain = "usb.example"
        cdi_vendor = "cdi.example"
        """,
    )

    assert settings.domain_of("nvidia_gpu") == Domain("gpu.bcd.dev", "bcd.dev", "bcd.dev")
    assert settings.domain_of("usb") == Domain("usb.example", "usb.example", "cdi.example")


@pytest.mark.parametrize(
    ("toml", "where", "want"),
    [
        ("domian = 'x.dev'", "domian", "the keys are"),
        ("domain = 'Upper.dev'", "domain", ""),
        ("domain = '9lives.dev'", "domain", ""),
        ("[paths]\ncid = '/x'", "paths.cid", "cdi"),
        ("[[rules]]\naction = 'permit'\nwhere = {kind='k'}", "rules[0].action", ""),
        ("[[rules]]\naction = 'deny'\nwhere = {}", "rules[0].where", ""),
        ("[[rules]]\naction = 'deny'\nwhen = {kind='k'}", "rules[0]", ""),
        ("[[rules]]\naction = 'allow'\nname = 'x'\nwhere = {kind='k'}", "rules[0]", "relabel"),
        ("[[rules]]\naction = 'allow'\nreason = 'x'\nwhere = {kind='k'}", "rules[0]", "deny"),
        ("[[rules]]\naction = 'relabel'\nwhere = {kind='k'}", "rules[0]", "a name or attributes"),
        ("[[rules]]\naction='relabel'\nname='B a'\nwhere={kind='k'}", "rules[0].name", "dashes"),
        ("[[rules]]\naction='relabel'\nattributes={''='x'}\nwhere={kind='k'}", "rules[0]", "C"),
        ("[[nodes]]\nname = 'a'", "nodes[0]", ""),
        ("nodes = 3", "nodes", "[[nodes]]"),
        ("not toml", "is not TOML", ""),
    ],
)
def test_a_wrong_key_is_named_with_its_place(
    tmp_path: Path, toml: str, where: str, want: str
) -> None:
    with pytest.raises(BadSettings) as caught:
        _load(tmp_path, toml)

    assert where in str(caught.value)
    assert want in str(caught.value)
    assert "hardpoint.toml" in str(caught.value)


def test_a_file_that_was_named_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="no such file"):
        load(tmp_path / "none.toml", {})


def test_variables_reach_into_tables_and_win(tmp_path: Path) -> None:
    settings = _load(
        tmp_path,
        "[driver.usb]\nusbfs = true\n[paths]\ncdi = '/etc/cdi'",
        HARDPOINT_DRIVER__USB__USBFS="false",
        HARDPOINT_PATHS__CDI="/run/cdi",
        HARDPOINT_FRONTENDS="dra, deviceplugin",
        HARDPOINT_RULES='[{"action": "deny", "where": {"kind": "sound.card"}}]',
    )

    assert settings.driver["usb"] == {"usbfs": False}
    assert settings.paths.cdi == Path("/run/cdi")
    assert settings.frontends == ("dra", "deviceplugin")
    assert settings.rules[0].where == {"kind": "sound.card"}


def test_sections_for_nodes_apply_by_name_and_label_in_order(tmp_path: Path) -> None:
    file = tmp_path / "hardpoint.toml"
    file.write_text(
        """
        drivers = ["usb"]
        [driver.usb]
        a = 1
        [[nodes]]
        name = "gpu-*"
        settings = {drivers = ["nvidia_gpu"], driver = {usb = {b = 2}}}
        [[nodes]]
        labels = {zone = "lab"}
        settings = {drivers = ["pci_drm"]}
        """
    )

    plain = load(file, {}, node="web-1")
    gpu = load(file, {}, node="gpu-1")
    lab = load(file, {}, node="gpu-1", labels={"zone": "lab"})

    assert plain.drivers == ("usb",)
    assert gpu.drivers == ("nvidia_gpu",)
    assert gpu.driver["usb"] == {"a": 1, "b": 2}
    assert lab.drivers == ("pci_drm",)
    assert needs_labels(file, {})


def test_rules_of_a_node_and_of_a_variable_stand_before_those_of_all(tmp_path: Path) -> None:
    settings = _load(
        tmp_path,
        """
        [[rules]]
        action = "deny"
        where = {kind = "sound.card"}
        [[nodes]]
        settings = {rules = [{action = "allow", where = {kind = "disk"}}]}
        """,
        HARDPOINT_RULES='[{"action": "deny", "where": {"kind": "tty"}}]',
    )

    assert [dict(rule.where) for rule in settings.rules] == [
        {"kind": "tty"},
        {"kind": "disk"},
        {"kind": "sound.card"},
    ]


def test_a_mistake_in_a_section_is_found_on_every_node(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"nodes\[0\]\.settings: domian"):
        _load(tmp_path, "[[nodes]]\nname = 'other'\nsettings = {domian = 'x.dev'}")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HARDPOINT_DOMIAN", "x.dev"),
        ("HARDPOINT_PATHS__CID", "/x"),
        ("HARDPOINT_RULES", '[{"action": "permit", "where": {"kind": "k"}}]'),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, variable: str, value: str) -> None:
    with pytest.raises(BadSettings, match=f"^{variable}: "):
        _load(tmp_path, "", **{variable: value})


def test_the_nodes_name_comes_from_the_downward_api(tmp_path: Path) -> None:
    assert _load(tmp_path, NODE_NAME="rack7").node_name == "rack7"
    assert _load(tmp_path, "node_name = 'x'", NODE_NAME="rack7").node_name == "x"


def test_a_value_that_is_refused_is_shown_cut_short(tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as caught:
        _load(tmp_path, f"domain = '{'x' * 500}'")

    assert len(str(caught.value)) < 400


LINKS = {
    "HARDPOINT_SERVICE_HOST": "10.96.0.7",
    "HARDPOINT_SERVICE_PORT": "9100",
    "HARDPOINT_SERVICE_PORT_METRICS": "9100",
    "HARDPOINT_PORT": "tcp://10.96.0.7:9100",
    "HARDPOINT_PORT_9100_TCP": "tcp://10.96.0.7:9100",
    "HARDPOINT_PORT_9100_TCP_PROTO": "tcp",
    "HARDPOINT_METRICS_PORT_9100_TCP_ADDR": "10.96.0.7",
    "HARDPOINT_METRICS_SERVICE_HOST": "10.96.0.7",
}


@pytest.mark.parametrize("variable", LINKS)
def test_a_service_named_hardpoint_does_not_keep_the_agent_from_starting(
    tmp_path: Path, variable: str
) -> None:
    """The kubelet puts these into every container of the Service's namespace."""
    assert _load(tmp_path, **{variable: LINKS[variable]}) == AgentSettings()


def test_a_variable_that_only_looks_like_a_services_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="HARDPOINT_PORTAL: unknown key"):
        _load(tmp_path, HARDPOINT_PORTAL="x")


def test_sections_for_nodes_may_come_from_a_variable(tmp_path: Path) -> None:
    sections = '[{"name": "gpu-*", "labels": {"a": "b"}, "settings": {"domain": "gpu.example"}}]'
    file = tmp_path / "hardpoint.toml"
    file.write_text("")
    variables = {"HARDPOINT_NODES": sections}

    assert needs_labels(file, variables)
    assert load(file, variables, node="gpu-1", labels={"a": "b"}).domain == "gpu.example"
    assert load(file, variables, node="cpu-1", labels={"a": "b"}).domain == "hardpoint.dev"


@pytest.mark.parametrize("variable", ["HARDPOINT_KUBE", "HARDPOINT_DRIVER__USB"])
def test_a_secret_that_went_astray_is_not_repeated(tmp_path: Path, variable: str) -> None:
    with pytest.raises(BadSettings) as refused:
        _load(tmp_path, **{variable: "eyJhbGciOi"})

    assert "eyJ" not in str(refused.value)


def test_what_is_nested_too_deep_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="HARDPOINT_RULES"):
        _load(tmp_path, HARDPOINT_RULES="[" * 5000)
    with pytest.raises(BadSettings, match="is not TOML"):
        _load(tmp_path, "x = " + "[" * 5000)


def test_a_file_name_that_cannot_be_is_refused_in_a_sentence() -> None:
    with pytest.raises(BadSettings, match="null byte"):
        load(None, {"HARDPOINT_CONFIG": "/tmp/a\0"})


@pytest.mark.field_case("E07")
@pytest.mark.parametrize("key", ["domain", "resource_prefix", "names.usb.resource_prefix"])
@pytest.mark.parametrize(
    "name", ["kubernetes.io", "gpu.kubernetes.io", "requests.example", "a b", "a/b", "Ex.com", ""]
)
def test_a_prefix_that_the_kubelet_would_refuse_is_refused(
    tmp_path: Path, key: str, name: str
) -> None:
    file = tmp_path / "hardpoint.toml"
    file.write_text(f'{key} = "{name}"\n')

    with pytest.raises(BadSettings, match=r"want a (lower-case DNS subdomain|domain of your own)"):
        load(file, {})


def test_kubernetes_own_domain_may_name_what_is_no_resource() -> None:
    own = load(None, {"HARDPOINT_DRA_DRIVER": "gpu.kubernetes.io"}).domain_of("usb")

    assert (own.dra_driver, own.resource_prefix) == ("gpu.kubernetes.io", "hardpoint.dev")
