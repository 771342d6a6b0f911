"""Makes the helpers beside the tests importable: `raft_group`, `raft_story`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
