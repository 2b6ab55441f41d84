"""What tests share: servers, clusters, deadlines. Imported by tests, never by the product."""
