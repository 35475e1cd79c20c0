"""One server process: its supervisor, its readiness, the lease on its host, the spool of its results."""
