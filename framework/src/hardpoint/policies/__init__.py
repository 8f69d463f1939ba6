"""Policies that come with the framework: each loaded like anyone else's, and only where named."""
