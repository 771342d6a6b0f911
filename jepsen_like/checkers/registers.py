"""The linearizability checker: every key of a history is a register, and each register is searched by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Any

import msgspec

from jepsen_like.checkers import offsets
from jepsen_like.checkers.counterexample_shrink import smallest
from jepsen_like.checkers.history_steps import Operations, place, values_of
from jepsen_like.checkers.verdict import CheckerResult, Findings
from jepsen_like.checkers.wgl_search import IMPOSSIBLE, OPEN, Call, Impossible, Model, search
from jepsen_like.checkers.workload import Workload
from jepsen_like.history import Operation

NAME = "linearizable"

OPERATIONS = ("put", "get", "delete", "cas", "create", "commit_offset", "reset_offset", "fetch_offset")


def check(operations: Operations, workload: Workload) -> CheckerResult:
    """Checks metadata (put, get, delete, cas, create) and committed offsets, key by key."""
    findings = Findings()
    keys = calls_by_key(operations)
    steps = 0
    for key, calls in keys.items():
        answer = search(drop_needless(calls), REGISTER, workload.max_steps)
        steps += answer.steps
        if answer.linearizable is None:
            findings.doubt(f"{key}: gave up after {workload.max_steps:,} steps over {len(calls):,} operations")
        elif not answer.linearizable and answer.stuck is not None:
            _report(key, calls, answer.stuck, findings)
    stats = {"keys": len(keys), "operations": sum(map(len, keys.values())), "steps": steps}
    return findings.result(NAME, stats, workload.allowed)


def step(state: Hashable, call: Call) -> Hashable | Impossible:
    """Returns the state of a register after this call; IMPOSSIBLE if the call cannot have had its result in `state`.
    The state None means that the register is absent. Raises ValueError for an operation that registers do not have.
    """
    match call.f:
        case "put":
            return call.argument
        case "get":
            return state if state == call.result else IMPOSSIBLE
        case "cas":
            assert isinstance(call.argument, tuple)
            old, new = call.argument
            moved = new if state == old else state
            return moved if call.is_open or (state == old) is bool(call.result) else IMPOSSIBLE
        case "create":
            moved = call.argument if state is None else state
            return moved if call.is_open or (state is None) is bool(call.result) else IMPOSSIBLE
    raise ValueError(f"a register does not know {call.f!r}")


def observes(call: Call) -> bool:
    """Returns True if this completed call did not change the register: a read, or a `cas` or `create` that was answered
    with false.
    """
    return call.f == "get" or (call.f in ("cas", "create") and not call.result)


REGISTER = Model(step, observes)


def calls_by_key(operations: Operations) -> dict[str, list[Call]]:
    """Returns the calls of each key in order of invocation, without failed ones (which never happened) and reads that
    were not answered."""
    keys: dict[str, list[Call]] = defaultdict(list)
    with values_of(operations.of(*OPERATIONS)) as watched:
        for operation in watched:
            if operation.outcome == "fail":
                continue
            key, call = _call(operation)
            if not (call.f == "get" and call.is_open):
                keys[key].append(call)
    return keys


def drop_needless(calls: list[Call]) -> list[Call]:
    """Leaves out writes of unknown outcome that no operation observed.

    If such a write is in a linearization, nothing reads its value before the next write, so the linearization holds
    without it. A compare-and-set or a create observes also by failing: if there are any, all calls stay.
    """
    if any(call.f in ("cas", "create") for call in calls):
        return calls
    observed = {call.result for call in calls if call.f == "get"}
    return [call for call in calls if not call.is_open or call.argument in observed]


def _call(operation: Operation) -> tuple[str, Call]:
    invoked, completed = operation
    value: dict[str, Any] = invoked.value
    answer: dict[str, Any] = {}
    done = OPEN
    if completed is not None and completed.type == "ok":
        answer, done = completed.value or {}, completed.index
    f = invoked.f
    argument: Hashable = None
    result: Hashable = None
    if f in ("commit_offset", "reset_offset", "fetch_offset"):
        group, queue = offsets.register_of(operation)
        key = f"offset of {group!r} in {place(queue, 0)[:-2]}"
        f, argument, field = ("get", None, "offset") if f == "fetch_offset" else ("put", int(value["offset"]), "")
    else:
        key, field = str(value["key"]), {"get": "value", "cas": "swapped", "create": "created"}.get(f, "")
        if f == "cas":
            return key, Call(
                invoked.index,
                done,
                f,
                (_frozen(value["old"]), _frozen(value["new"])),
                bool(answer[field]) if done != OPEN else None,
            )
        argument = _frozen(value["value"]) if f in ("put", "create") else None
        f = "put" if f == "delete" else f
    if field and done != OPEN:
        result = _frozen(answer[field])
    return key, Call(invoked.index, done, f, argument, result)


def _frozen(value: Any) -> Hashable:
    """Returns lists and objects as canonical JSON, so that they can be compared and hashed, and other values as they
    are.
    """
    return msgspec.json.encode(value, order="sorted") if isinstance(value, list | dict) else value


def _report(key: str, calls: list[Call], stuck: Call, findings: Findings) -> None:
    witness = smallest(calls, stuck, REGISTER)
    shown = "; ".join(_say(call) for call in witness[:6]) + ("; …" if len(witness) > 6 else "")
    steps = sorted(index for call in witness for index in (call.invoked, call.completed) if index != OPEN)
    findings.add("nonlinearizable", f"{key}: no order of these explains every answer: {shown}", steps, subject=key)


def _say(call: Call) -> str:
    def plain(value: Hashable) -> str:
        return value.decode() if isinstance(value, bytes) else repr(value)

    name = "delete" if call.f == "put" and call.argument is None else call.f
    asked = "" if name in ("get", "delete") else f" {plain(call.argument)}"
    answered = " -> ?" if call.is_open else "" if call.f == "put" else f" -> {plain(call.result)}"
    return name + asked + answered
