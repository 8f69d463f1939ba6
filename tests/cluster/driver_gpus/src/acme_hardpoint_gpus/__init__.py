"""Acme's GPUs: the stand-in of the test kit, installed as a third party's driver is."""

from hardpoint.testing.gpus import GpuStandIn as AcmeGpu

__all__ = ["AcmeGpu"]
