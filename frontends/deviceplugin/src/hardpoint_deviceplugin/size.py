"""How long a list to the kubelet may be: it takes 4 MiB, gRPC's default for a Go client."""

from __future__ import annotations

LARGEST_LIST = 3_670_016
"""Bytes, 3.5 MiB: half a MiB is left to what a later kubelet may want beside it."""

LARGEST_DEVICE = 85
"""Bytes of one with an id of 63 characters, ``Unhealthy``, with a NUMA node up to 1023."""

MOST_IDS = LARGEST_LIST // LARGEST_DEVICE
