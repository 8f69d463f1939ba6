"""The kubelet's side of the wire: its protocols, and thin helpers to serve and call them.

``*_pb2`` are the messages, one module per API and version, loadable together in one process.
``services`` turns descriptors into handlers and calls, ``server`` serves a unix socket without
stealing anybody else's, ``client`` dials one, ``pod_resources`` asks which pod holds what,
``sockets`` is what all of them know of paths, and ``work`` keeps what a call asked for going when
its caller hangs up. gRPC is loaded by the modules that need it, so import
them where they are used: it costs 12 MiB that a command-line call should not pay.
"""

from __future__ import annotations
