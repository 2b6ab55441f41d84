"""What a process tells of itself: metrics, traces and structured logs."""
