"""The counters of devices and networks."""
