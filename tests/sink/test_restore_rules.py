"""Which batches may go on: never silently skipping, never silently doubling."""

from __future__ import annotations

import pytest

from partfile.errors import CheckpointMismatch, ConfigError
from partfile.sink.policies import ReplayRules
from partfile.sink.restore_rules import ReplayDecision, check_new_query, check_replay, position_after
from partfile.sink.states import QueryPosition, StreamPosition

STRICT = ReplayRules()


def at(batch_id: int, query: str = "q1", digest: str | None = "d") -> QueryPosition:
    return QueryPosition(query_id=query, batch_id=batch_id, offsets_digest=digest)


def stands(query: QueryPosition | None = None, retired: tuple[str, ...] = ()) -> StreamPosition:
    return StreamPosition(chain="0" * 8, query=query, retired_queries=retired)


def test_the_next_batch_is_written() -> None:
    """Batch n+1 of the same query goes on, and so does batch 0 on a fresh uid."""
    assert check_replay("u", stands(), at(0), STRICT) is ReplayDecision.WRITE
    assert check_replay("u", stands(at(4)), at(5), STRICT) is ReplayDecision.WRITE


def test_what_plain_python_wrote_is_not_gone_on_with() -> None:
    """Its position means nothing to Spark, which would write everything from its own beginning."""
    with pytest.raises(CheckpointMismatch, match="written by plain Python up to the position 7"):
        check_replay("u", StreamPosition(chain="0" * 8, user_position=7), at(0), STRICT)


@pytest.mark.parametrize(("kept", "came"), [("d", "d"), (None, "d"), ("d", None), (None, None)])
def test_the_last_batch_again_is_a_replay(kept: str | None, came: str | None) -> None:
    """The last completed batch come again is not written twice; an unreadable digest does not stop it."""
    assert check_replay("u", stands(at(4, digest=kept)), at(4, digest=came), STRICT) is ReplayDecision.REPLAY


def test_a_second_call_for_a_batch_in_one_run_is_refused() -> None:
    """Its rows are other rows of the batch; only a later run brings the same ones again."""
    done = at(4).model_copy(update={"run_id": "run 1"})
    with pytest.raises(CheckpointMismatch, match=r"(?s)batch 4 .*a second time.*unionByName"):
        check_replay("u", stands(done), done, STRICT)
    later = done.model_copy(update={"run_id": "run 2"})
    assert check_replay("u", stands(done), later, STRICT) is ReplayDecision.REPLAY


@pytest.mark.fault("D6")
def test_the_same_batch_with_other_offsets_is_refused() -> None:
    """A completed batch id whose offsets changed is neither skipped nor written."""
    with pytest.raises(CheckpointMismatch, match=r"(?s)batch 4 .* other offsets"):
        check_replay("u", stands(at(4, digest="x")), at(4, digest="y"), STRICT)


@pytest.mark.parametrize("came", [0, 3])
@pytest.mark.fault("D7")
def test_a_batch_that_went_backwards_is_refused(came: int) -> None:
    """A batch id below the completed one is refused, naming both."""
    with pytest.raises(CheckpointMismatch, match=rf"(?s)batch {came}.*up to batch 4"):
        check_replay("u", stands(at(4)), at(came), STRICT)


@pytest.mark.fault("D8")
def test_a_gap_is_refused_unless_accepted() -> None:
    """Skipped batches are refused, on a known query and on a fresh uid, unless the user accepts a gap."""
    accepting = ReplayRules(on_gap="accept")
    for position, batch in ((stands(at(4)), at(6)), (stands(), at(57))):
        with pytest.raises(CheckpointMismatch, match="on_gap='accept'"):
            check_replay("u", position, batch, STRICT)
        assert check_replay("u", position, batch, accepting) is ReplayDecision.WRITE


def test_a_gap_of_entries_that_were_copied_holds_no_rows() -> None:
    """Spark repartitions a checkpoint by a copy of its last entry: admitted; not if one batch of the gap was run."""
    asked: list[int] = []

    def is_copied(batch_id: int) -> bool:
        asked.append(batch_id)
        return batch_id != 7

    assert check_replay("u", stands(at(4)), at(7), STRICT, is_copied) is ReplayDecision.WRITE
    assert asked == [5, 6]
    with pytest.raises(CheckpointMismatch, match="on_gap='accept'"):
        check_replay("u", stands(at(4)), at(8), STRICT, is_copied)
    with pytest.raises(CheckpointMismatch, match="adopt:q1"):
        check_replay("u", stands(at(4)), at(6, "q2"), STRICT, is_copied)


def test_an_unknown_query_is_refused_unless_it_adopts_the_known_one() -> None:
    """A new query id on a used uid is refused with the way out; adopting must name the right predecessor."""
    with pytest.raises(CheckpointMismatch, match=r"on_new_query='adopt:q1'"):
        check_replay("u", stands(at(4)), at(0, "q2"), STRICT)
    with pytest.raises(CheckpointMismatch):
        check_replay("u", stands(at(4)), at(0, "q2"), ReplayRules(on_new_query="adopt:q0"))
    assert check_replay("u", stands(at(4)), at(0, "q2"), ReplayRules(on_new_query="adopt:q1")) is ReplayDecision.WRITE


def test_a_query_with_a_new_checkpoint_location_is_refused_before_it_begins() -> None:
    """Unless no query has written the sink, or the new one adopts the right one."""
    check_new_query("u", None, STRICT)
    check_new_query("u", at(4), ReplayRules(on_new_query="adopt:q1"))
    for rules in (STRICT, ReplayRules(on_new_query="adopt:q0")):
        with pytest.raises(CheckpointMismatch, match=r"not started(.|\n)*on_new_query='adopt:q1'"):
            check_new_query("u", at(4), rules)


def test_adopting_retires_the_earlier_query_for_good() -> None:
    """After an adoption the old query is refused even if it would adopt back."""
    after = position_after(stands(at(4)), at(0, "q2"))
    assert after.retired_queries == ("q1",)
    with pytest.raises(CheckpointMismatch, match="replaced"):
        check_replay("u", after, at(5, "q1"), ReplayRules(on_new_query="adopt:q2"))


@pytest.mark.parametrize("options", [{"on_new_query": "adopt:"}, {"on_new_query": "skip"}, {"on_gap": "skip"}])
def test_a_rule_that_means_nothing_is_refused(options: dict[str, str]) -> None:
    """A mistyped rule is a ConfigError that shows it."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        ReplayRules(**options)
