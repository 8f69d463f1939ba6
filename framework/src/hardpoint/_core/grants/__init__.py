"""Devices that are lent for a time: grants, releases, and what policies see of them."""
