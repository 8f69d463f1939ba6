"""Connections of ``hardpoint.kube``: the one module that imports a Kubernetes client, lightkube.

It is imported inside functions: ``import hardpoint`` stays cheap, and a node without an API server
never pays for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hardpoint._kube import Json
from hardpoint.errors import KubeDenied

if TYPE_CHECKING:
    from httpx2 import Response
    from lightkube.config.kubeconfig import SingleConfig
    from lightkube.core.generic_client import GenericAsyncClient

WATCH_SILENCE = 150.0
"""Seconds without an event or bookmark (the server sends one a minute) before a watch is dead."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; ``path`` is relative to the server's URL. A stream is a watch."""

    method: str
    path: str
    body: Json | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    stream: bool = False
    patch: str = "apply-patch+yaml"
    """What the body of a ``PATCH`` is."""

    def __str__(self) -> str:
        return f"{'watch of' if self.stream else self.method} {self.path}"


class Session:
    """One HTTP client, the files that it was made from, and the bearer token of the moment."""

    def __init__(self, config: SingleConfig, trust_env: bool, timeout: float) -> None:
        from httpx2 import Timeout
        from lightkube.config.client_adapter import ConnectionParams
        from lightkube.config.models import User
        from lightkube.core.generic_client import GenericAsyncClient

        user = config.user or User()
        named = (config.cluster.certificate_auth, user.client_cert, user.client_key)
        self._files = [str(config.abs_file(path)) for path in named if path]
        self._files += [str(config.fname)] if config.fname else []
        self._timeout = timeout
        self._made = [_stamp(path) for path in self._files]
        self.token_file = str(config.abs_file(user.token_file)) if user.token_file else ""
        self._token = user.token or ""
        self._token_stamp: object = ()  # no file's
        self.read_token()
        bare = msgspec.structs.replace(user, token=None, token_file=None)
        self.client: GenericAsyncClient = GenericAsyncClient(
            ConnectionParams(timeout=Timeout(timeout), trust_env=trust_env),
            config._replace(user=bare),
        )

    async def send(self, request: Request) -> Response:
        """Send one request; raises what ``transport_errors`` lists.

        And ``KubeDenied`` where a kubeconfig's program for tokens answers anything but one, which
        the client does not check.
        """
        from httpx2 import Timeout
        from lightkube.core.generic_client import BasicRequest

        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if request.method == "PATCH":
            headers["Content-Type"] = f"application/{request.patch}"
        basic = BasicRequest(request.method, request.path, None, dict(request.query), request.body)
        basic.headers = headers
        basic.timeout = Timeout(self._timeout, read=WATCH_SILENCE) if request.stream else None
        prepared = self.client.build_adapter_request(basic)
        try:
            answer: Response = await self.client.send(prepared, request.stream)  # type: ignore[no-untyped-call]
        except (LookupError, TypeError, ValueError) as error:
            why = f"{request}: no credential can be made: {type(error).__name__}"
            raise KubeDenied(why) from None  # its answer, which the error quotes, may be a token
        return answer

    async def close(self) -> None:
        """Close its connections."""
        await self.client.close()  # type: ignore[no-untyped-call]

    def unchanged(self) -> bool:
        """Say whether certificates and kubeconfig are those it was made from."""
        return [_stamp(path) for path in self._files] == self._made

    def read_token(self, renew: bool = False) -> None:
        """Read the token file if it changed: a projected token lives an hour, we live for years."""
        if not self.token_file:
            return
        stamp = _stamp(self.token_file)
        if renew or stamp != self._token_stamp:
            try:
                self._token = _token(self.token_file)
            except (OSError, ValueError) as error:
                if not self._token:
                    raise KubeDenied(f"cannot use {self.token_file}: {said(error)}") from None
                return  # the old one may live a little longer
            self._token_stamp = stamp


def _token(path: str) -> str:
    """Read a bearer token. Raises ``ValueError``, without a word of it, for what cannot be one."""
    token = Path(path).read_bytes().strip().decode("latin-1")
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise ValueError("not a token")
    return token


def _stamp(path: str) -> tuple[int, int, int] | None:
    """Return what changes with a file: projected volumes swap a link, so the inode does too."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


# -- configuration --------------------------------------------------------------------------------


def service_account(directory: str | Path) -> SingleConfig:
    """Return the pod's configuration. Raises ``KubeDenied`` without a service account."""
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.core.exceptions import ConfigError

    try:
        return _context(KubeConfig.from_service_account(directory).get())
    except (ConfigError, KeyError, OSError) as error:
        raise KubeDenied(f"no service account in {directory}: {said(error)}") from error


def kubeconfig(path: str | Path) -> SingleConfig:
    """Return a file's current context. Raises ``KubeDenied`` where it cannot be used."""
    from lightkube.config.kubeconfig import KubeConfig

    try:
        return _context(KubeConfig.from_file(path).get())
    except Exception as error:  # noqa: BLE001 - YAML of any shape; its text may hold a secret
        raise KubeDenied(f"{path} is not a usable kubeconfig: {type(error).__name__}") from None


def address(url: str, token: str | Path | None, ca: str | Path | None) -> SingleConfig:
    """Return the configuration for a URL."""
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.config.models import Cluster, User

    cluster = Cluster(
        server=url,
        certificate_auth=os.path.abspath(ca) if ca else None,
        insecure=url.startswith("http://"),  # no TLS at all: 5 MiB of root certificates less
    )
    user = User(token_file=os.path.abspath(token) if token else None)
    return _context(KubeConfig.from_one(cluster=cluster, user=user).get())


def _context(found: SingleConfig | None) -> SingleConfig:
    if found is None:
        raise KubeDenied("the kubeconfig has no current context")
    return found


def transport_errors() -> tuple[type[Exception], ...]:
    """Return what the client raises when there is no whole answer."""
    from httpx2 import HTTPError, InvalidURL, StreamError
    from lightkube.core.exceptions import ConfigError

    return (HTTPError, InvalidURL, StreamError, ConfigError, OSError, msgspec.MsgspecError)


def said(error: BaseException) -> str:
    """Return an error in a few words.

    Never a header, which h11 quotes where it is malformed, nor what a program for tokens said.
    """
    name, text = type(error).__name__, str(error)
    if not text and name in ("ConnectError", "ReadError", "WriteError"):  # as TLS leaves it
        text = "the connection broke off"
    if text.startswith("Exec "):  # lightkube: "Exec <command> returned <status>: <its stderr>"
        text = text.partition(": ")[0]
    return name if "header" in text.lower() else f"{name}: {text:.200}".rstrip(": ")
