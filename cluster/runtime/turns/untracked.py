"""Objects that the garbage collector does not walk over, because many thousands of them may be there at once."""

from __future__ import annotations

import msgspec


class Untracked(msgspec.Struct, gc=False, eq=False):
    """A base of classes with annotated fields, which are the arguments of its objects.

    References still end them, but a cycle through one stays for ever: what one refers to refers to it only for as long
    as both are needed, and then lets go of it.
    """
