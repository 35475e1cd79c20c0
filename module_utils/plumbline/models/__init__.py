"""Models on a host: what the catalogue says of them, and how they get to their place."""
