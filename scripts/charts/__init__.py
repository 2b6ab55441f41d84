"""Charts of results: as a PNG, or in an HTML page that needs nothing else."""
