"""NATS and Valkey as children of the launcher or of a test, on free ports, data in one folder."""
