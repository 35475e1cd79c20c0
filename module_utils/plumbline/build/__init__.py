"""Builds: immutable, content-addressed SGLang environments under ``<plumbline_root>/builds/<digest>/``."""
