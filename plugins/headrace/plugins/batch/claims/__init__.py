"""Which networks can run the rows of several requests together, and the reasons if one cannot."""
