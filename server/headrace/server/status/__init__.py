"""The status of a running server as one document, for the status page and the command line."""
