"""What options and Hadoop's files say together: obeyed, or refused by name before HDFS is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import partfile as pf
from partfile.errors import ConfigError
from partfile.stores.hdfs.client import BlockLayout, HdfsProcess, block_layout, configuration_of
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.stores.registry import is_same_place
from partfile.stores.urls import HdfsUrl

if TYPE_CHECKING:
    from pathlib import Path


def layout_of(**options: object) -> BlockLayout:
    """How files are stored with these options."""
    checked = HdfsOptions.of(options)
    return block_layout(checked, configuration_of("hdfs://nn", checked))


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


@pytest.mark.parametrize(
    "address", ["not an address", "127.0.0.1:notaport", "ftp://h:1", "http://", "h", "h h:1", "h:0", "h:99999"]
)
@pytest.mark.parametrize("cut", ["auto", "truncate", "rewrite"])
def test_an_address_that_cannot_be_one_is_refused_when_the_sink_is_made(address: str, cut: str) -> None:
    """Found out by the first cut only, it would leave committed rows hidden, or copy for ever."""
    with pytest.raises(ConfigError, match=r"http_address: .*no address of a web server"):
        pf.FileSink("hdfs://nn/base", uid="u", cut=cut, storage_options={"http_address": address})


def test_a_password_in_an_address_is_not_shown() -> None:
    """Whoever writes one hears what an address is."""
    with pytest.raises(ConfigError) as raised:
        HdfsOptions.of({"http_address": "http://alice:hunter2@nn:9870"})
    assert "hunter2" not in str(raised.value)


def test_a_wrong_way_to_the_web_server_is_refused_when_the_sink_is_made() -> None:
    """A file that is not there, or an address in a property, whoever it was that wrote it."""
    with pytest.raises(ConfigError, match=r"ca_file '/nonexistent\.pem'"):
        pf.FileSink("hdfs://nn/base", uid="u", storage_options={"ca_file": "/nonexistent.pem"})
    options = {"config": {"dfs.namenode.rpc-address": "nn:8020", "dfs.namenode.http-address": "nn:web"}}
    with pytest.raises(ConfigError, match=r"dfs\.namenode\.http-address"):
        pf.FileSink("hdfs://nn/base", uid="u", storage_options=options)
    pf.FileSink("hdfs://nn/base", uid="u", storage_options=options, cut="rewrite")


def test_nonsense_for_the_client_is_refused_when_the_sink_is_made(tmp_path: Path) -> None:
    """Under Spark it would show inside of the first batch only."""
    for options in ({"config": {"dfs.replication": "two"}}, {"replication": "two"}, {"no_such_option": "two"}):
        with pytest.raises(ConfigError, match=r"replication|no_such_option"):
            pf.FileSink("hdfs://nn/base", uid="u", storage_options=options)
    with pytest.raises(ConfigError, match="local files take no storage_options"):
        pf.FileSink(tmp_path, uid="u", storage_options={"replication": 2})


@pytest.mark.parametrize("name", ["user", "config_dir", "kerberos_principal", "http_address", "ca_file"])
@pytest.mark.parametrize("value", ["", " "])
def test_an_option_without_content_is_refused(name: str, value: str) -> None:
    """An empty user keeps hdfs-native waiting for 40 s, and then every other client of the process."""
    with pytest.raises(ConfigError, match=f"{name}: it is empty"):
        pf.FileSink("hdfs://nn/base", uid="u", storage_options={name: value})


def test_an_empty_user_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """hdfs-native takes it as it is."""
    monkeypatch.setenv("HADOOP_USER_NAME", "")
    with pytest.raises(ConfigError, match="HADOOP_USER_NAME is set, but empty"):
        HdfsStore("hdfs://nn/base")
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    HdfsStore("hdfs://nn/base").close()


def directory_of(path: Path, core_site: str) -> str:
    """A directory with Hadoop's files."""
    path.mkdir()
    (path / "core-site.xml").write_text(core_site)
    return str(path)


DEFAULT_IS_NN = "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn</value></property></configuration>"


def test_the_option_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the environment's directory is looked at, whatever is in it, and ``config`` wins over both."""
    options: dict[str, object] = {"config_dir": directory_of(tmp_path / "good", DEFAULT_IS_NN)}
    for rubbish in (directory_of(tmp_path / "bad", "not xml <<<"), "/nonexistent"):
        monkeypatch.setenv("HADOOP_CONF_DIR", rubbish)
        sink = pf.FileSink("hdfs:///base", uid="u", checkpoint_dir="hdfs://nn/ck", storage_options=options)
        assert sink.settings.checkpoint_options == options
        assert is_same_place("hdfs:///a", "hdfs://nn/a", options)
        assert not is_same_place("hdfs:///a", "/a", {})
        HdfsStore("hdfs:///base", HdfsOptions.of(options)).close()
        with pytest.raises(ConfigError):
            pf.FileSink("hdfs:///base", uid="u")
    assert is_same_place("hdfs:///a", "hdfs://other/a", {**options, "config": {"fs.defaultFS": "hdfs://other:8020"}})


@pytest.mark.parametrize("base", ["hdfs://127.0.0.1:9/base", "hdfs:///base"])
@pytest.mark.parametrize("by_option", [True, False])
def test_damaged_files_are_named_before_hdfs_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, by_option: bool
) -> None:
    """By writers, by readers and when the sink is made; a directory that is missing, too."""
    for directory, named in ((directory_of(tmp_path / "bad", "not xml <<<"), "core-site.xml"), ("/gone", "'/gone'")):
        options: dict[str, object] = {"config_dir": directory} if by_option else {}
        monkeypatch.setenv("HADOOP_CONF_DIR", "/other" if by_option else directory)
        with pytest.raises(ConfigError, match=named):
            pf.FileSink(base, uid="u", storage_options=options)
        with pytest.raises(ConfigError, match=named):
            HdfsStore(base, HdfsOptions.of(options))
        with pytest.raises(ConfigError, match=named):
            HdfsProcess().client(HdfsUrl.of(base).root, HdfsOptions.of(options))


def test_files_that_hdfs_native_alone_refuses_are_named(tmp_path: Path) -> None:
    """It takes no empty one; and a name service needs its NameNodes."""
    for root, core_site in (("hdfs://127.0.0.1:9", " "), ("hdfs://no-such-service", "<configuration/>")):
        options = HdfsOptions(config_dir=directory_of(tmp_path / root[-4:], core_site))
        with pytest.raises(ConfigError, match=f"{root} with the files in {options.config_dir!r}"):
            HdfsProcess().client(root, options)


def test_a_url_that_names_no_hdfs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which directory was read."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    empty = directory_of(tmp_path / "empty", "")
    for options, named in ((HdfsOptions(config_dir=empty), empty), (HdfsOptions(), "HADOOP_CONF_DIR is not set")):
        with pytest.raises(ConfigError, match=named):
            HdfsStore("hdfs:///base", options)
    with pytest.raises(ConfigError, match="which is 'file:///'"):
        HdfsStore("hdfs:///base", HdfsOptions(config={"fs.defaultFS": "file:///"}))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"replication": "two"}, "replication: Input should be a valid integer"),
        ({"call_timeout_s": float("nan")}, "call_timeout_s: Input should be a finite number"),
        ({"config": {"dfs.replication": 2}}, r"config\.dfs\.replication: Input should be a valid string"),
        ({"replicas": 2}, r"replicas: no such option Hint: There are .*replication"),
    ],
)
def test_a_refusal_says_what_is_wanted(options: dict[str, object], says: str) -> None:
    """The names of all options help only against one that there is not."""
    with pytest.raises(ConfigError, match=says) as raised:
        HdfsOptions.of(options)
    assert ("There are" in raised.value.hint) is ("replicas" in options)
