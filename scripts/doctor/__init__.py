"""What `moonpool doctor` looks at: the machine, its ways to peers, the servers, the model."""
