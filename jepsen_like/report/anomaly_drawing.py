"""Draws the proof of an anomaly: its steps as bars in time, and the log around it on every replica."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from jepsen_like.checkers.history_steps import TopicQueue, place
from jepsen_like.checkers.messages import Messages
from jepsen_like.checkers.verdict import Anomaly, brief
from jepsen_like.history import Op, Operation
from jepsen_like.report.svg import drawing, linear, mark

AROUND = 4
"""The number of offsets that are shown on either side of the one in question."""

_WIDTH, _LEFT, _RIGHT, _ROW = 1120.0, 250.0, 1100.0, 24.0


class Witnesses:
    """Draws the anomalies of one history."""

    def __init__(self, ops: Sequence[Op], operations: Sequence[Operation], messages: Messages) -> None:
        self._ops = ops
        self._messages = messages
        self._of_step: dict[int, Operation] = {}
        for operation in operations:
            self._of_step[operation.invoked.index] = operation
            if operation.completed is not None:
                self._of_step[operation.completed.index] = operation

    def html(self, anomaly: Anomaly) -> str:
        """Returns the HTML of one anomaly."""
        parts = [f"<p>{escape(anomaly.what)}</p>", self._bars(anomaly), self._table(anomaly), self._window(anomaly)]
        return "".join(parts)

    def _involved(self, anomaly: Anomaly) -> list[Operation]:
        found = {self._of_step[index].invoked.index: self._of_step[index] for index in anomaly.ops}
        return [found[index] for index in sorted(found)]

    def _bars(self, anomaly: Anomaly) -> str:
        """Draws one row per operation, from its invocation to its completion, in the order of the history.

        Steps are spread evenly: their order matters, not their distance, and runs are long.
        """
        involved = self._involved(anomaly)
        steps = sorted(step.index for o in involved for step in o if step is not None)
        x = linear(0, max(len(steps) - 1, 1), _LEFT + 10, _RIGHT - 60)
        marks: list[str] = []
        for row, operation in enumerate(involved):
            y = 6 + row * _ROW
            start = x(steps.index(operation.invoked.index))
            completed = operation.completed
            end = _RIGHT if completed is None or completed.type == "info" else x(steps.index(completed.index))
            tip = f"{operation.invoked.f}: {operation.outcome}"
            marks.append(mark("text", self._title(operation), x=_LEFT - 8, y=y + 13, class_="tick end"))
            marks.append(
                mark(
                    "rect",
                    tip=tip,
                    x=start,
                    y=y,
                    width=max(end - start, 4.0),
                    height=_ROW - 6,
                    rx=3,
                    class_=f"bar {operation.outcome}",
                )
            )
            marks.append(mark("text", self._moment(operation), x=start + 6, y=y + 13, class_="tick"))
        return drawing(_WIDTH, 12 + _ROW * len(involved), marks, "the operations of the witness")

    @staticmethod
    def _title(operation: Operation) -> str:
        text = f"{operation.invoked.f} · process {operation.invoked.process}"
        return text if len(text) < 36 else text[:35] + "…"

    def _moment(self, operation: Operation) -> str:
        begun = self._since(operation.invoked)
        return f"{begun} … {self._since(operation.completed)}" if operation.completed is not None else f"{begun} … ?"

    def _since(self, op: Op) -> str:
        return f"{(op.time_ns - self._ops[0].time_ns) / 1e9:.6f} s"

    def _table(self, anomaly: Anomaly) -> str:
        about = anomaly.subject
        rows = "".join(
            f'<tr class="{step.type}"><td>{step.index + 2}<td>{self._since(step)}<td>{step.process}<td>{step.type}'
            f"<td>{escape(step.f)}<td><code>{escape(brief(step.value, about))}</code>"
            for operation in self._involved(anomaly)
            for step in operation
            if step is not None
        )
        head = "<tr><th>line<th>time<th>process<th>step<th>what<th>value"
        return f'<div class="wide"><table class="steps">{head}{rows}</table></div>'

    def _window(self, anomaly: Anomaly) -> str:
        """Draws what every replica has around the message, next to what was acknowledged. Returns "" for an anomaly
        that is not about a message, or whose message has no place.
        """
        send = self._messages.sends.get(anomaly.subject)
        if send is None or send.place is None:
            return ""
        queue, offset = send.place
        offsets = range(max(0, offset - AROUND), offset + AROUND + 1)
        columns = {"acknowledged": self._acknowledged(queue, offsets), **dict(self._held(queue, offsets))}
        head = "<tr><th>offset" + "".join(f"<th>{escape(name)}" for name in columns)
        rows = "".join(_window_row(o, offset, columns) for o in offsets)
        return (
            f"<p class=quiet>The log around {escape(place(queue, offset))}:</p>"
            f'<div class="wide"><table class="window">{head}{rows}</table></div>'
        )

    def _acknowledged(self, queue: TopicQueue, offsets: range) -> dict[int, str]:
        """Returns offset -> the id that was acknowledged there; more than one id if an offset was given out twice."""
        told: dict[int, str] = {}
        for send in self._messages.acked.get(queue, ()):
            if send.offset in offsets:
                told[send.offset] = (
                    f"{told[send.offset]}, {send.message_id}" if send.offset in told else send.message_id
                )
        return told

    def _held(self, queue: TopicQueue, offsets: range) -> Iterator[tuple[str, dict[int, str]]]:
        for dump in self._messages.dumps.get(queue, ()):
            held: dict[int, str] = {}
            if dump.fell_back:
                held = {o: i for o, i in zip(dump.offsets, dump.ids, strict=True) if o in offsets}
            else:
                start = bisect_left(dump.offsets, offsets.start)
                end = bisect_left(dump.offsets, offsets.stop)
                held = dict(zip(dump.offsets[start:end], dump.ids[start:end], strict=True))
            yield f"node {dump.node}", held


def _cell(found: str | None, expected: str | None) -> str:
    return escape(found) if found is not None else "" if expected is None else "missing"


def _window_row(offset: int, middle: int, columns: Mapping[str, Mapping[int, str]]) -> str:
    """Returns one row of the table, for one offset. A cell that differs from the first non-empty cell of the row is
    marked.
    """
    expected = next((held[offset] for held in columns.values() if offset in held), None)
    cells = []
    for held in columns.values():
        found = held.get(offset)
        class_ = ' class="odd"' if found != expected else ""
        cells.append(f"<td{class_}>{_cell(found, expected)}")
    return f"<tr{' class=here' if offset == middle else ''}><td>{offset}{''.join(cells)}"
