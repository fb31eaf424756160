"""The verbs that read, on a real S3 server: parts that are not finished are no objects there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from command_line import run, told, told_json, told_lines
from s3_commands import at, crashed
from s3_life import MIB
from s3_proxy import S3Proxy
from s3_store_support import store_options

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import S3Server

HIDDEN = "hush-hush"


@pytest.mark.parametrize("row_bytes", [10, 3 * MIB], ids=["side objects", "uploads"])
def test_parts_that_are_no_objects_are_told(moto: S3Server, tmp_path: Path, row_bytes: int) -> None:
    """Open parts are stuck, listed without a size, not missing and no error; only GET and HEAD are sent."""
    base = f"s3://{moto.bucket()}/base"
    stream = crashed(moto, base, row_bytes)
    with S3Proxy(moto) as proxy:
        place = at(proxy, base, tmp_path)
        (sink,) = told_json("status", *place, code=1)["sinks"]
        assert [part["valid_length"] for part in sink["stuck"]] == [2 * row_bytes] * 2
        listed = [part for part in told_lines("list", *place) if part["state"] == "in-progress"]
        assert [(part["size_bytes"], part["is_current"]) for part in listed] == [(None, True)] * 2
        assert told_json("verify", *place)["findings"] == []
        assert told_json("status", *place, "--scan", code=1)["scan"]["missing"] == []
        refused = run("cat", base, sink["stuck"][0]["path"], *place[1:])
        assert refused.exit_code == 1
        assert "in no file before it is published" in refused.stderr
        assert {each.request.method for each in proxy.exchanges} == {"GET", "HEAD"}
    stream.run_to_the_end()
    stream.assert_exactly_once()
    direct = at(moto, base, tmp_path)
    assert told_json("verify", *direct)["findings"] == []
    told("cat", base, min(stream.finished()), *direct[1:])


def test_an_upload_that_was_aborted_is_missing(moto: S3Server, tmp_path: Path) -> None:
    """Side objects that somebody deleted make their part missing, to the scan and to verify."""
    bucket = moto.bucket()
    crashed(moto, f"s3://{bucket}/base", 10)
    client = moto.filesystem()
    sides = client.find(f"{bucket}/base/_partfile/_sides")
    client.rm_file(sides[0])
    place = at(moto, f"s3://{bucket}/base", tmp_path)
    (missing,) = told_json("status", *place, "--scan", code=1)["scan"]["missing"]
    (finding,) = told_json("verify", *place, code=1)["findings"]
    assert (finding["code"], finding["path"]) == ("part-missing", missing)


def test_secrets_are_shown_nowhere(moto: S3Server, tmp_path: Path) -> None:
    """Whatever fails, what opens the store is in no output."""
    options = tmp_path / "options.json"
    options.write_text(json.dumps({**store_options(moto), "secret": HIDDEN, "token": HIDDEN}))
    for base in (f"s3://{moto.bucket()}/nothing", "s3://no-such-bucket-anywhere/base"):
        for verb in ("status", "list", "verify", "checkpoints"):
            result = run(verb, base, "--storage-options-file", options, "--debug")
            assert result.exit_code in {0, 2, 3}
            assert HIDDEN not in result.stdout + result.stderr
