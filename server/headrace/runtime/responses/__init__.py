"""The response cache: replies that the server keeps for requests with the same inputs."""
