"""Pictures of queries."""
