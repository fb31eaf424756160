"""The verbs that change, on a real S3 server: unfinished parts are uploads, side objects and claims there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from command_line import run, told, told_json
from dead_sinks import orphan_of
from s3_commands import A_SECOND_S, at, crashed
from s3_faults import error
from s3_life import MIB
from s3_proxy import S3Proxy

from partfile.stores.s3.store import S3Store

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import S3Server


@pytest.mark.parametrize("row_bytes", [10, 3 * MIB], ids=["side objects", "uploads"])
def test_a_dead_sink_is_recovered_and_goes_on(moto: S3Server, tmp_path: Path, row_bytes: int) -> None:
    """The plan sends GET and HEAD alone; --apply publishes; the sink's next run ends with each row once."""
    stream = crashed(moto, f"s3://{moto.bucket()}/base", row_bytes)
    with S3Proxy(moto) as proxy:
        told("recover", *at(proxy, stream.base, tmp_path), code=1)
        assert {each.request.method for each in proxy.exchanges} == {"GET", "HEAD"}
    assert not stream.finished()
    place = at(moto, stream.base, tmp_path)
    assert run("recover", *place, "--apply").exit_code == 1, "it moved a moment ago"
    assert "2 parts published" in told("recover", *place, "--apply", "--fence")
    assert set(stream.rows_seen()) == {0, 1, 2, 3}
    assert "nothing to recover" in told("recover", *place)
    stream.run_to_the_end()
    stream.assert_exactly_once()


def test_what_parts_have_left_goes_on_demand_alone(moto: S3Server, tmp_path: Path) -> None:
    """Uploads, side objects and claims of our chain that no checkpoint names: left without --delete, which takes them.

    Those that a checkpoint names stay, and so does every foreign upload.
    """
    bucket = moto.bucket()
    stream = crashed(moto, f"s3://{bucket}/base", 3 * MIB)
    place = at(moto, stream.base, tmp_path)
    (parts, _) = told_json("status", *place, code=1)["sinks"][0]["stuck"]
    chain = parts["path"].split("-")[1]
    with S3Store(stream.base, stream.options) as store:
        for number, data in ((90, b"few"), (91, b"many" * 2 * MIB)):
            first = store.create(orphan_of(chain, number))
            first.write(data)
            handle = first.persist()
            again = store.resume(handle)
            again.write(b"more")
            again.persist()
        foreign = store.create(orphan_of("deadbeef", 92))
        foreign.write(b"not ours" * MIB)
        foreign.persist()
        client = moto.filesystem()
        for key in ("some/backup.tar", f"some//part-{chain}-0-93.txt", f"../part-{chain}-0-94.txt"):
            client.call_s3("create_multipart_upload", Bucket=bucket, Key=f"base/{key}")
        time.sleep(A_SECOND_S)
        stream.sink().local().open().close()
        time.sleep(A_SECOND_S)
        clean = ("clean", *place, "--older-than", "0s")
        report = told_json(*clean, code=1)
        items = report["plan"]["items"]
        assert {(item["kind"], item["action"]) for item in items} == {
            ("upload", "leave"),
            ("side object", "leave"),
            ("claim", "leave"),
        }
        assert told_json(*clean, "--apply", "--fence", code=1)["cleaned"] is None
        assert told_json(*clean, "--delete", "--apply", "--fence")["cleaned"]["done"] == len(items)
        left = list(store.leftovers((), 1 << 50))
        assert {one.name.split("-")[1] for one in left if one.name.startswith("part-")} <= {"deadbeef", chain}
        assert {one.path for one in left if one.kind == "upload"} == {
            "some/backup.tar",
            "bucket=b0/part-deadbeef-0-92.txt",
        }
    stream.run_to_the_end()
    stream.assert_exactly_once()


def test_open_parts_survive_a_clean(moto: S3Server, tmp_path: Path) -> None:
    """What a checkpoint names is no leftover, whatever its age: the sink goes on and publishes all of it."""
    stream = crashed(moto, f"s3://{moto.bucket()}/base", 3 * MIB)
    time.sleep(A_SECOND_S)
    place = at(moto, stream.base, tmp_path)
    told("clean", *place, "--older-than", "0s", "--delete", "--apply", "--fence")
    assert told_json("verify", *place)["findings"] == []
    stream.run_to_the_end()
    stream.assert_exactly_once()


def test_credentials_that_may_only_read(moto: S3Server, tmp_path: Path) -> None:
    """H7: they get the plan; --apply ends with 3 and one message, and nothing is changed."""
    stream = crashed(moto, f"s3://{moto.bucket()}/base", 10)
    with S3Proxy(moto) as proxy:
        for method in ("PUT", "POST", "DELETE"):
            proxy.inject(error(403, "AccessDenied"), method=method, times=None)
        place = at(proxy, stream.base, tmp_path)
        told("recover", *place, code=1)
        refused = run("recover", *place, "--apply", "--fence")
        assert refused.exit_code == 3, refused.stdout + refused.stderr
        assert "Traceback" not in refused.stderr
    assert not stream.finished()
    stream.run_to_the_end()
    stream.assert_exactly_once()
