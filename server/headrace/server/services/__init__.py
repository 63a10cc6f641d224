"""The services of the server, apart from how calls are transported."""
