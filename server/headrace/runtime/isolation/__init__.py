"""Devices in processes of their own: `ISOLATION=PROCESS`.

A device's plugin then lives in a *worker*, a process that the server starts, watches and starts
again. What the server has in its place is a plugin like any other, which queues, admits and counts
by itself and hands each run to the worker. So a native crash of a backend costs the requests that
it was running and no others.

Nothing is pickled. Messages are JSON of bounded size with bytes behind it; tensors lie in memory
that both processes map.
"""
