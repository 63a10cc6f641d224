"""The status page: one HTML page, and the document that it shows."""
