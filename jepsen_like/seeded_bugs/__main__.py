"""`python -m jepsen_like.seeded_bugs`: prints the kill matrix, which shows the checks that find each bug."""

from __future__ import annotations

from jepsen_like.seeded_bugs.cli import bugs

if __name__ == "__main__":
    bugs()
