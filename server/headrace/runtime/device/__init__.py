"""The base classes of device plugins, and what these classes use."""
