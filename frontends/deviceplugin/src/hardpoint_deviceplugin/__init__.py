"""The kubelet's device plugin API for Hardpoint. ``DevicePlugin`` is the plugin's class."""

from __future__ import annotations

from hardpoint_deviceplugin.frontend import DevicePlugin

__all__ = ["DevicePlugin"]
