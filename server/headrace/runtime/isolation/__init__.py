"""Devices in processes of their own: `ISOLATION=PROCESS`.

A device's plugin then lives in a *worker*, a process that the server starts, watches and starts
again. In the server a plugin like any other takes its place: it queues, admits and counts, and
hands each run to the worker. So a native crash of a backend costs the requests that it was running
and no others.

Nothing is pickled. Messages are JSON of bounded size with bytes behind it; tensors lie in memory
that both processes map.
"""
