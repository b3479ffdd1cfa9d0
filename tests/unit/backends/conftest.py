"""The store and the workshop of the contract suite serve the unit tests of the backends too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "contracts"))
