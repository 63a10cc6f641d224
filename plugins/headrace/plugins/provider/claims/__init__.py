"""Which layers a provider computes right."""
