"""Who may do what: identities, their credentials and roles, and the record of what they did."""
