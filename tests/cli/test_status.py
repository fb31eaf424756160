"""``partfile status`` on trees that killed processes have left, beside a live sink, and of every file."""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.recovery.inspect.files import read_base
from partfile.recovery.inspect.places import Place, no_sink_at, open_for_looking
from partfile.recovery.inspect.status import status_of
from partfile.sink.clock import system_clock_ms
from partfile.stores.local.store import LocalStore
from partfile.stores.registry import open_store
from support.processes.command_line import run, told, told_json
from support.sinks.dead import crash_when_promised
from support.sinks.life_cycle import (
    LONG,
    assert_exactly_once,
    batch,
    everything,
    in_child,
    long_sink,
    make_sink,
    seed_with_a_tail,
)
from support.sinks.recovery import age

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from partfile.stores.base import StoredFile


# ``partfile status`` on trees that killed processes have left, and beside a sink that lives.

HOUR_S = 3600


class UnlistedStore(LocalStore):
    """A store that fails where the tree is listed, and notes what else is asked."""

    asked: list[str]

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """It must not be called."""
        raise AssertionError(f"{directory!r} was listed")

    def list_names(self, directory: str) -> Any:
        """As ever, and noted."""
        self.asked.append(directory)
        return super().list_names(directory)


def one_sink(*words: str | Path, code: int = 1) -> Any:
    """The status of the only sink."""
    (sink,) = told_json("status", *words, code=code)["sinks"]
    return sink


def test_open_parts_of_a_dead_sink_are_stuck(tmp_path: Path) -> None:
    """Each part that a killed process left open is told with its valid length, why, what becomes of it, and the way."""
    seed_with_a_tail(tmp_path)
    sink = one_sink(tmp_path)
    assert [part["state"] for part in sink["stuck"]] == ["in-progress"] * 2
    counted = {"count": 2, "bytes": 36, "shared": 0, "buckets": None, "oldest_age_s": sink["stuck"][0]["age_s"]}
    assert sink["parts"]["in-progress"] == counted
    assert all(part["is_for_recover"] and part["why"].endswith("for its valid bytes") for part in sink["stuck"])
    assert (sink["epoch"], sink["newest_checkpoint_id"], sink["is_running"]) == (1, 2, None)
    text = told("status", tmp_path, code=1)
    assert text.startswith("STUCK  life: 2 parts")
    assert f"partfile recover {tmp_path} --uid life" in text


def test_promised_parts_of_a_dead_sink_are_stuck(tmp_path: Path) -> None:
    """A part whose checkpoint is complete and whose publication is not done is pending, and recover publishes it."""
    crash_when_promised(tmp_path)
    sink = one_sink(tmp_path)
    assert sink["parts"]["pending"]["count"] == len(sink["stuck"]) > 0
    assert all("is complete and promises it" in part["why"] for part in sink["stuck"])


def test_a_sink_that_ended_cleanly_has_nothing_stuck(tmp_path: Path) -> None:
    """After a clean end nothing is unfinished, and the exit code is 0."""
    with make_sink(tmp_path).local() as out:
        out.write(batch(0, 4), position=4)
    sink = one_sink(tmp_path, code=0)
    assert sink["stuck"] == []
    assert sink["problem"] is None
    assert all(total["count"] == 0 for total in sink["parts"].values())
    assert "unfinished parts   none" in told("status", tmp_path)


def test_parts_that_a_clean_stop_kept_are_not_stuck(tmp_path: Path) -> None:
    """``on_stop="keep"`` leaves open parts on purpose."""
    with long_sink(tmp_path, on_stop="keep").local() as out:
        out.write(batch(0, 4), position=4)
    sink = one_sink(tmp_path, code=0)
    assert sink["is_kept"]
    assert "stuck" not in told("status", tmp_path)
    assert sink["parts"]["in-progress"]["count"] == 2
    assert sink["stuck"] == []


@pytest.mark.parametrize(("quiet_after", "code"), [("1h", 0), ("0s", 1)])
def test_a_sink_that_cannot_be_asked_counts_as_stopped_after_a_silence(
    tmp_path: Path, quiet_after: str, code: int
) -> None:
    """Parts of a plain sink are not stuck before it has been silent for as long as was said; and that is told."""
    out = long_sink(tmp_path, clock=system_clock_ms).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    sink = one_sink(tmp_path, "--quiet-after", quiet_after, code=code)
    assert sink["parts"]["in-progress"]["count"] == 2
    assert sink["counts_as_stopped"] is bool(code)
    text = told("status", tmp_path, "--quiet-after", quiet_after, code=code)
    told_of = ("Nothing of it is called stuck yet", f"partfile status {tmp_path} --uid life --quiet-after 0s")
    assert [words in text for words in told_of] == [not code] * 2
    out.close()


@pytest.mark.fault("H4")
@pytest.mark.parametrize(("where", "after_s"), [("{t}/out", 600), ("memory://{t}/out", 3600)])
def test_a_store_without_locks_waits_for_longer(tmp_path: Path, where: str, after_s: int) -> None:
    """Where nothing but checkpoints can show that a sink lives, half an hour of silence proves nothing."""
    base = where.format(t=tmp_path)
    began_ms = system_clock_ms() - 1_800_000
    sink = make_sink(base, open_store=open_store, clock=lambda: began_ms)
    with sink.local() as out:
        out.write(batch(0, 4), position=4)
    report = told_json("status", base)
    assert report["quiet_after_s"] == after_s
    assert report["sinks"][0]["counts_as_stopped"] is (after_s == 600)
    refused = run("savepoint", "create", base, "--to", f"{base}-savepoints", "--apply")
    assert refused.exit_code == 1
    assert f"less than {after_s} s" in refused.stderr


def test_a_dead_sink_whose_clock_was_ahead_is_seen(tmp_path: Path) -> None:
    """Its silence is counted by the store's clock, as recover does, not from a time that has not come yet."""

    def die() -> None:
        out = long_sink(tmp_path, clock=lambda: system_clock_ms() + 86_400_000).local().open()
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        os._exit(0)

    assert in_child(die) == 0
    age(tmp_path)
    sink = one_sink(tmp_path)
    assert sink["quiet_s"] > 86_400
    assert len(sink["stuck"]) == 2


@pytest.mark.parametrize("is_running", [True, False])
def test_a_driver_is_known_by_its_marker(tmp_path: Path, is_running: bool) -> None:
    """Where a driver held its marker, its lock tells whether it lives, however long it has been silent."""
    seed_with_a_tail(tmp_path)
    with LocalStore(str(tmp_path / "_partfile")) as driver:
        assert driver.hold_marker("life/_marker")
        if not is_running:
            driver.close()
        sink = one_sink(tmp_path, code=0 if is_running else 1)
    assert sink["is_running"] is is_running
    assert len(sink["stuck"]) == (0 if is_running else 2)
    assert is_running or "the sink stopped while it was open" in sink["stuck"][0]["why"]


def test_status_lists_no_bucket_and_changes_nothing(tmp_path: Path) -> None:
    """What is read are checkpoints: the tree is never listed, the base store never opened, no byte changed."""
    seed_with_a_tail(tmp_path)
    before = everything(tmp_path)
    opened: list[str] = []

    def opener(url: str, _options: object) -> UnlistedStore:
        opened.append(url)
        store = UnlistedStore(url, create_base=False)
        store.asked = asked
        return store

    asked: list[str] = []
    place = Place(str(tmp_path), opener=opener)
    checkpoints = place.open_checkpoints()
    assert checkpoints is not None
    with checkpoints:
        seen = read_base(place, checkpoints)
        status = status_of(seen, seen.logs[0], system_clock_ms(), HOUR_S, system_clock_ms())
    assert len(status.stuck) == 2
    assert opened == [f"{tmp_path}/_partfile"]
    assert {name.split("/")[0] for name in asked} == {"", "life"}
    assert everything(tmp_path) == before


def test_a_damaged_newest_checkpoint_is_told_first(tmp_path: Path) -> None:
    """A checkpoint that cannot be read is a finding with its message and the command that shows more."""
    seed_with_a_tail(tmp_path)
    (tmp_path / "_partfile" / "life" / "chk-2" / "_metadata").write_bytes(b"partfile checkpoint 1 9 00000000\n{}\n")
    sink = one_sink(tmp_path)
    assert sink["problem"]["error"] == "SnapshotCorrupt"
    text = told("status", tmp_path, code=1)
    assert text.startswith("DAMAGED  life:")
    assert f"partfile checkpoints {tmp_path} --uid life" in text


def test_parts_with_one_cause_are_told_together(tmp_path: Path) -> None:
    """Thirty open parts are one cause: its total, its oldest age, some names, and the command for the rest."""

    def die() -> None:
        out = make_sink(tmp_path, rolling=LONG, bucketer=pf.HiveBucketer("day"), clock=_an_hour_ago).local().open()
        out.write(pa.table({"day": list(range(30)), "row": [f"row-{day:04d}" for day in range(30)]}))
        out.checkpoint(30)
        os._exit(0)

    assert in_child(die) == 0
    text = told("status", tmp_path, code=1)
    stuck = text.partition("\n\n")[0].splitlines()
    assert stuck[:2] == [
        "STUCK  life: 30 parts",
        "  30 parts in-progress, 270 B valid, 30 rows, in 30 buckets, the oldest 1h ago",
    ]
    assert stuck[2].startswith("    why:  the sink fell silent")
    assert stuck[3] == "    then: the next start, or recover, cuts it to its valid bytes and publishes it"
    assert len(stuck) == 10
    rest, command = stuck[7].split(": ")
    assert rest == "    and 27 more"
    assert len(told(*command.split()[1:]).splitlines()) == 1 + 30


def _an_hour_ago() -> int:
    return system_clock_ms() - 3_600_000


def test_writers_with_logs_of_their_own_are_told_apart(tmp_path: Path) -> None:
    """A uid names the sink and its writers, uid~n one writer."""
    for index in (0, 3):
        with long_sink(tmp_path).local(subtask_index=index) as out:
            out.write(batch(0, 4), position=4)
    jobs = [sink["job"] for sink in told_json("status", tmp_path)["sinks"]]
    assert jobs == ["life", "life~3"]
    assert [sink["job"] for sink in told_json("status", tmp_path, "--uid", "life")["sinks"]] == jobs
    assert one_sink(tmp_path, "--uid", "life~3", code=0)["writer"] == 3


def test_checkpoints_elsewhere_are_found_where_they_are_said_to_be(tmp_path: Path) -> None:
    """``--checkpoint-dir`` finds them, and the command that mends names it again."""
    base, elsewhere = tmp_path / "out", tmp_path / "check points"
    seed_with_a_tail(base, checkpoint_dir=str(elsewhere))
    assert "no sink has checkpoints" in run("status", base).stderr
    text = told("status", base, "--checkpoint-dir", elsewhere, code=1)
    assert f"--uid life --checkpoint-dir '{elsewhere}'" in text


def test_a_mistyped_base_of_checkpoints_elsewhere_is_no_damage(tmp_path: Path) -> None:
    """It is not there, and the checkpoints say which one was meant; one that is there has been moved, perhaps."""
    base, elsewhere = tmp_path / "out", tmp_path / "chk"
    seed_with_a_tail(base, checkpoint_dir=str(elsewhere))
    refused = run("status", tmp_path / "oot", "--checkpoint-dir", elsewhere)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "oot' is not there" in refused.stderr
    assert refused.stderr.endswith(f"partfile status {base} --uid life --checkpoint-dir {elsewhere}\n")
    for verb in ("schema", "sql", "list", "verify", "recover", "clean"):
        assert run(verb, tmp_path / "oot", "--checkpoint-dir", elsewhere).exit_code == 2
    base.rename(tmp_path / "moved")
    said = told("status", tmp_path / "moved", "--checkpoint-dir", elsewhere, code=1)
    # What is printed is typed as it stands.
    (command,) = re.findall("partfile (recover .* --moved-from .*)", said)
    told(*shlex.split(command), "--idle-for", "0s", code=1)
    told(*shlex.split(command), "--idle-for", "0s", "--apply")


def test_the_base_that_is_named_is_that_of_the_sink_that_was_asked_for(tmp_path: Path) -> None:
    """Several sinks may keep their checkpoints in one directory."""
    chk = tmp_path / "chk"
    for uid in ("a", "b"):
        with pf.FileSink(tmp_path / uid, uid=uid, checkpoint_dir=str(chk)).local() as out:
            out.write(pa.table({"id": [1]}))
    for uid in ("a", "b"):
        refused = run("status", tmp_path / "bb", "--uid", uid, "--checkpoint-dir", chk)
        assert refused.exit_code == 2
        assert f"partfile status {tmp_path / uid} --uid {uid} --checkpoint-dir {chk}\n" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "is not there"),
        (("base", "--uid", "other"), "no sink 'other'"),
        (("base", "--uid", "../x"), "not the name of a sink"),
        (("base", "--checkpoint-dir", "nowhere"), "is not there"),
        (("base", "--quiet-after", "soon"), "for instance --quiet-after 24h"),
        (("base/_partfile/life/chk-1/_metadata",), "not a directory"),
    ],
)
def test_what_cannot_be_meant_is_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    """A missing path, an unknown uid or a bad option ends with 2 and says which; nothing is made."""
    monkeypatch.chdir(tmp_path)
    seed_with_a_tail(tmp_path / "base")
    before = everything(tmp_path)
    result = run("status", *words)
    assert result.exit_code == 2, result.stderr
    assert message in result.stderr.replace("is a file", "not a directory")
    assert everything(tmp_path) == before


def test_an_empty_directory_has_no_sink(tmp_path: Path) -> None:
    """A path without checkpoints is an error with the way to name them, so no watch on it is green for ever."""
    result = run("status", tmp_path)
    assert result.exit_code == 2
    assert "no sink has checkpoints" in result.stderr
    assert "--checkpoint-dir" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("lake/events/bucket=b0", "Did you mean {t}/lake/events?"),
        ("lake/events/_partfile", "Did you mean {t}/lake/events?"),
        ("lake/events/_partfile/life", "Did you mean {t}/lake/events?"),
        ("lake/event", "Did you mean one of {t}/lake/events, {t}/lake/orders?"),
        ("lake", "Did you mean one of lake/events, lake/orders?"),
        (".", "Did you mean one of ./lake/events, ./lake/orders?"),
        ("file://{t}/lake/", "Did you mean one of file://{t}/lake/events, file://{t}/lake/orders?"),
        ("empty/deep/er", "Check PATH."),
    ],
)
def test_a_path_without_a_sink_names_the_nearest_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, near: str
) -> None:
    """A bucket, the directory of checkpoints, the directory above, a slip: status says where the sinks are."""
    monkeypatch.chdir(tmp_path)
    seed_with_a_tail(tmp_path / "lake" / "orders")
    seed_with_a_tail(tmp_path / "lake" / "events")
    (tmp_path / "empty" / "deep" / "er").mkdir(parents=True)
    before = everything(tmp_path)
    result = run("status", path.format(t=tmp_path), "--json")
    assert result.exit_code == 2
    said = json.loads(result.stderr)
    assert said["error"] == "NotFound"
    assert said["exit_code"] == 2
    assert said["hint"].startswith(near.format(t=tmp_path)), said
    assert everything(tmp_path) == before


def test_a_base_that_is_gone_is_named_though_its_checkpoints_are_elsewhere(tmp_path: Path) -> None:
    """Its file system may not be mounted: a watch that goes by the exit code must see that."""
    base, checkpoints = tmp_path / "base", tmp_path / "checkpoints"
    sink = pf.FileSink(base, uid="u", checkpoint_dir=str(checkpoints))
    with sink.local():
        pass
    quiet = run("status", base, "--checkpoint-dir", checkpoints)
    assert quiet.exit_code == 0, "without a row nothing can be gone"
    with sink.local() as out:
        out.write(pa.table({"id": [1]}))
    base.rename(tmp_path / "moved")
    gone = run("status", base, "--checkpoint-dir", checkpoints)
    assert gone.exit_code == 2
    assert str(base) in gone.stderr


def test_looking_for_a_sink_ends_soon(tmp_path: Path) -> None:
    """Below a large directory few names are listed; those without a suffix come first, for they are directories."""
    for number in range(200):
        (tmp_path / f"file-{number}.json").touch()
    seed_with_a_tail(tmp_path / "zone" / "events")
    asked: list[str] = []

    def opener(url: str, _options: object) -> UnlistedStore:
        store = UnlistedStore(url, create_base=False)
        store.asked = asked
        return store

    error = no_sink_at(Place(str(tmp_path), opener=opener))
    assert error.hint == f"Did you mean {tmp_path}/zone/events?"
    assert 2 < len(asked) < 80


def test_looking_disturbs_no_sink(tmp_path: Path) -> None:
    """A sink goes on and ends exactly once however often it is looked at meanwhile, and no look sees an error."""
    with make_sink(tmp_path).local() as out:
        for number in range(12):
            out.write(batch(number, 1), position=number + 1)
            out.checkpoint()
            told("status", tmp_path, "--quiet-after", "9999999d", "--scan")
            told("verify", tmp_path)
            told("list", tmp_path)
            told("checkpoints", tmp_path)
    assert_exactly_once(tmp_path)


def test_the_opener_makes_nothing(tmp_path: Path) -> None:
    """A place that is not there stays so."""
    with pytest.raises(Exception, match="is not there"):
        open_for_looking(str(tmp_path / "nowhere"), {})
    assert not (tmp_path / "nowhere").exists()


# ``partfile status --scan``: what every file below a base is, and what is missing.


def test_a_scan_says_what_every_file_is(tmp_path: Path) -> None:
    """With ``--scan`` the tree is listed: finished, staged, orphans, foreign ones; names are escaped in text alone."""
    crash_when_promised(tmp_path)
    bucket = tmp_path / "bucket=b0"
    known = min(path.name for path in bucket.glob("_part-*"))
    token = known.split(".")[2]
    (bucket / known.replace(token, "f" * 32)).write_text("tail of an attempt that died")
    (bucket / "evil\x1b[2J.csv").write_text("x")
    scan = told_json("status", tmp_path, "--scan", code=1)["scan"]
    assert scan["missing"] == []
    assert scan["kinds"]["orphan"]["examples"] == [f"bucket=b0/{known.replace(token, 'f' * 32)}"]
    assert scan["kinds"]["foreign"]["examples"] == ["bucket=b0/evil\x1b[2J.csv"]
    assert scan["kinds"]["staged"]["files"] >= 2
    text = told("status", tmp_path, "--scan", code=1)
    assert "evil\\x1b[2J.csv" in text
    assert "\x1b" not in text
    assert f"partfile clean {tmp_path}" in text


def test_a_part_that_is_gone_is_missing(tmp_path: Path) -> None:
    """A part that the newest checkpoint names and that is under none of its names is a finding of the scan."""
    seed_with_a_tail(tmp_path)
    gone = next((tmp_path / "bucket=b0").glob("_part-*"))
    gone.unlink()
    (missing,) = told_json("status", tmp_path, "--scan", code=1)["scan"]["missing"]
    assert gone.name.startswith(f"_{missing.rpartition('/')[2]}")


def test_nothing_is_called_an_orphan_for_sure_while_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    """Parts that only an unreadable checkpoint names look like orphans; then no hint says to clean them away."""
    seed_with_a_tail(tmp_path)
    (tmp_path / "_partfile" / "life" / "chk-2" / "_metadata").write_bytes(b"?")
    scan = told_json("status", tmp_path, "--scan", code=1)["scan"]
    assert scan["kinds"]["orphan"]["files"] == 2
    assert not scan["is_complete"]
    text = told("status", tmp_path, "--scan", code=1)
    assert "may be a part that counts" in text
    assert "partfile clean" not in text


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (17, "17"),
        ({"file": "a\n", "line": 3}, '{"file": "a\\n", "line": 3}'),
        ("x" * 300, f'"{"x" * 199}... (--json shows all)'),
        ({"topic": "orders", "offsets": {"0": 5}}, '{"topic": "orders", "offsets": {"0": 5}}'),
        ({"files": "/in", "done": {"a": 1}, "file": None, "at": 0, "time": 0}, "/in: 1 file read"),
        (
            {"files": "/in", "done": {"a": 1, "b": 2}, "file": "c.json", "at": 70, "time": 0},
            "/in: 2 files read, and c.json up to 70",
        ),
        ({"topic": "t", "offsets": {"0": 5}, "ends": {}}, "topic t, 1 partition, not known how many records wait"),
        ({"topic": "t", "offsets": {"0": 5}, "ends": {"0": 5}}, "topic t, 1 partition, 0 records waiting"),
        (
            {"topic": "t", "offsets": {"0": 5, "1": 7, "2": 9, "3": 1}, "ends": {"0": 6, "1": 7, "2": 109, "4": 1}},
            "topic t, 4 partitions, at least 101 records waiting (by partition 2: 100, 0: 1)",
        ),
    ],
)
def test_where_the_input_stands_is_shown(tmp_path: Path, position: Any, words: str) -> None:
    """As the program passed it; of a topic of Kafka what waited in its partitions, the most first."""
    with make_sink(tmp_path).local() as out:
        out.write(batch(0, 3), position=position)
    assert f"  position           {words}\n" in told("status", tmp_path)
    (sink,) = told_json("status", tmp_path)["sinks"]
    assert sink["position"] == position
