"""The front end on HTTP/2 of our own: connections, their calls, and the ports."""
