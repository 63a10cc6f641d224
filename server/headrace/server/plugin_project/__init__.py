"""A project for a new device plugin, made from the code of TEMPLATE as it is installed."""
