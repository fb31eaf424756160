"""Hadoop's site files: read as Hadoop reads them, and never more than that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import ConfigError
from partfile.stores.hadoop import MAX_FILE_BYTES, HadoopConfiguration, Property, properties_in, read_configuration

if TYPE_CHECKING:
    from pathlib import Path

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
    """Neither a circle nor a value that grows without end keeps anybody busy."""
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
