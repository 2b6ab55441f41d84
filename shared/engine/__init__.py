"""The model loop in torch: knows no messages, no bus, no settings."""
