"""What a cluster looks like now: one model for the dashboard and `moonpool top`."""
