"""The common code of moonpool; imports go downwards only (docs/architecture.md)."""
