"""A stranger's policies, installed as a distribution of its own, for commands to look at."""

from __future__ import annotations

from shell import Shell

POLICIES = '''
"""A stranger's policies: a source of grants, one of evidence, and a reaper."""
import time
from hardpoint import Evidence, hookimpl


class Policy:
    def __init__(self, node, settings):
        pass


class Radios(Policy):
    kinds = ("radio", "radio.*")

    @hookimpl
    def grant_devices(self):
        return ()


class Gpus(Radios):
    kinds = ("gpu",)


class Evident(Policy):
    @hookimpl
    def find_users(self, release):
        return Evidence.none(time.monotonic())


class OfGpus(Evident):
    kinds = ("gpu",)


class Blind(Evident):
    not_applicable = "the processes of other pods are not seen here"


class Broken(Evident):
    @property
    def not_applicable(self):
        raise RuntimeError("no idea")


class Reaping(Policy):
    @hookimpl
    def reap_pod(self, pod):
        return None
'''
NAMES = ("Radios", "Gpus", "Evident", "OfGpus", "Blind", "Broken", "Reaping")


def run(shell: Shell, *policies: str) -> None:
    """Let policies be named that a stranger has installed."""
    shell.install_radios("radio0")
    packages = shell.root / "packages"
    (info := packages / "strange-1.0.dist-info").mkdir(parents=True)
    (packages / "strange.py").write_text(POLICIES)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    points = "".join(f"{name.lower()} = strange:{name}\n" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[hardpoint.policies]\n{points}")
    named = ", ".join(f'"{one}"' for one in policies)
    shell.config.write_text(f'drivers = ["radios"]\npolicies = [{named}]\n')
