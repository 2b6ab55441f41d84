"""What conductors and decode instances both need around the pure decisions in shared.scheduling."""
