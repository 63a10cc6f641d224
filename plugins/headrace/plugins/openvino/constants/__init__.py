"""What OpenVINO reads wrong in a network's constants, and what is known of values before a run."""
