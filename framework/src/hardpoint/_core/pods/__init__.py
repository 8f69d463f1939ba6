"""Who has what: the kubelet's pods, and those that must let go."""
