"""Credentials that age: an authority that is replaced, a plugin that is run for a token."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.streams.tls import TLSListener, TLSStream

from hardpoint.errors import KubeDenied, KubeUnreachable
from hardpoint.kube import NODES, Kube
from hardpoint.testing.api_server import FakeApiServer

NODE = "node-a"


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        running.add_node(NODE)
        yield running


# -- the authority --------------------------------------------------------------------------------


class Authority:
    """A certificate of 127.0.0.1 that is its own authority."""

    def __init__(self, root: Path, name: str) -> None:
        self.certificate, self.key = root / f"{name}.crt", root / f"{name}.key"
        words = "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2"
        names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-out", str(self.certificate), "-keyout", str(self.key)]
        subprocess.run(["openssl", *words.split(), *names, *files], check=True, capture_output=True)

    def install(self, at: Path) -> None:
        """Put the certificate in place as the kubelet does: another file under the name."""
        new = at.with_suffix(".new")
        shutil.copy(self.certificate, new)
        new.rename(at)


@asynccontextmanager
async def encrypted(
    server: FakeApiServer, authority: Authority, port: int = 0
) -> AsyncIterator[int]:
    """Serve the API under TLS; yields the port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.certificate, authority.key)
    behind = int(server.url.rpartition(":")[2])
    listener = await anyio.create_tcp_listener(
        local_host="127.0.0.1", local_port=port, reuse_port=True
    )

    async def relay(stream: TLSStream) -> None:
        async with (
            stream,
            await anyio.connect_tcp("127.0.0.1", behind) as plain,
            anyio.create_task_group() as both,
        ):
            both.start_soon(_copy, stream, plain, both.cancel_scope)
            both.start_soon(_copy, plain, stream, both.cancel_scope)

    tls = TLSListener(listener, context, standard_compatible=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tls.serve, relay)
        yield int(listener.extra(anyio.abc.SocketAttribute.local_port))
        tasks.cancel_scope.cancel()
    await tls.aclose()


async def _copy(
    source: anyio.abc.ByteReceiveStream,
    sink: anyio.abc.ByteSendStream,
    scope: anyio.CancelScope,
) -> None:
    try:
        async for chunk in source:
            await sink.send(chunk)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    scope.cancel()


@pytest.mark.field_case("I04")
@pytest.mark.skipif(not shutil.which("openssl"), reason="makes certificates with openssl")
async def test_an_authority_that_is_replaced_is_read_again(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """A cluster's CA is rotated under a client that lives for years."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "ca.crt"
    old.install(trusted)
    async with encrypted(server, old) as port:
        kube = Kube.at(f"https://127.0.0.1:{port}", ca_file=trusted, timeout=5)
        assert (await kube.get(NODES, NODE))["kind"] == "Node"
    async with kube, encrypted(server, new, port):
        with pytest.raises(KubeUnreachable):
            await kube.get(NODES, NODE)  # whoever this is, it is not the server we know

        new.install(trusted)

        assert (await kube.get(NODES, NODE))["kind"] == "Node"


# -- a plugin that gives tokens -------------------------------------------------------------------


def kubeconfig(root: Path, url: str, script: str) -> Path:
    """Write a kubeconfig whose user runs a program for its token, and return it."""
    (root / "plugin.py").write_text(script)
    path = root / "config"
    path.write_text(
        "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
        "users:\n- name: u\n  user:\n    exec:\n"
        "      apiVersion: client.authentication.k8s.io/v1beta1\n"
        f"      command: '{sys.executable}'\n      args: ['{root / 'plugin.py'}']\n"
    )
    return path


@pytest.mark.field_case("I03", "I04")
async def test_a_token_of_a_plugin_is_asked_for_again_when_it_is_refused(
    server: FakeApiServer, tmp_path: Path
) -> None:
    script = f"print('{{\"status\": {{\"token\": \"' + open('{tmp_path}/now').read() + '\"}}}}')"
    path = kubeconfig(tmp_path, server.url, script)
    async with Kube.from_kubeconfig(path) as kube:
        for token in ("first", "second"):
            (tmp_path / "now").write_text(token)
            server.require_token(token)

            assert (await kube.get(NODES, NODE))["kind"] == "Node"


@pytest.mark.parametrize("answer", ["", "{", "[]", "{}", '{"status": 3}', '{"status": {}}'])
async def test_a_plugin_that_gives_no_token_is_an_error_of_ours(
    server: FakeApiServer, tmp_path: Path, answer: str
) -> None:
    path = kubeconfig(tmp_path, server.url, f"print({answer!r})")
    async with Kube.from_kubeconfig(path) as kube:
        with pytest.raises(KubeDenied, match="credential"):
            await kube.get(NODES, NODE)


async def test_what_a_plugin_that_fails_says_is_not_repeated(
    server: FakeApiServer, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path, server.url, "import sys; sys.exit('token=s3cret expired')")
    async with Kube.from_kubeconfig(path) as kube:
        with pytest.raises(KubeUnreachable, match=r"returned 1$") as failed:
            await kube.get(NODES, NODE)

    assert "s3cret" not in str(failed.value)
