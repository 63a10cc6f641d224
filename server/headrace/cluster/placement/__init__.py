"""Networks that only some replicas have: where they are, and how calls reach them."""
