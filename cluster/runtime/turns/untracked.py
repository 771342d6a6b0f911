"""Objects that the garbage collector skips, because there may be many thousands of them at once."""

from __future__ import annotations

import msgspec


class Untracked(msgspec.Struct, gc=False, eq=False):
    """A base of classes with annotated fields, which are the arguments of its objects.

    Counted references still free them, but a cycle through one of them is never freed. An object that refers to such an
    object and is referred to by it must drop its reference when it no longer needs it.
    """
