"""The ``hardpoint`` command: one module per subcommand, each with ``--json`` where it answers.

Read commands work with no agent running, on a workstation, and from a recorded tree.
"""
