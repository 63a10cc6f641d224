"""The model repository: a folder of networks with versions, which the server follows."""
