"""Makes the pages of docs/ that are made: from the code, and from what a cluster answers."""
