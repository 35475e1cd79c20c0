"""What a rebuild does on the host beside the roles: builds set aside and rolled back, stray files moved aside."""
