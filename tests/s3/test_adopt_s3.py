"""``recover --adopt-layout`` on S3: it looks and tells, and leaves what could only be copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_line import told, told_json
from flink_trees import rows, write_utf
from s3_commands import at
from s3_store_support import store_options

from partfile.stores.registry import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import S3Server


def test_verdicts_are_told_and_nothing_is_changed(moto: S3Server, tmp_path: Path) -> None:
    """Both layouts: what would be cut, published or moved is left with the reason, with --apply too."""
    place = at(moto, f"s3://{moto.bucket()}/base", tmp_path)
    name = "part-00001-e54e316f-8d8f-4e0a-9556-b37b0aa330c2.c000.json"
    files = {
        "d/part-0-1": rows(0, 10) + b"tail",
        "d/_part-0-1.valid-length": write_utf("50"),
        "d/_part-0-2.in-progress": rows(10, 11),
        f"d/{name}": b"{}",
        "_spark_metadata/0": b"v1",
    }
    with open_store(place[0], store_options(moto)) as store:
        for path, data in files.items():
            store.create_file(path, data)
        for layout, paths in (
            (("flink", "--quarantine-in-progress"), {"d/part-0-1", "d/_part-0-2.in-progress"}),
            (("spark",), {f"d/{name}"}),
        ):
            command = ("recover", *place, "--adopt-layout", *layout)
            items = told_json(*command, code=1)["plan"]["items"]
            assert {item["path"]: item["action"] for item in items} == dict.fromkeys(paths, "leave")
            assert all("this store cannot" in item["why"] for item in items)
            told(*command, "--apply", "--fence", code=1)
        assert {file.path: store.read_file(file.path, 1000) for file in store.list()} == files
