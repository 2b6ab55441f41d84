"""`moonpool replay`: plays a request trace against a live cluster and measures what came."""
