"""Measures against goals: the machine's limits, other engines, the cost of serving."""
