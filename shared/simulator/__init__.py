"""PURE but for reading a trace: the cluster on virtual time."""
