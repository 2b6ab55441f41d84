"""Load with known answers and what a cluster holds: for `bench soak` and the fault tests."""
