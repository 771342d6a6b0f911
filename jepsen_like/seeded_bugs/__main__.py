"""`python -m jepsen_like.seeded_bugs`: the kill matrix."""

from __future__ import annotations

from jepsen_like.seeded_bugs.cli import bugs

if __name__ == "__main__":
    bugs()
