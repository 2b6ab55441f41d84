"""`moonpool assess`: whether sharing a KV cache pays for given requests on given machines."""
