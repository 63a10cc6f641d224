"""The server's side of a device in a process of its own."""
