"""The messages and the shared memory between the server and a worker."""
