"""How long tests wait. A slow machine is only slow."""

PATIENCE_SECONDS = 300.0
"""How long a test waits for what has to happen; only a failing test waits so long."""

DEADLINES = (0.2, 1.0, 5.0, 25.0, 125.0)
"""Deadlines of a call that is to be cut off once it has got somewhere. The first ones may pass on
the way there, so a test tries one after the other."""
