"""Starts, supervises and ends the processes of a cluster on this machine."""
