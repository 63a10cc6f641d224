"""Sessions: requests to a network whose states the server keeps."""
