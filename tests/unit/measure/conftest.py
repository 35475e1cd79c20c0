"""A stand-in server in a process of its own, as the measured server is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

STANDIN = Path(__file__).resolve().parents[3] / "benchmarks" / "standin.py"


@pytest.fixture
def standin() -> Iterator[Callable[..., str]]:
    """Start a stand-in with some arguments; gives its URL. It is ended after the test."""
    children: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> str:
        child = subprocess.Popen([sys.executable, str(STANDIN), *arguments], stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        return f"http://127.0.0.1:{child.stdout.readline().split()[2]}"

    yield start
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A stand-in without a pace, shared by the tests of a module."""
    child = subprocess.Popen([sys.executable, str(STANDIN)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    yield f"http://127.0.0.1:{child.stdout.readline().split()[2]}"
    child.kill()
    child.wait()
    child.stdout.close()
