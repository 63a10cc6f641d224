"""``headrace tune``: the device, streams, threads and batch that answer most requests in time."""
