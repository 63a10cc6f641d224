"""The code that HETERO, MULTI, AUTO and BATCH share."""
