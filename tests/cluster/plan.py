"""What a cluster is made of: its files and the command line of each program. Nothing is run here.

The cluster has a network namespace of its own, so every program listens where it does by custom.
Nodes are addresses of its loopback interface, from a block that is set aside for documentation
(RFC 5737).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

API_PORT = 6443
MOST_NODES = 8
"""Of one cluster; they share a block of 256 addresses for pods (RFC 5737)."""
_LENGTH = 32 - (256 // MOST_NODES - 1).bit_length()
SUPERUSER = "admin"
_ETCD = "http://127.0.0.1:2379"
_ETCD_PEER = "http://127.0.0.1:2380"


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster as it was asked for. ``state`` is its directory; keep the path short: it holds
    sockets."""

    state: str
    kube: str
    tools: str
    runc: str
    images: str
    kubelet: str
    """The multi-call binary that kubelets are taken from: an older one for skew."""
    nodes: tuple[str, ...] = ("n0",)
    emulate: str = ""
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    kubelet_feature_gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_config: str = ""
    outside: int = 0
    """The port on the host's loopback under which the API server is reached."""
    keeper: int = 0
    """The process whose life the cluster's is; it is in the names of cgroups."""

    def at(self, *names: str) -> Path:
        return Path(self.state, *names)

    def save(self) -> None:
        self.at("plan.json").write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(state: str) -> Plan:
        raw = json.loads(Path(state, "plan.json").read_text())
        return Plan(**raw | {"nodes": tuple(raw["nodes"])})


def address(node: str) -> str:
    """Return a node's address: ``n0`` is 192.0.2.10."""
    return f"192.0.2.{10 + int(node.removeprefix('n'))}"


def cgroup(plan: Plan, node: str) -> str:
    return f"hardpoint-{plan.keeper}-{node}"


# -- the control plane ----------------------------------------------------------------------------


def etcd(plan: Plan) -> list[str]:
    return [
        plan.kube,
        "etcd",
        f"--data-dir={plan.at('etcd')}",
        "--unsafe-no-fsync",  # lost with the test anyway
        "--log-level=warn",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        f"--listen-peer-urls={_ETCD_PEER}",
        f"--initial-advertise-peer-urls={_ETCD_PEER}",
        f"--initial-cluster=default={_ETCD_PEER}",
    ]


def apiserver(plan: Plan) -> list[str]:
    pki = plan.at("pki")
    words = [
        plan.kube,
        "kube-apiserver",
        f"--etcd-servers={_ETCD}",
        "--bind-address=127.0.0.1",
        "--advertise-address=192.0.2.1",  # else it looks for a default route, which there is not
        f"--secure-port={API_PORT}",
        f"--cert-dir={pki}",
        f"--token-auth-file={pki}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/accounts.pub",
        f"--service-account-signing-key-file={pki}/accounts.key",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
        f"--audit-policy-file={plan.at('audit-policy.json')}",
        f"--audit-log-path={plan.at('logs', 'audit.log')}",
        "--audit-log-mode=blocking",  # a test reads what a call has left as soon as it is answered
        *_versions(plan),
    ]
    return [*words, f"--runtime-config={plan.runtime_config}"] if plan.runtime_config else words


def controller_manager(plan: Plan) -> list[str]:
    return [
        plan.kube,
        "kube-controller-manager",
        f"--kubeconfig={plan.at('kube-controller-manager.kubeconfig')}",
        f"--service-account-private-key-file={plan.at('pki', 'accounts.key')}",
        f"--root-ca-file={plan.at('pki', 'apiserver.crt')}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--kube-api-qps=1000",  # with the default it takes 5 s more to make its own accounts
        "--kube-api-burst=1000",
        "--bind-address=127.0.0.1",
        f"--cert-dir={plan.at('pki')}",
        "--node-monitor-grace-period=20s",
        *_versions(plan),
    ]


def scheduler(plan: Plan) -> list[str]:
    return [
        plan.kube,
        "kube-scheduler",
        f"--kubeconfig={plan.at('kube-scheduler.kubeconfig')}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--cert-dir={plan.at('pki')}",
        *_versions(plan),
    ]


def _versions(plan: Plan) -> list[str]:
    gates = ",".join(f"{name}={str(on).lower()}" for name, on in plan.feature_gates.items())
    words = [f"--feature-gates={gates}"] if gates else []
    return [*words, f"--emulated-version=kube={plan.emulate}"] if plan.emulate else words


def users(nodes: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return who has a token: name of the file, user name, group."""
    known = {
        SUPERUSER: (SUPERUSER, "system:masters"),
        "kube-controller-manager": ("system:kube-controller-manager", ""),
        "kube-scheduler": ("system:kube-scheduler", ""),
    }
    return known | {node: (f"system:node:{node}", "system:nodes") for node in nodes}


def kubeconfig(plan: Plan, user: str, token: str, port: int = API_PORT) -> str:
    """Return a kubeconfig for inside, or for the host by the ``outside`` port."""
    authority = str(plan.at("pki", "apiserver.crt"))
    server = {"server": f"https://127.0.0.1:{port}", "certificate-authority": authority}
    context = {"cluster": "test", "user": user}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": context}],
        }
    )


def audit_policy() -> dict[str, Any]:
    """Write down what service accounts of ours ask for; nobody else."""
    rules = [
        {
            "level": "Request",  # says with which grace period
            "userGroups": ["system:serviceaccounts:hardpoint"],
            "verbs": ["delete"],
            "resources": [{"group": "", "resources": ["pods"]}],
        },
        {"level": "Metadata", "userGroups": ["system:serviceaccounts:hardpoint"]},
        {"level": "None"},
    ]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": rules,
    }


# -- a node ---------------------------------------------------------------------------------------

_CONTAINERD = """\
version = 3
root = "{node}/containerd"
state = "{node}/run"
disabled_plugins = [{disabled}]

[grpc]
address = "{node}/run/containerd.sock"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "localhost/pause:1"

[plugins."io.containerd.cri.v1.runtime"]
cdi_spec_dirs = ["{node}/etc-cdi", "{node}/cdi"]
restrict_oom_score_adj = true # CAP_SYS_RESOURCE may be missing
disable_apparmor = true
netns_mounts_under_state_dir = true
enable_unprivileged_ports = false # this and the next write sysctls, which may be read-only
enable_unprivileged_icmp = false

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
Root = "{node}/run/runc"
SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{tools}"]
conf_dir = "{node}/cni"
use_internal_loopback = true
"""
_NOT_NEEDED = (
    *(f"snapshotter.v1.{name}" for name in ("btrfs", "zfs", "devmapper", "blockfile", "erofs")),
    "nri.v1.nri",
    "tracing.processor.v1.otlp",
    "internal.v1.tracing",
)


def containerd(plan: Plan, node: str) -> str:
    """Return a node's containerd configuration."""
    disabled = ", ".join(f'"io.containerd.{name}"' for name in _NOT_NEEDED)
    facts = {"node": plan.at(node), "runc": plan.runc, "tools": plan.tools}
    return _CONTAINERD.format(disabled=disabled, **facts)


def pod_network(plan: Plan, node: str) -> dict[str, Any]:
    """Return a CNI configuration: a bridge in the cluster's own network, no way out of it."""
    number = int(node.removeprefix("n"))
    addresses = {
        "type": "host-local",
        "dataDir": str(plan.at(node, "addresses")),
        "ranges": [[{"subnet": f"198.51.100.{256 // MOST_NODES * number}/{_LENGTH}"}]],
    }
    bridge = {"type": "bridge", "bridge": f"pods-{node}", "isGateway": False, "ipMasq": False}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge | {"ipam": addresses}]}


def kubelet_configuration(plan: Plan, node: str) -> dict[str, Any]:
    return {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "staticPodPath": str(plan.at(node, "static")),
        "address": address(node),
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup(plan, node)}",
        "containerRuntimeEndpoint": f"unix://{plan.at(node, 'run', 'containerd.sock')}",
        "resolvConf": "",
        "evictionHard": dict.fromkeys(
            ("memory.available", "nodefs.available", "imagefs.available"), "0%"
        ),
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "1s",
        "featureGates": dict(plan.kubelet_feature_gates or plan.feature_gates),
    }


def kubelet(plan: Plan, node: str) -> list[str]:
    return [
        plan.kubelet,
        "kubelet",
        f"--config={plan.at(node, 'kubelet.json')}",
        "--root-dir=/var/lib/kubelet",
        f"--cert-dir={plan.at(node, 'pki')}",
        f"--hostname-override={node}",
        f"--node-ip={address(node)}",
        f"--kubeconfig={plan.at(f'{node}.kubeconfig')}",
    ]
