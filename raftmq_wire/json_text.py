"""The exceptions raised when text from outside is not JSON, or is JSON of another shape than expected."""

from __future__ import annotations

from typing import Final

import msgspec

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for such text: a flipped bit may make it invalid UTF-8, and lists may be nested
without limit."""
