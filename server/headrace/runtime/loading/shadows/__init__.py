"""Shadows: a share of a network's requests is also given to another version or device, after its
callers have their replies, and the answers are compared.

A shadow takes what is left over. One thread for all shadows has one request run at a time, in spare
time (`SpareTime`). A request is dropped if too many wait, or if half of the device's queue is full.
"""
