"""Commands that look at a machine with no agent: devices, slice, attributes, plugins, doctor."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from shell import MEMORY, Answer, Shell

from hardpoint.cli.__main__ import main
from hardpoint.testing.sysfs import FakeMachine

DATA = Path(__file__).parent.parent / "data/machines"
SCHEMA = json.loads(resources.files("hardpoint.cli").joinpath("devices.schema.json").read_text())

WHY = {
    "plumbing": "pci 0000:00:00.0",
    "no-driver": "pci 0000:00:03.0",
    "passthrough": "pci 0000:00:04.0",
    "no-nodes": "pci 0000:00:05.0",
    "controller": "pci 0000:00:06.0",
    "framebuffer": "pci 0000:00:07.0",
    "disk-in-use": "pci 0000:00:08.0",
    "platform": "pci 0000:00:09.0",
    "block-device": "pci-0000-00-0a-0-ata-1-0",
    "denied": "pci-0000-00-0b-0",
    "hub": "1-1",
    "unauthorized": "1-2",
    "unconfigured": "1-3",
    "undriven": "1-4:1.1",
    "no-node": "1-5:1.0",
    "in-use": "1-6:1.0",
    "not-attached": "1-7:1.0",
    "unread": "bus/pci/devices/0000:00:0c.0",
}
"""One subject for each rule by which hardware of the machine below is not offered."""

SETTINGS = """
[[rules]]
action = "deny"
where = {device = "pci-0000-00-0b-0"}
reason = "the watchdog is the machine's own"

[[driver.usb.serio]]
protocol = "pulse8-cec"
vendor = "2548"
product = "1002"
"""


def fill(machine: FakeMachine) -> None:
    """Make a machine of which much is not offered, for a reason of each kind."""
    machine.pci("0000:00:00.0", klass="060000")
    gpu = machine.pci("0000:00:02.0", vendor="8086", device="46d2", klass="030000", driver="i915")
    gpu.drm(card=0, render=128).i2c(4, 5)
    machine.pci("0000:00:03.0", klass="030000")
    machine.pci("0000:00:04.0", klass="030000", driver="vfio-pci")
    machine.pci("0000:00:05.0", klass="020000", driver="igb")
    machine.pci("0000:00:06.0", klass="010601", driver="ahci")
    machine.pci("0000:00:07.0", klass="030000", driver="vga").fb(0)
    system = machine.pci("0000:00:08.0", klass="010601", driver="ahci").ata(1)
    system.disk("sda", 8, 0).partition(1, 8, 1)
    machine.mount("8:1", "/boot")
    machine.pci("0000:00:09.0", driver="rtc").node("rtc", "rtc0", 252, 0)
    machine.pci("0000:00:0a.0", klass="010601", driver="ahci").ata(1).disk("sdb", 8, 16)
    machine.pci("0000:00:0b.0", driver="wdt").node("watchdog", "watchdog1", 248, 1)
    odd = machine.pci("0000:00:0c.0", driver="ptp").node("ptp", "ptp0", 247, 0)
    odd.unreadable("vendor")
    fill_usb(machine)


def fill_usb(machine: FakeMachine) -> None:
    hub = machine.usb("1-1", vendor="05e3", product="0610", bDeviceClass="09")
    hub.interface(0, klass="09", driver="hub")
    machine.usb("1-2", authorized=0)
    machine.usb("1-3", bConfigurationValue="")
    ups = machine.usb("1-4", vendor="051d", product="0002")
    ups.interface(0, klass="03", driver="usbhid").node("hidraw", "hidraw0", 243, 0)
    ups.interface(1)
    machine.usb("1-5").interface(0, klass="02", driver="cdc_ether")
    stick = machine.usb("1-6").interface(0, klass="08", driver="usb-storage")
    stick.disk("sdc", 8, 32)
    machine.mount("8:32", "/media")
    cec = machine.usb("1-7", vendor="2548", product="1002")
    cec.interface(0, klass="02", driver="cdc_acm").node("tty", "ttyACM0", 166, 0)
    adapter = machine.usb("1-8", vendor="10c4", product="ea60", serial="0001")
    adapter.interface(0, driver="cp210x").node("tty", "ttyUSB0", 188, 0)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> FakeMachine:
    machine = FakeMachine(tmp_path_factory.mktemp("filled") / "machine")
    fill(machine)
    return machine


@pytest.fixture
def full(shell: Shell, filled: FakeMachine) -> Shell:
    shell.machine = filled
    shell.config.write_text(SETTINGS)
    return shell


# -- devices --------------------------------------------------------------------------------------


def test_devices_are_shown_as_a_table(full: Shell) -> None:
    answer = full("devices", "--sysfs", full.tree)

    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].split() == ["NAME", "KIND", "SHARED", "NODES", "HARDWARE"]
    shown = {line.split()[0]: line for line in lines[1:] if line}
    assert shown["pci-0000-00-02-0"].split()[1:4] == ["drm.render", "yes", "/dev/dri/renderD128"]
    assert shown["usb-1-8-1-0"].split()[1:3] == ["usb", "/dev/ttyUSB0"]
    assert "more are not offered; --why tells the reasons." in lines[-1]


def test_a_disk_is_called_by_the_name_of_its_drive(shell: Shell) -> None:
    sata = shell.machine.pci("0000:00:1f.2", klass="010601", driver="ahci").ata(1)
    sata.set(model="ACME SSD 400").disk("sda", 8, 0)
    shell.machine.mount("0:5", "/")
    shell.config.write_text('[[rules]]\naction = "allow"\nwhere = {kind = "disk"}\n')

    answer = shell("devices", "--sysfs", shell.tree)

    (disk,) = (line for line in answer.out.splitlines() if line.startswith("pci-"))
    assert disk.split(maxsplit=3) == [
        *("pci-0000-00-1f-2-ata-1-0", "disk", "/dev/sda"),
        "ACME SSD 400",
    ]


def test_devices_as_json_are_the_documented_object(full: Shell) -> None:
    answer = full("devices", "--sysfs", full.tree, "--json")

    assert (answer.code, answer.err) == (0, "")
    jsonschema.validate(answer.json, SCHEMA)
    rules = {one["rule"] for one in answer.json["not_offered"]}
    assert rules == set(WHY)
    names = [one["name"] for one in answer.json["devices"]]
    assert names == sorted(names)
    assert {"pci-0000-00-02-0", "pci-0000-00-02-0-display", "usb-1-8-1-0"} <= set(names)


@pytest.mark.parametrize("machine", ["minimal", "desktop"])
def test_a_recorded_machine_answers_as_json(shell: Shell, machine: str) -> None:
    archive = str(DATA / f"{machine}.tar.gz")
    answer = shell("devices", "--sysfs", archive, "--json", TMPDIR=MEMORY)

    assert (answer.code, answer.err) == (0, "")
    jsonschema.validate(answer.json, SCHEMA)
    assert answer.json["not_offered"]


@pytest.mark.parametrize(("rule", "subject"), WHY.items())
def test_why_says_by_which_rule_and_in_a_sentence(
    full: Shell,
    rule: str,
    subject: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in full.environment.items():
        monkeypatch.setenv(name, value)

    assert main(["devices", "--sysfs", full.tree, "--why", rule]) == 0

    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["SUBJECT", "DRIVER", "RULE", "REASON"]
    (row,) = [row for row in rows if row.startswith(f"{subject} ") and f" {rule} " in row]
    reason = row.split(f" {rule} ", 1)[1]
    assert len(reason.split()) > 3


def test_why_finds_hardware_by_the_name_it_would_have(full: Shell) -> None:
    answer = full("devices", "--sysfs", full.tree, "--why", "pci-0000-00-03-0")

    (row,) = answer.out.splitlines()[1:]
    assert row.startswith("pci 0000:00:03.0")
    assert "no kernel driver is bound to this GPU" in row


def test_why_finds_an_interface_by_the_name_it_would_have(full: Shell) -> None:
    answer = full("devices", "--sysfs", full.tree, "--why", "usb-1-4-1-1")

    (row,) = answer.out.splitlines()[1:]
    assert row.startswith("1-4:1.1 ")


def test_why_says_that_a_device_is_offered(full: Shell) -> None:
    answer = full("devices", "--sysfs", full.tree, "--why", "usb-1-8-1-0")

    assert answer.out == "usb-1-8-1-0 is offered.\n"
    assert answer.code == 0


def test_why_with_nothing_to_say_says_so(full: Shell) -> None:
    answer = full("devices", "--sysfs", full.tree, "--why", "no such words")

    assert answer.out == "Nothing that was seen is withheld under 'no such words'.\n"


def test_one_device_is_shown_whole(full: Shell) -> None:
    answer = full("devices", "--sysfs", full.tree, "usb-1-8-1-0")

    assert answer.code == 0
    for line in (
        "kind        usb",
        "attributes  address = '1-8:1.0'",
        "            serial = '0001'",
        "node        /dev/ttyUSB0 (c 188:0 rw)",
    ):
        assert line in answer.out.splitlines()


def test_one_device_as_json_is_the_same_object_with_that_device(full: Shell) -> None:
    answer = full("devices", "--sysfs", full.tree, "usb-1-8-1-0", "--json")

    jsonschema.validate(answer.json, SCHEMA)
    assert [one["name"] for one in answer.json["devices"]] == ["usb-1-8-1-0"]


def test_a_device_that_is_not_offered_gives_the_reason_and_status_1(full: Shell) -> None:
    plain = full("devices", "--sysfs", full.tree, "pci-0000-00-04-0")
    as_json = full("devices", "--sysfs", full.tree, "pci-0000-00-04-0", "--json")

    assert (plain.code, as_json.code) == (1, 1)
    assert plain.out.startswith("pci-0000-00-04-0 is not offered.\n")
    assert "keeps it for a virtual machine" in plain.out
    assert as_json.json["devices"] == []
    assert [one["rule"] for one in as_json.json["not_offered"]] == ["passthrough"]


def test_a_device_that_nobody_knows_gives_status_1(full: Shell) -> None:
    answer = full("devices", "--sysfs", full.tree, "usb-9-9")

    assert answer.code == 1
    assert answer.out.splitlines() == [
        "usb-9-9 is not offered.",
        "Nothing that was seen is withheld under 'usb-9-9'.",
    ]


def test_the_domain_is_that_of_the_environment(full: Shell) -> None:
    answer = full("devices", "--sysfs", full.tree, "--json", HARDPOINT_DOMAIN="liken.sh")

    assert {one["domain"] for one in answer.json["devices"]} == {"liken.sh"}


@pytest.mark.timeout(60)
def test_a_driver_that_hangs_costs_its_devices_and_not_the_command(shell: Shell) -> None:
    shell.install_radios("radio0")
    shell.config.write_text("")
    shell.machine.usb("1-8").interface(0, driver="cp210x").node("tty", "ttyUSB0", 188, 0)
    shell.tell_radios("publish", "hang")

    answer = shell("devices", "--sysfs", shell.tree, "--json")

    assert answer.code == 0
    assert [one["name"] for one in answer.json["devices"]] == ["usb-1-8-1-0"]
    (fault,) = answer.json["faults"]
    assert fault["source"] == "driver/radios publish_devices"
    assert "no answer within 10 s" in fault["message"]


def test_a_driver_that_raises_is_named(shell: Shell) -> None:
    shell.install_radios("radio0")
    shell.tell_radios("publish", "no reception")

    answer = shell("devices", "--sysfs", shell.tree)

    assert answer.code == 0
    assert "driver/radios publish_devices: RuntimeError: no reception" in answer.out


# -- trees that are no machine --------------------------------------------------------------------


def _wrong(root: Path) -> dict[str, tuple[Path, str]]:
    (root / "empty").mkdir()
    (root / "text").write_text("no archive")
    (root / "bare/devices").mkdir(parents=True)
    (root / "bare/bus").mkdir()
    (root / "table/sys/devices").mkdir(parents=True)
    (root / "table/dev.json").write_text("[]")
    return {
        "missing": (root / "missing", "there is no such file or directory"),
        "empty": (root / "empty", "it holds no sys with devices or bus in it"),
        "text": (root / "text", "it is no tar archive, or a damaged one"),
        "bare": (root / "bare", "it looks like a sys itself: give the directory that holds it"),
        "table": (root / "table", "its dev.json has no object named nodes"),
    }


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *(("devices", name) for name in ("missing", "empty", "text", "bare", "table")),
        *((command, name) for command in ("slice", "demo") for name in ("missing", "text")),
    ],
)
def test_a_tree_that_is_no_machine_is_said_in_a_sentence(
    shell: Shell, command: str, name: str
) -> None:
    tree, what = _wrong(shell.root)[name]

    answer = shell(command, "--sysfs", str(tree))

    assert answer == Answer(1, "", f"hardpoint: {tree} is no recorded machine: {what}\n")


# -- slice ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v1", "v1beta2", "v1beta1"])
def test_slices_are_yaml_of_the_version_asked_for(full: Shell, api: str) -> None:
    answer = full("slice", "--sysfs", full.tree, "--api", api, "--node", "kitchen")

    assert (answer.code, answer.err) == (0, "")
    (found,) = yaml.safe_load_all(answer.out)
    assert (found["apiVersion"], found["kind"]) == (f"resource.k8s.io/{api}", "ResourceSlice")
    assert found["metadata"]["name"] == "kitchen-hardpoint.dev"
    assert found["spec"]["pool"]["name"] == found["spec"]["nodeName"] == "kitchen"
    (adapter,) = [one for one in found["spec"]["devices"] if one["name"] == "usb-1-8-1-0"]
    facts: dict[str, Any] = adapter["basic"] if api == "v1beta1" else adapter
    assert facts["attributes"]["serial"] == {"string": "0001"}


def test_slices_of_v1_are_what_kubernetes_takes(full: Shell) -> None:
    answer = full("slice", "--sysfs", full.tree)

    for found in yaml.safe_load_all(answer.out):
        kubernetes_validate.validate(found, "1.37", strict=True)


def test_many_devices_make_many_slices_of_one_pool(shell: Shell) -> None:
    for number in range(70):
        port = shell.machine.usb(f"1-{number // 10 + 1}.{number % 10 + 1}")
        port.interface(0, driver="cp210x").node("tty", f"ttyUSB{number}", 188, number)
    for number in range(70):
        shell.machine.pci(f"0000:01:{number // 4:02x}.{number % 4}", driver="ptp").node(
            "ptp", f"ptp{number}", 247, number
        )

    slices = shell("slice", "--sysfs", shell.tree, "--json").json

    assert [len(one["spec"]["devices"]) for one in slices] == [128, 12]
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in slices} == {2}
    assert [one["metadata"]["name"] for one in slices] == [
        "machine-hardpoint.dev",
        "machine-hardpoint.dev-00001",
    ]


def test_a_machine_without_devices_would_write_nothing(shell: Shell) -> None:
    plain, as_json = (
        shell("slice", "--sysfs", shell.tree),
        shell("slice", "--sysfs", shell.tree, "--json"),
    )

    assert plain == Answer(0, "# nothing would be written: this machine offers no device\n", "")
    assert as_json.json == []


def test_of_two_installed_frontends_dra_serves_where_the_settings_do_not_say(full: Shell) -> None:
    states = {
        one["name"]: one["state"]
        for one in full("plugins", "--json").json
        if one["role"] == "frontend"
    }

    assert states == {"deviceplugin": "disabled", "dra": "running"}


def test_a_frontend_that_cannot_run_is_said(full: Shell) -> None:
    answer = full("slice", "--sysfs", full.tree, HARDPOINT_FRONTENDS="dar")

    assert answer.code == 1
    assert "frontend/dar: the settings name it, but no installed package provides it" in answer.err


# -- attributes and plugins -----------------------------------------------------------------------


def test_attributes_are_described(shell: Shell) -> None:
    answer = shell("attributes", "--json")

    assert answer.code == 0
    by_name = {(one["driver"], one["name"]): one for one in answer.json}
    assert set(by_name["usb", "serial"]) == {
        *("driver", "name", "type", "unit", "kinds", "meaning", "source", "example")
    }
    assert ("pci_drm", "renderNode") in by_name
    assert ("(every)", "kind") in by_name


def test_attributes_are_found_by_a_piece_of_the_name(shell: Shell) -> None:
    found, none = shell("attributes", "SERIAL"), shell("attributes", "no-such")

    assert found.code == 0
    assert all("serial" in line.lower() for line in found.out.splitlines()[1:])
    assert none == Answer(1, "No such attribute.\n", "")


def test_a_driver_that_cannot_say_its_attributes_is_named(shell: Shell) -> None:
    shell.install_radios()
    shell.tell_radios("describe", "no reception")

    answer = shell("attributes", HARDPOINT_PATHS__RUN=str(shell.machine.run))

    assert answer.code == 1
    assert answer.err == (
        "hardpoint: driver/radios describe_attributes: RuntimeError: no reception\n"
    )
    assert answer.out.splitlines()[1].startswith("(every)")


def test_plugins_say_what_runs_and_where_it_comes_from(shell: Shell) -> None:
    shell.install_radios()
    shell.config.write_text("")

    answer = shell("plugins", "--json")

    assert answer.code == 0
    by_name = {(one["role"], one["name"]): one for one in answer.json}
    assert by_name["driver", "radios"]["distribution"] == "radios"
    assert {by_name["driver", n]["state"] for n in ("pci_drm", "radios", "usb")} == {"running"}
    assert by_name["frontend", "dra"]["state"] == "running"


def test_plugins_say_why_one_does_not_run_while_the_others_do(shell: Shell) -> None:
    shell.config.write_text('drivers = ["usb", "pci_drm", "usbb"]\n[driver.usb]\nno_such_key = 1\n')

    answer = shell("plugins", "--json")

    states = {one["name"]: (one["state"], one["reason"]) for one in answer.json}
    assert answer.code == 1
    assert states["pci_drm"] == ("running", "")
    assert states["usb"][0] == "refused"
    assert "no_such_key" in states["usb"][1]
    assert states["usbb"][0] == "missing"
    assert "usb" in states["usbb"][1]


def test_a_driver_that_does_not_run_is_said_beside_the_devices(full: Shell) -> None:
    full.config.write_text("[driver.usb]\nno_such_key = 1\n")

    answer = full("devices", "--sysfs", full.tree)

    assert answer.code == 0
    assert "! driver/usb: refused: its settings: no_such_key" in answer.out
    assert answer.err == ""


def test_a_slice_without_the_devices_of_a_driver_says_so(full: Shell) -> None:
    full.config.write_text("[driver.usb]\nno_such_key = 1\n")

    answer = full("slice", "--sysfs", full.tree)

    assert answer.code == 1
    assert "hardpoint: driver/usb: refused: its settings: no_such_key" in answer.err


def test_a_policy_that_is_not_there_is_said_beside_the_devices(full: Shell) -> None:
    full.config.write_text('policies = ["guard"]\n')

    (fault,) = full("devices", "--sysfs", full.tree, "--json").json["faults"]

    assert fault["source"] == "policy/guard"
    assert fault["cost"] == "the agent offers nothing while it does not run"


def test_a_policy_whose_section_is_wrong_is_said_beside_the_devices(full: Shell) -> None:
    full.config.write_text('policies = ["drain"]\n[policy.drain]\nlongest_grace = 3\n')

    (fault,) = full("devices", "--sysfs", full.tree, "--json").json["faults"]

    assert fault["source"] == "policy/drain"
    assert fault["message"].startswith(
        "refused: its settings: longest_grace: unknown key; the keys"
    )
    assert fault["cost"] == "the agent offers nothing while it does not run"


# -- doctor ---------------------------------------------------------------------------------------


def test_the_doctor_says_what_to_do(shell: Shell) -> None:
    (shell.kubelet).mkdir()
    answer = shell("doctor", "--json", HARDPOINT_PATHS__SYS=str(shell.root / "nothing"))

    assert answer.code == 1
    assert all(set(one) == {"level", "subject", "found", "do"} for one in answer.json)
    (sysfs,) = [one for one in answer.json if one["subject"] == "sysfs"]
    assert (sysfs["level"], sysfs["do"]) == ("fail", f"mount sysfs at {shell.root}/nothing")
    (agent,) = [one for one in answer.json if one["subject"] == "agent"]
    assert (agent["level"], agent["found"]) == ("warn", "does not run")


def test_the_doctor_knows_a_state_that_others_can_read(shell: Shell) -> None:
    shell.state.mkdir(mode=0o755)
    shell.state.chmod(0o755)

    found = [one for one in shell("doctor", "--json").json if one["subject"] == "state"]

    assert [(one["level"], one["do"]) for one in found] == [("warn", f"chmod 0700 {shell.state}")]


def test_the_doctor_finds_a_file_where_a_socket_should_be(shell: Shell) -> None:
    at = shell.kubelet / "pod-resources/kubelet.sock"
    at.parent.mkdir(parents=True)
    at.write_text("")

    found = [one for one in shell("doctor", "--json").json if one["subject"] == "pod-resources"]

    assert [(one["level"], one["do"]) for one in found] == [
        ("fail", "mount the directory, not a file")
    ]


def test_the_doctor_names_plugins_that_do_not_run(shell: Shell) -> None:
    shell.config.write_text('policies = ["guard"]\n[driver.usb]\nno_such_key = 1\n')

    levels = {one["subject"]: one["level"] for one in shell("doctor", "--json").json}

    assert (levels["driver/usb"], levels["policy/guard"]) == ("warn", "fail")
