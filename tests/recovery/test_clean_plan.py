"""What no sink needs, decided from facts alone: strays, leftovers, ages; and whether a sink is at work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from partfile.recovery.clean_plan import CheckpointFacts, CleaningFacts, CleaningOptions, JobFacts, plan_cleaning
from partfile.recovery.inspect.checkpoints import SeenCheckpoint, SeenLog, stray_ids
from partfile.recovery.inspect.files import ClassifiedFile, PartIndex, classify
from partfile.recovery.inspect.places import Job
from partfile.recovery.ownership import Liveness
from partfile.snapshot.documents import CheckpointMetadata, CheckpointRef
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.base import Leftover, StoredFile
from partfile.stores.memory import MemoryMetadataStore

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from partfile.recovery.clean_plan import CleaningPlan
    from partfile.snapshot.documents import CheckpointKind


NOW_MS, OLD_MS, NEWEST_MS = 1_000_000_000, 1_000, 900_000_000
CHAIN = "0a1b2c3d"
FILES = ("_metadata", "_published", "notes.txt")


def checkpoint(
    number: int, *, after: str | None, nonce: str = "", kind: CheckpointKind = "checkpoint"
) -> CheckpointMetadata:
    """A checkpoint that names its predecessor by the nonce that is told."""
    return CheckpointMetadata(
        checkpoint_id=number,
        kind=kind,
        job="life",
        log_id="c",
        epoch=1,
        nonce=nonce or f"n{number}",
        predecessor=None if after is None else CheckpointRef(checkpoint_id=number - 1, nonce=after),
        ids_ahead=1,
        time_ms=0,
        writer="",
    )


def job_of(checkpoints: Sequence[CheckpointMetadata], young: Collection[str] = (), name: str = "life") -> JobFacts:
    """A job with these checkpoints, of which some files were changed lately."""
    seen = tuple(SeenCheckpoint(one.checkpoint_id, one, is_published=True) for one in checkpoints)
    log = SeenLog(Job(name), CheckpointStorage(MemoryMetadataStore(), name), seen, (), None, None)
    directories = {one.checkpoint_id: f"{name}/chk-{one.checkpoint_id}" for one in checkpoints}
    return JobFacts(
        name=name,
        ref=checkpoints[-1].ref,
        moved_at_ms=NEWEST_MS,
        chains=frozenset({CHAIN}),
        checkpoints=tuple(
            CheckpointFacts(
                one.checkpoint_id,
                one,
                tuple(
                    StoredFile(path=path, size=1, modified_at_ms=NEWEST_MS if path in young else OLD_MS)
                    for path in (f"{directories[one.checkpoint_id]}/{file}" for file in FILES)
                ),
            )
            for one in checkpoints
        ),
        strays=frozenset(stray_ids(log)),
    )


def planned(
    checkpoints: Sequence[CheckpointMetadata],
    *,
    retain: int | None = None,
    leftovers: Sequence[Leftover] = (),
    young: Collection[str] = (),
    delete: bool = False,
) -> CleaningPlan:
    facts = CleaningFacts(
        options=CleaningOptions(older_than_s=60, retain=retain, delete=delete),
        now_ms=NOW_MS,
        jobs=(job_of(checkpoints, young),),
        owns_base=True,
        moves={"base": True, "checkpoints": True},
    )
    return plan_cleaning(facts, (), leftovers)


def gone(plan: CleaningPlan) -> dict[str, str]:
    return {item.path: item.kind for item in plan.items}


def both(number: int, kind: str) -> dict[str, str]:
    return {f"life/chk-{number}/{name}": kind for name in ("_metadata", "_published")}


def doubtful(plan: CleaningPlan) -> list[int]:
    return [one.checkpoint_id for one in plan.doubtful]


@pytest.mark.parametrize(
    "checkpoints",
    [
        [checkpoint(1, after=None)],
        [checkpoint(1, after=None), checkpoint(2, after="n1"), checkpoint(3, after="n2")],
        [
            checkpoint(5, after="gone"),
            checkpoint(6, after="n5", kind="tombstone"),
            checkpoint(7, after="n6", kind="takeover"),
        ],
        [checkpoint(5, after="gone"), checkpoint(6, after="n5"), checkpoint(7, after="damaged-00")],
    ],
    ids=["first", "whole", "tombstone", "over damage"],
)
def test_checkpoints_of_the_log_stay(checkpoints: list[CheckpointMetadata]) -> None:
    """Whatever the checkpoint log goes over is no stray.

    Tombstones, takeovers, and a checkpoint that could not be read at its time.
    """
    assert gone(planned(checkpoints)) == {}
    assert doubtful(planned(checkpoints)) == []


def test_checkpoints_that_never_counted_go() -> None:
    """One whose successor names another goes, the checkpoint before its marks; what lies below it is left and told."""
    named_another = [
        checkpoint(4, after="x"),
        checkpoint(5, after="n4", nonce="late"),
        checkpoint(6, after="n5"),
        checkpoint(7, after="n6"),
    ]
    plan = planned(named_another)
    assert gone(plan) == both(5, "stray checkpoint")
    assert [item.path for item in plan.items] == ["life/chk-5/_metadata", "life/chk-5/_published"]
    assert doubtful(plan) == [4]
    assert gone(planned(named_another, young=["life/chk-5/_published"])) == {}


def test_below_a_hole_nothing_is_taken() -> None:
    """Checkpoints that counted are not told there from those that never did: they are left, and reported."""
    below_a_hole = [
        checkpoint(1, after=None),
        checkpoint(2, after="n1"),
        checkpoint(6, after="n5"),
        checkpoint(7, after="n6"),
    ]
    plan = planned(below_a_hole)
    assert gone(plan) == {}
    assert doubtful(plan) == [2, 1]
    beyond = planned(below_a_hole, retain=3)
    assert gone(beyond) == both(1, "old checkpoint")
    assert doubtful(beyond) == [2]


@pytest.mark.parametrize(("young", "left"), [(2, [2, 3, 4]), (3, [3, 4]), (4, [4])])
@pytest.mark.parametrize("name", ["_metadata", "_published"])
def test_checkpoints_go_whole_and_strictly_oldest_first(young: int, left: list[int], name: str) -> None:
    """R7: one with a file that is too young stays whole, and so does every later one, however old that is."""
    checkpoints = [checkpoint(number, after=f"n{number - 1}") for number in range(2, 6)]
    plan = planned(checkpoints, retain=1, young=[f"life/chk-{young}/{name}"])
    taken = {path for number in range(2, 5) if number not in left for path in both(number, "")}
    assert gone(plan).keys() == taken


def test_files_of_others_among_checkpoints_stay() -> None:
    """H3: of a checkpoint that goes, only what has a name that partfile gives there."""
    assert {
        item.path.rpartition("/")[2]
        for item in planned([checkpoint(1, after=None), checkpoint(2, after="n1")], retain=1).items
    } == {
        "_metadata",
        "_published",
    }


def test_only_jobs_with_something_to_clean_are_taken_over() -> None:
    """H4: a sink that the plan does not touch is not fenced for it; what carries no name may be another job's."""
    dead, live = (
        job_of([checkpoint(1, after=None), checkpoint(2, after="n1")], name="dead"),
        job_of([checkpoint(1, after=None)], name="live"),
    )
    facts = CleaningFacts(
        CleaningOptions(retain=1), NOW_MS, (dead, live), owns_base=True, moves={"base": True, "checkpoints": True}
    )
    assert [log.job for log in plan_cleaning(facts, (), ()).logs] == ["dead"]
    temporary = StoredFile(path=f"_tmp.{'0' * 32}", size=1, modified_at_ms=OLD_MS)
    found = [ClassifiedFile(temporary, classify(temporary.path, PartIndex()))]
    assert [log.job for log in plan_cleaning(facts, found, ()).logs] == ["dead", "live"]
    immovable = replace(facts, moves={"base": False, "checkpoints": False})
    assert plan_cleaning(immovable, found, ()).logs == ()


@pytest.mark.parametrize(
    ("older_than_s", "modified_at_ms", "is_taken"),
    [
        (60, NEWEST_MS - 1, True),
        (60, NEWEST_MS, False),
        (500_000, NOW_MS - 500_000_001, True),
        (500_000, NOW_MS - 500_000_000, False),
        (500_000, NEWEST_MS - 1, False),
    ],
)
def test_a_run_file_goes_by_its_age_and_by_that_of_the_newest_checkpoint(
    older_than_s: float, modified_at_ms: int, *, is_taken: bool
) -> None:
    """One of a task that answers late is named by no checkpoint yet; one that a checkpoint names is never taken."""
    run = StoredFile(path=f"life/shared/{'0' * 32}.state", size=1, modified_at_ms=modified_at_ms)
    job = replace(job_of([checkpoint(1, after=None)]), shared=(run,))
    facts = CleaningFacts(
        options=CleaningOptions(older_than_s=older_than_s),
        now_ms=NOW_MS,
        jobs=(job,),
        owns_base=True,
        moves={"base": True, "checkpoints": True},
    )
    assert gone(plan_cleaning(facts, (), ())) == ({run.path: "run file"} if is_taken else {})
    named = replace(facts, jobs=(replace(job, runs=frozenset({run.path})),))
    assert gone(plan_cleaning(named, (), ())) == {}


def test_a_temporary_file_of_the_base_is_a_day_old_at_least() -> None:
    """A sink that keeps its checkpoints elsewhere may be about to name it; where that is known, it is never taken."""
    facts = CleaningFacts(
        options=CleaningOptions(older_than_s=0),
        now_ms=NOW_MS,
        jobs=(replace(job_of([checkpoint(1, after=None)]), moved_at_ms=NOW_MS),),
        owns_base=True,
        moves={"base": True, "checkpoints": True},
    )
    times = (NOW_MS - 86_400_001, NOW_MS - 86_400_000)
    files = [
        StoredFile(path=f"{number}/_tmp.{'0' * 32}", size=1, modified_at_ms=time) for number, time in enumerate(times)
    ]
    found = [ClassifiedFile(file, classify(file.path, PartIndex())) for file in files]
    assert [item.path for item in plan_cleaning(facts, found, ()).items] == [files[0].path]
    assert plan_cleaning(replace(facts, owns_base=False), found, ()).items == ()


def test_retention_counts_checkpoints_with_state() -> None:
    """A tombstone does not count as retained, and the newest checkpoint with state never goes."""
    checkpoints = [
        checkpoint(1, after=None),
        checkpoint(2, after="n1"),
        checkpoint(3, after="n2", kind="tombstone"),
        checkpoint(4, after="n3"),
    ]
    assert gone(planned(checkpoints, retain=2)) == both(1, "old checkpoint")
    assert gone(planned(checkpoints, retain=1)) == {
        **both(1, "old checkpoint"),
        **both(2, "old checkpoint"),
        **both(3, "old checkpoint"),
    }
    assert gone(planned(checkpoints, retain=9)) == {}


@pytest.mark.parametrize(
    ("name", "modified_at_ms", "is_ours"),
    [
        (f"part-{CHAIN}-0-1.txt", OLD_MS, True),
        (f"part-{CHAIN}-0-1.txt", NEWEST_MS, True),
        (f"part-{CHAIN}-0-1.txt", NOW_MS, False),
        ("part-deadbeef-0-1.txt", OLD_MS, False),
        (f"_part-{CHAIN}-0-1.txt", OLD_MS, False),
        ("backup.tar", OLD_MS, False),
        ("", OLD_MS, False),
    ],
)
def test_leftovers_are_known_by_their_final_name(name: str, modified_at_ms: int, *, is_ours: bool) -> None:
    """An upload or object of another chain, of no chain, or that says nothing is not to be taken; nor a young one."""
    found = Leftover("upload", f"b/{name}", name, None, modified_at_ms, "id")
    plan = planned([checkpoint(1, after=None)], leftovers=[found])
    assert [item.path for item in plan.items] == ([f"b/{name}"] if is_ours else [])
    assert plan.to_do == (), "it cannot be moved, and deleting was not asked for"


def test_the_digest_is_of_what_is_done() -> None:
    """It does not depend on the order in which things were found, and differs where anything else would be done."""
    found = [Leftover("claim", f"c/{number}", f"part-{CHAIN}-0-1.txt", 0, OLD_MS) for number in range(5)]
    checkpoints, other = [checkpoint(1, after=None)], [checkpoint(1, after=None, nonce="other")]
    deleting = planned(checkpoints, leftovers=found, delete=True)
    assert deleting.digest == planned(checkpoints, leftovers=found[::-1], delete=True).digest
    assert deleting.digest != planned(checkpoints, leftovers=found[1:], delete=True).digest
    assert deleting.digest != planned(other, leftovers=found, delete=True).digest
    assert planned(checkpoints, leftovers=found).digest == planned(checkpoints).digest, "what is left is not done"
    assert planned(checkpoints).digest != planned(checkpoints, retain=9).digest


@pytest.mark.parametrize(
    ("held", "moved_s_ago", "released", "why"),
    [
        (True, 10**6, False, "marker"),
        (True, 10**6, True, "marker"),
        (False, 1, False, ""),
        (None, 599, False, "less than 600 s"),
        (None, -100, False, "0 s old"),
        (None, 600, False, ""),
        (False, 10**6, False, ""),
        (None, 1, True, ""),
        (None, None, False, ""),
    ],
)
def test_who_counts_as_alive(held: bool | None, moved_s_ago: int | None, released: bool, why: str) -> None:
    """A held marker proves it, and a free one the contrary.

    Where no lock can tell, a checkpoint log that moved lately does, unless the coordinator that moved it let go.
    """
    moved_at_ms = None if moved_s_ago is None else NOW_MS - moved_s_ago * 1000
    told = Liveness(Job("life"), held, moved_at_ms, released).why_live(NOW_MS, 600)
    assert why in told
    assert bool(why) is bool(told)
