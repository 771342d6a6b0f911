"""The exceptions raised when text from outside is not JSON, or is JSON of another shape than expected."""

from __future__ import annotations

from typing import Final

import msgspec

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for text that is not JSON or has another shape. The text may also be invalid
UTF-8, or nested too deeply."""
