"""What prefill and decode processes are made of: promises, loops, the way to the node's pool."""
