"""Measurements with bars; each prints JSON."""
