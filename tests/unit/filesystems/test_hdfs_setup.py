"""What options and Hadoop's files say together: obeyed, or refused by name before HDFS is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.hdfs import HdfsStore
from partfile.filesystems.hdfs_options import HdfsOptions
from partfile.filesystems.hdfs_setup import BlockLayout, block_layout, configuration_of

if TYPE_CHECKING:
    from pathlib import Path


def layout_of(**options: object) -> BlockLayout:
    """How files are stored with these options."""
    checked = HdfsOptions.of(options)
    return block_layout(checked, configuration_of(checked))


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("67108864", 67108864), ("64m", 64 << 20), (" 2048K ", 2 << 20), ("1G", 1 << 30), ("1t", 1 << 40), ("", None)],
)
def test_the_size_of_blocks_is_read_as_hadoop_reads_it(text: str, size_bytes: int | None) -> None:
    """Bytes, or with a binary prefix; its old name counts too."""
    assert layout_of(config={"dfs.blocksize": text}) == BlockLayout(size_bytes, None)
    assert layout_of(config={"dfs.block.size": text}).size_bytes == size_bytes


def test_options_win_over_properties_and_those_over_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is obeyed where nothing before it decides; without any the NameNode does."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert layout_of() == BlockLayout(None, None)
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.replication</name><value>2</value></property>"
        "<property><name>dfs.blocksize</name><value>64m</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert layout_of() == BlockLayout(64 << 20, 2)
    config = {"dfs.replication": "3", "dfs.blocksize": "32m"}
    assert layout_of(config=config) == BlockLayout(32 << 20, 3)
    assert layout_of(config=config, replication=1, block_size_bytes=1 << 20) == BlockLayout(1 << 20, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("dfs.replication", value) for value in ("two", "-3", "0", "513", "1.5")]
    + [("dfs.blocksize", value) for value in ("big", "-1", "0", "1000", "64 mb", "9999999e")],
)
def test_a_property_that_is_nonsense_is_refused_by_name(name: str, value: str) -> None:
    """When the store is opened, whose tasks would otherwise write with other settings than those asked for."""
    with pytest.raises(ConfigError, match=f"{name}='{value}'"):
        HdfsStore("hdfs://nn/base", HdfsOptions(config={name: value}))
