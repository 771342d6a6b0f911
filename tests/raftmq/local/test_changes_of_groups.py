"""A change of several groups that one of them refuses: what was done before is said, and the exit code is not that of a
command that changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.http.all_groups import in_each, in_those_with_it
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.answering_api import MakeApi

DRAINS = ApiRefusal("refused", "no", "the group drains", "try another", ExitCode.REFUSED)
MISSING = ApiRefusal("not_found", "no", "there is none", "look", ExitCode.REFUSED)
Changes = Callable[..., Mapping[int, Any]]


def change(how: Changes, make_api: MakeApi, answers: Sequence[Any], *, dry_run: bool = False) -> LocalError:
    groups = {group: [make_api({"POST /v1/x": answer}).address] for group, answer in enumerate(answers, 1)}

    def ask(api: AdminApi) -> dict[str, Any]:
        return api.post("/v1/x", {})

    with pytest.raises(LocalError) as caught:
        how(groups, ask, "raftmq topic list", dry_run=dry_run)
    return caught.value


@pytest.mark.parametrize("how", [in_each, in_those_with_it])
def test_what_was_done_before_is_said_and_the_outcome_is_unknown(how: Changes, make_api: MakeApi) -> None:
    error = change(how, make_api, [{}, {}, DRAINS, {}])
    assert error.exit_code is ExitCode.UNKNOWN
    assert error.what.startswith("group 3: ")
    assert error.why.endswith("; done before: group 1, 2, and those after it were left alone")


@pytest.mark.parametrize("how", [in_each, in_those_with_it])
@pytest.mark.parametrize(("answers", "dry_run"), [((DRAINS, {}), False), (({}, DRAINS), True)])
def test_a_refusal_before_any_change_says_that_nothing_was_changed(
    how: Changes, make_api: MakeApi, answers: Sequence[Any], dry_run: bool
) -> None:
    error = change(how, make_api, answers, dry_run=dry_run)
    assert error.exit_code is ExitCode.REFUSED
    assert "done before" not in error.why


def test_a_group_without_the_object_was_not_changed(make_api: MakeApi) -> None:
    assert change(in_those_with_it, make_api, [MISSING, DRAINS]).exit_code is ExitCode.REFUSED
    assert change(in_those_with_it, make_api, [MISSING, {}, DRAINS]).why.endswith(
        "; done before: group 2, and those after it were left alone"
    )
