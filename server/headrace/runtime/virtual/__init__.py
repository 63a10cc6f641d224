"""What HETERO, MULTI, AUTO and BATCH share."""
