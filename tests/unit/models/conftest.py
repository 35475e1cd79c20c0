"""The training scripts are no package: they are imported from their folder, as they run."""
from __future__ import annotations

import sys
from pathlib import Path

TRAIN = Path(__file__).parents[3] / "models" / "train"
if str(TRAIN) not in sys.path:
    sys.path.insert(0, str(TRAIN))
