#!/usr/bin/env python3
"""One load of the measuring client against a URL; prints what was received as JSON. The benchmark measures this
process.

    ours.py URL STREAMS REQUESTS TOKENS [--no-figures]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "module_utils"))

from plumbline.measure import figures, workload
from plumbline.measure.client import LoadClient


def main(url: str, streams: int, requests: int, tokens: int) -> None:
    bodies = [workload.body(" ".join(str(i + j) for j in range(16)), tokens, 0.0) for i in range(requests)]
    samples = LoadClient(url, concurrency=streams).run(bodies)
    metrics = {} if "--no-figures" in sys.argv else figures.compute(samples, streams, speculative=False).metrics
    print(
        json.dumps(
            {
                "tokens": sum(s.counts[-1] for s in samples if s.counts),
                "errors": sum(bool(s.error) for s in samples),
                "output_tok_s": metrics.get("output_tok_s"),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
