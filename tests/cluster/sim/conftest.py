"""Makes the helpers beside the tests importable: `virtual_loop`, `sim_node`, `sim_cluster`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
