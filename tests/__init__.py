"""The tests of moonpool."""
