"""Memory that clients on this machine share with the server."""
