"""Stands in for Hugging Face `datasets`, which `sglang.bench_serving` imports for benchmarks that are not run here.

Without it bench_serving does not start from an engine build, which has no need of that package. Not importing the real
one makes bench_serving's start-up cheaper than it is, never dearer.
"""

from __future__ import annotations

from typing import Any


def load_dataset(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError(f"no data set is loaded here: {arguments} {options}")
