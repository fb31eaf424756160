"""URLs, options and Hadoop's configuration of the HDFS store, without a server."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import partfile as pf
from partfile.errors import ConfigError
from partfile.stores.hadoop import MAX_FILE_BYTES, HadoopConfiguration, Property, properties_in, read_configuration
from partfile.stores.hdfs.client import BlockLayout, HdfsProcess, block_layout, configuration_of
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.stores.registry import check_url, is_same_place, open_store, path_inside
from partfile.stores.urls import HdfsUrl

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.stores.base import Cut


# URLs and options of HDFS, without a server.


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("hdfs://nn:8020/a/b", "nn:8020", "/a/b"),
        ("hdfs://nn//a///b/", "nn", "/a/b"),
        ("HDFS://nn", "nn", "/"),
        ("hdfs:///a", "", "/a"),
        ("hdfs:/a", "", "/a"),
        ("hdfs://nn/a%20b?x#y", "nn", "/a%20b?x#y"),
        ("hdfs://[::1]:8020/a", "[::1]:8020", "/a"),
    ],
)
def test_a_url_is_read_as_hadoop_reads_it(url: str, authority: str, path: str) -> None:
    """Its path is literal, with doubled slashes made one; without an authority fs.defaultFS decides."""
    check_url(url)
    assert HdfsUrl.of(url) == (authority, path)


@pytest.mark.parametrize(
    "url",
    [
        "hdfs:",
        "hdfs:a/b",
        "hdfs://nn/a/../b",
        "hdfs://nn/./b",
        "hdfs://bob@nn/a",
        "hdfs://n n/a",
        "hdfs://:1/a",
        "hdfs://nn/a:b",
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    """Relative paths, users and damaged hosts are not guessed at."""
    with pytest.raises(ConfigError):
        check_url(url)


@pytest.mark.parametrize(("url", "word"), [("viewfs://c/x", "hdfs://"), ("webhdfs://nn/x", "http_address")])
def test_other_schemes_of_hadoop_are_refused_with_what_to_write(url: str, word: str) -> None:
    """The hint says how to reach the same cluster."""
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    assert word in raised.value.hint


@pytest.mark.parametrize(
    ("path", "base", "inside"),
    [
        ("hdfs://nn/a/b/c", "hdfs://NN:8020/a", ("b", "c")),
        ("hdfs://nn/a/", "hdfs://nn//a", ()),
        ("hdfs://nn/ab", "hdfs://nn/a", None),
        ("hdfs://nn/a", "hdfs://other/a", None),
        ("hdfs://nn/a", "/a", None),
        ("/a/b", "hdfs://nn/a", None),
        ("hdfs://nn/a", "hdfs://nn", ("a",)),
    ],
)
@pytest.mark.fault("T9")
def test_places_are_compared_over_their_spellings(path: str, base: str, inside: tuple[str, ...] | None) -> None:
    """Case of the host and the default port make no difference; another file system does."""
    assert path_inside(path, base, {}) == inside
    assert is_same_place(path, base, {}) is (inside == ())


def test_a_url_without_authority_is_where_the_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both spellings of one place are one place."""
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:8020/</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert path_inside("hdfs:///a/b", "hdfs://nn/a", {}) == ("b",)
    assert not is_same_place("hdfs:///a", "hdfs://other/a", {})


def test_opening_asks_hdfs_nothing() -> None:
    """A task opens two stores a batch: that must cost no call, and so works although no server is there."""
    with open_store("hdfs://127.0.0.1:9/base") as store:
        assert store.base == "hdfs://127.0.0.1:9/base"
        assert store.capabilities.fence


def test_without_its_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named, before anything is tried."""
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(ConfigError) as raised:
        open_store("hdfs://nn/base")
    assert "partfile[hdfs]" in raised.value.hint


def test_options_are_checked_and_never_shown() -> None:
    """An unknown option and a bad value are named, a secret stays one."""
    for options in ({"call_timeout": "hunter2"}, {"call_timeout_s": "hunter2"}, {"call_timeout_s": 0}):
        with pytest.raises(ConfigError) as raised:
            open_store("hdfs://nn/base", options)
        assert next(iter(options)) in str(raised.value)
        assert "hunter2" not in str(raised.value)
    known = HdfsOptions.of({"delegation_token": "hunter2", "config": {"x": "hunter2"}})
    assert "hunter2" not in repr(known)


@pytest.mark.parametrize(("timeout_s", "attempts"), [(60, "20"), (3, "1"), (1, "1")])
def test_the_client_gives_up_before_our_deadline(timeout_s: float, attempts: str) -> None:
    """Its own retries would go on for 180 s; what the user sets wins."""
    config = HdfsOptions(call_timeout_s=timeout_s).client_config
    assert config["dfs.client.failover.max.attempts"] == attempts
    wanted = {"dfs.client.failover.max.attempts": "9", "a": "b"}
    assert HdfsOptions(config=wanted).client_config.items() >= wanted.items()


def test_a_process_has_one_client_a_cluster_and_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """hdfs-native takes the user's name from the environment, so a second one is refused."""
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    process, options = HdfsProcess(), HdfsOptions(user="alice")
    try:
        client = process.client("hdfs://127.0.0.1:9", options)
        assert process.client("hdfs://127.0.0.1:9", HdfsOptions(user="alice")) is client
        assert os.environ["HADOOP_USER_NAME"] == "alice"
        for later in (process, HdfsProcess(process)):
            with pytest.raises(ConfigError, match="user='bob' for HDFS, but another client of this process is 'alice'"):
                later.client("hdfs://127.0.0.1:9", HdfsOptions(user="bob"))
        with pytest.raises(ConfigError, match="user='bob' for HDFS, but HADOOP_USER_NAME is 'alice'"):
            HdfsProcess().client("hdfs://127.0.0.1:9", HdfsOptions(user="bob"))
    finally:
        os.environ.pop("HADOOP_USER_NAME", None)


# What options and Hadoop's files say together: obeyed, or refused by name before HDFS is asked.


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
def test_an_address_that_cannot_be_one_is_refused_when_the_sink_is_made(address: str, cut: Cut) -> None:
    """Found out by the first cut only, it would leave committed rows hidden, or copy for ever."""
    with pytest.raises(ConfigError, match=r"http_address: .*not the address of a web server"):
        pf.FileSink("hdfs://nn/base", uid="u", cut=cut, storage_options={"http_address": address})


def test_a_password_in_an_address_is_not_shown() -> None:
    """The error says what an address is."""
    with pytest.raises(ConfigError) as raised:
        HdfsOptions.of({"http_address": "http://alice:hunter2@nn:9870"})
    assert "hunter2" not in str(raised.value)


def test_a_wrong_way_to_the_web_server_is_refused_when_the_sink_is_made() -> None:
    """A file that is not there, or an address in a property: the error says where it is."""
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
        ({"replication": "two"}, "replication: it must be a whole number"),
        ({"call_timeout_s": float("nan")}, "call_timeout_s: it must be a finite number"),
        ({"config": {"dfs.replication": 2}}, r"config\.dfs\.replication: it must be text"),
        ({"replicas": 2}, r"replicas: no such option\nHint: There are .*replication"),
    ],
)
def test_a_refusal_says_what_is_wanted(options: dict[str, object], says: str) -> None:
    """The names of all options help only against one that there is not."""
    with pytest.raises(ConfigError, match=says) as raised:
        HdfsOptions.of(options)
    assert ("There are" in raised.value.hint) is ("replicas" in options)


# Hadoop's site files: read as Hadoop reads them, and never more than that.

XML_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<&]"), max_size=30)


def site(*properties: str) -> str:
    """A site file."""
    return f"<configuration>{''.join(f'<property>{text}</property>' for text in properties)}</configuration>"


def write(directory: Path, *, core: str = "", hdfs: str = "") -> dict[str, str]:
    """Write both files; returns an environment that names their directory."""
    (directory / "core-site.xml").write_text(core)
    (directory / "hdfs-site.xml").write_text(hdfs)
    return {"HADOOP_CONF_DIR": str(directory)}


def test_both_files_are_read_and_the_later_one_wins_unless_the_earlier_is_final(tmp_path: Path) -> None:
    """As in Hadoop ``final`` holds against later files, and overrides win over everything."""
    environment = write(
        tmp_path,
        core=site(
            "<name>a</name><value>core</value>",
            "<name>b</name><value>core</value><final>true</final>",
            "<name>c</name><value>core</value>",
        ),
        hdfs=site("<name>a</name><value>hdfs</value>", "<name>b</name><value>hdfs</value>"),
    )
    read = read_configuration(environment, overrides={"c": "ours"})
    assert (read.value("a"), read.value("b"), read.value("c")) == ("hdfs", "core", "ours")


def test_what_hadoop_accepts_in_a_file_is_accepted(tmp_path: Path) -> None:
    """Attributes, comments, CDATA, XML's own entities, blanks round a name, old names, a property without a value."""
    environment = write(
        tmp_path,
        core="""<?xml version="1.0" encoding="UTF-8"?><?xml-stylesheet type="text/xsl" href="configuration.xsl"?>
        <configuration><!-- a comment -->
          <property><name> fs.default.name </name>
            <value> hdfs://n<!-- in it -->n&amp;<![CDATA[<x>]]> </value></property>
          <property name="attribute" value="taken"/>
          <property><name>nothing</name></property>
          <property><description>nameless</description><value>x</value></property>
          <property><name>described</name><value>v</value>
            <description>with <value>markup</value></description></property>
        </configuration>""",
    )
    read = read_configuration(environment)
    assert read.properties == {"fs.defaultFS": " hdfs://nn&<x> ", "attribute": "taken", "described": "v"}
    assert read.value("fs.defaultFS") == "hdfs://nn&<x>"


def test_the_directory_is_the_option_then_the_environment_then_below_hadoop_home(tmp_path: Path) -> None:
    """Each wins over the next; without any there is nothing to read."""
    for name in ("option", "environment", "home/etc/hadoop"):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name, core=site(f"<name>from</name><value>{name}</value>"))
    environment = {"HADOOP_CONF_DIR": str(tmp_path / "environment"), "HADOOP_HOME": str(tmp_path / "home")}
    assert read_configuration(environment, directory=str(tmp_path / "option")).value("from") == "option"
    assert read_configuration(environment).value("from") == "environment"
    assert read_configuration({**environment, "HADOOP_CONF_DIR": ""}).value("from") == "home/etc/hadoop"
    assert read_configuration({}).properties == {}


def test_a_directory_without_files_says_nothing_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    """A name in the environment that leads nowhere is a slip, and shown."""
    assert read_configuration({"HADOOP_CONF_DIR": str(tmp_path)}).properties == {}
    with pytest.raises(ConfigError, match=r"HADOOP_CONF_DIR names .*gone"):
        read_configuration({"HADOOP_CONF_DIR": str(tmp_path / "gone")})
    with pytest.raises(ConfigError, match=r"config_dir names .*gone"):
        read_configuration({}, directory=str(tmp_path / "gone"))


@pytest.mark.parametrize(
    "text",
    [
        "<configuration>",
        "<configuration></property></configuration>",
        "no xml",
        "<properties/>",
        '<?xml version="1.0" encoding="klingon"?><configuration/>',
        "<configuration>&undefined;</configuration>",
        "<!DOCTYPE configuration><configuration/>",
        '<!DOCTYPE c [<!ENTITY e SYSTEM "file:///etc/passwd">]><configuration>&e;</configuration>',
        '<!DOCTYPE c [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><configuration>&b;</configuration>',
    ],
)
def test_a_damaged_file_or_one_with_a_document_type_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """No entity is ever made or fetched, and the message says which file to mend."""
    environment = write(tmp_path, hdfs=text)
    with pytest.raises(ConfigError, match=r"hdfs-site.xml") as refused:
        read_configuration(environment)
    assert refused.value.path == str(tmp_path / "hdfs-site.xml")


def test_a_file_too_long_or_unreadable_is_refused_by_name(tmp_path: Path) -> None:
    """Neither a file of any length nor a directory in its place is read."""
    environment = write(tmp_path, core=" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match=r"core-site.xml.* longer"):
        read_configuration(environment)
    (tmp_path / "core-site.xml").unlink()
    (tmp_path / "core-site.xml").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*core-site.xml"):
        read_configuration(environment)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${host}:1", "nn:1"),
        ("${env.HOST}:1", "from-env:1"),
        ("${env.NONE-other}", "other"),
        ("${env.EMPTY-other}", ""),
        ("${env.EMPTY:-other}", "other"),
        ("${env.HOST:-other}", "from-env"),
        ("${env.NONE:-${host}}", "nn"),
        ("${nested}", "nn/x"),
        ("${host}${host}", "nnnn"),
        ("${nobody} ${host}", "${nobody} ${host}"),
        ("${env.NONE}", "${env.NONE}"),
        ("${user.name}", "${user.name}"),
        ("$host ${ho st} ${", "$host ${ho st} ${"),
        ("  blanks  ", "blanks"),
    ],
)
def test_variables_stand_for_what_they_stand_for_in_hadoop(text: str, value: str) -> None:
    """Properties, the environment with both kinds of default, and nothing beyond the first unknown name."""
    read = HadoopConfiguration(
        {"it": text, "host": "nn", "nested": "${host}/x"}, {"HOST": "from-env", "EMPTY": "", "host": "wrong"}
    )
    assert read.value("it") == value


def test_variables_in_a_circle_are_refused_by_the_name_of_the_property() -> None:
    """Neither a circle nor a value that grows without end keeps the caller busy."""
    for properties in ({"a": "${b}", "b": "${a}"}, {"a": "${a}${a}"}):
        with pytest.raises(ConfigError, match="'a' needs more than 20 variables"):
            HadoopConfiguration(properties).value("a")


def test_a_list_has_no_blanks_and_no_empty_items() -> None:
    """As people write them."""
    assert HadoopConfiguration({"a": " one , ,two,"}).values("a") == ("one", "two")
    assert HadoopConfiguration().values("a") == ()


@given(st.lists(st.tuples(XML_TEXT, XML_TEXT, st.booleans())))
def test_every_property_of_a_file_is_found_as_it_was_written(properties: list[tuple[str, str, bool]]) -> None:
    """Names lose the blanks around them, values keep all of theirs; nameless ones do not count."""
    text = site(
        *(
            f"<name>{name}</name><value>{value}</value><final>{str(final).lower()}</final>"
            for name, value, final in properties
        )
    )
    written = [Property(name.strip(), value, final) for name, value, final in properties if name.strip()]
    assert properties_in(text.encode(), "x") == written


@given(st.binary(max_size=200))
def test_any_bytes_are_properties_or_refused(data: bytes) -> None:
    """No damage gets out as another error than ours."""
    try:
        properties_in(b"<configuration><property>" + data, "x")
    except ConfigError as refused:
        assert refused.path == "x"  # noqa: PT017 - either way is right.
