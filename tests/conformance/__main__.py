"""Write down what a real API server answers: ``PYTHONPATH=tests python -m conformance 1.37``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
from cluster.node import Cluster
from cluster.programs import release
from conformance.answers import write
from conformance.api_server_cases import CASES
from conformance.servers import real_api


async def answered(kubeconfig: Path) -> dict[str, Any]:
    """Ask a server everything; each case under names of its own."""
    answers: dict[str, Any] = {}
    for name, case in CASES.items():
        async with real_api(kubeconfig) as api:
            answers[name] = await case(api)
    return answers


def main(version: str) -> None:
    state = Path(tempfile.mkdtemp(prefix="hpc-"))
    try:
        with Cluster.up(state, release(version)) as cluster:
            write(version, anyio.run(answered, cluster.kubeconfig))
    finally:
        shutil.rmtree(state, ignore_errors=True)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        main(each)
