"""Makes credentials: NATS users, a Redis ACL, certificates; a folder for each who needs some."""
