"""The committed message classes are what the .proto files say, and load together."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FRAMEWORK = Path(__file__).parents[3] / "framework"

SERVICES = {
    "deviceplugin_v1beta1": {
        "v1beta1.Registration": ["Register"],
        "v1beta1.DevicePlugin": [
            "GetDevicePluginOptions",
            "ListAndWatch",
            "GetPreferredAllocation",
            "Allocate",
            "PreStartContainer",
        ],
    },
    "dra_v1": {
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": [
            "NodePrepareResources",
            "NodeUnprepareResources",
        ]
    },
    "dra_v1beta1": {
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin": [
            "NodePrepareResources",
            "NodeUnprepareResources",
        ]
    },
    "dra_health_v1": {"v1.DRAResourceHealth": ["NodeWatchResources"]},
    "dra_health_v1alpha1": {"v1alpha1.DRAResourceHealth": ["NodeWatchResources"]},
    "pluginregistration_v1": {
        "pluginregistration.Registration": ["GetInfo", "NotifyRegistrationStatus"]
    },
    "podresources_v1": {"v1.PodResourcesLister": ["List", "GetAllocatableResources", "Get"]},
}


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_protos", FRAMEWORK / "generate_protos.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _messages(name: str) -> ModuleType:
    return importlib.import_module(f"hardpoint.kubelet.{name}_pb2")


def test_generating_again_gives_the_same_bytes(tmp_path: Path) -> None:
    _generator().generate(tmp_path)

    made = {p.name: p.read_bytes() for p in (tmp_path / "hardpoint/kubelet").iterdir()}
    kept = FRAMEWORK / "src/hardpoint/kubelet"
    assert made == {p.name: p.read_bytes() for p in kept.glob("*_pb2.py*")}
    assert len(made) == 2 * len(SERVICES)


def test_every_api_loads_in_one_process_under_its_name_on_the_wire() -> None:
    found = {
        name: {
            service.full_name: [method.name for method in service.methods]
            for service in _messages(name).DESCRIPTOR.services_by_name.values()
        }
        for name in SERVICES
    }

    assert found == SERVICES


@pytest.mark.parametrize(
    ("name", "message", "numbers"),
    [
        (
            "dra_v1",
            "Device",
            {
                "request_names": 1,
                "pool_name": 2,
                "device_name": 3,
                "cdi_device_ids": 4,
                "share_id": 5,
            },
        ),
        (
            "dra_v1beta1",
            "Device",
            {"request_names": 1, "pool_name": 2, "device_name": 3, "cdi_device_ids": 4},
        ),
        ("dra_v1", "Claim", {"namespace": 1, "uid": 2, "name": 3}),
        (
            "dra_health_v1",
            "DeviceHealth",
            {
                "device": 1,
                "health": 2,
                "last_updated_time": 3,
                "health_check_timeout_seconds": 4,
                "message": 5,
            },
        ),
        (
            "pluginregistration_v1",
            "PluginInfo",
            {"type": 1, "name": 2, "endpoint": 3, "supported_versions": 4},
        ),
        (
            "deviceplugin_v1beta1",
            "ContainerAllocateResponse",
            {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5},
        ),
        (
            "podresources_v1",
            "ContainerResources",
            {"name": 1, "devices": 2, "cpu_ids": 3, "memory": 4, "dynamic_resources": 5},
        ),
        (
            "podresources_v1",
            "ClaimResource",
            {
                "cdi_devices": 1,
                "driver_name": 2,
                "pool_name": 3,
                "device_name": 4,
                "share_id": 5,
            },
        ),
    ],
)
def test_fields_have_the_kubelets_numbers(name: str, message: str, numbers: object) -> None:
    described = _messages(name).DESCRIPTOR.message_types_by_name[message]

    assert {field.name: field.number for field in described.fields} == numbers


def test_the_generated_code_runs_on_the_lowest_protobuf_that_we_allow() -> None:
    text = (FRAMEWORK / "src/hardpoint/kubelet/dra_v1_pb2.py").read_text()
    line = next(line for line in text.splitlines() if "Protobuf Python Version" in line)
    version = line.rpartition(" ")[2]

    assert f'"protobuf>={version},' in (FRAMEWORK / "pyproject.toml").read_text()


def test_the_package_alone_does_not_load_grpc() -> None:
    code = "import sys, hardpoint.kubelet, hardpoint.kubelet.sockets; print('grpc' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(FRAMEWORK / "src")},
    )

    assert ran.stdout.strip() == "False"
