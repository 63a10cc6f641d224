"""The model repository: networks in a folder, with versions, and what is done as they change."""
