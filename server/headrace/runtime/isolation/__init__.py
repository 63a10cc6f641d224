"""Devices in processes of their own: `ISOLATION=PROCESS`.

The device's plugin then lives in a *worker*, a process that the server starts, watches and
restarts. In the server, an ordinary plugin represents the device: it queues, admits and counts
requests, and hands each run to the worker. So a native crash of a backend fails only the requests
that it was running.

Nothing is pickled. Messages are JSON of bounded size followed by bytes. Tensors lie in memory that
both processes map.
"""
