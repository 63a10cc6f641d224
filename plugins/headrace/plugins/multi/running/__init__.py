"""Sends each request to one of the devices that have the network."""
