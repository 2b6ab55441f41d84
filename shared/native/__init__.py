"""C sources built on the host that runs them. Knows nothing of what they compute."""
