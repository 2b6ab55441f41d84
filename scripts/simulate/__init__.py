"""What `moonpool simulate` prints: tables and plots of simulated results."""
