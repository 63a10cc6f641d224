"""The methods of both clients as generators of calls. Each client runs them in its own way."""
