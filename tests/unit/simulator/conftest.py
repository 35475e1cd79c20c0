"""The simulator's package, from its source."""

from __future__ import annotations

import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3] / "simulator" / "server" / "src"
sys.path.insert(0, str(SOURCE))
