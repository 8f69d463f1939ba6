"""Tools for tests of plugins: fake machines, a fake kubelet and API server, contract suites."""
