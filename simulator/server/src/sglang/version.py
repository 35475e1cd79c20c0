"""The version of the installed distribution."""

from importlib import metadata

try:
    __version__ = metadata.version("sglang")
except metadata.PackageNotFoundError:
    __version__ = "0.5.23+sim.source"
