"""Generating load against a server and turning what came back into figures."""
