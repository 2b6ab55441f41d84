"""The services of moonpool: one process each, they meet only on the bus."""
