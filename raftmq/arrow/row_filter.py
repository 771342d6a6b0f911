"""Decides which rows of a batch a query keeps, before the other columns of the batch are built.

The logic is SQL's: a comparison with a null is neither true nor false, and only rows for which every condition is true
are kept. Texts compare by their bytes in UTF-8, as Spark compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

IS_NULL, IS_IN, SAME = "is_null", "is_in", "same"
"""Kinds of conditions that are no functions of pyarrow. `SAME` is an equality in which two nulls are equal."""
KINDS = (
    IS_NULL,
    IS_IN,
    SAME,
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "starts_with",
    "ends_with",
    "match_substring",
)
"""All kinds of conditions: those above, and names of functions of pyarrow.compute."""


class Condition(NamedTuple):
    """A condition on a column. `kind` is one of KINDS. `value` is a text or an integer, for a timestamp the
    microseconds since the epoch; for IS_IN it is a tuple, which may contain None."""

    column: str
    kind: str
    value: Any = None
    negated: bool = False


class RowFilter(NamedTuple):
    """Conditions joined by AND. It can be sent to other processes."""

    conditions: tuple[Condition, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the conditions need."""
        return tuple(dict.fromkeys(each.column for each in self.conditions))

    def keeps(self, batch: pa.RecordBatch) -> Any:
        """Returns a mask of numpy: True for the rows of the batch that fulfil every condition. The batch has at least
        the columns of `columns`."""
        import numpy as np

        kept = np.ones(batch.num_rows, bool)
        for each in self.conditions:
            kept &= _holds(each, batch.column(each.column))
        return kept


def _holds(condition: Condition, column: pa.Array) -> Any:
    """Returns a mask of numpy: True where the condition is true, False where it is false or unknown."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if condition.kind == IS_NULL:
        answer = column.is_null()
    elif condition.kind == IS_IN:
        answer = _is_in(column, condition.value)
    elif condition.kind == SAME:
        same = column.is_null() if condition.value is None else pc.equal(column, condition.value)
        answer = same.fill_null(False)
    elif condition.kind in ("starts_with", "ends_with", "match_substring"):
        answer = getattr(pc, condition.kind)(column, pattern=condition.value)
    else:
        compare: Callable[[pa.Array, Any], pa.Array] = getattr(pc, condition.kind)
        answer = compare(column, condition.value)
    if condition.negated:
        answer = pc.invert(answer)
    return answer.fill_null(False).to_numpy(zero_copy_only=False)


def _is_in(column: pa.Array, values: Sequence[Any]) -> pa.Array:
    """Returns a boolean for each value of the column: whether it is among `values`. As in SQL, the result is null for a
    null, and for a value that is not found if `values` contains a null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = [value for value in values if value is not None]
    kind = pa.int64() if pa.types.is_integer(column.type) else column.type
    found = pc.is_in(column.cast(kind), value_set=pa.array(known, kind))
    unknown = column.is_null() if len(known) == len(values) else pc.invert(found)
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)
