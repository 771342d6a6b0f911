"""What comes of JSON text from outside that is none, or not what was asked for."""

from __future__ import annotations

from typing import Final

import msgspec

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for it: text of a flipped bit may be no UTF-8, and lists may lie in lists without end."""
