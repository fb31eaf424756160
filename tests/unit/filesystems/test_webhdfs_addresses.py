"""From an HDFS URL and Hadoop's configuration to the web servers of its NameNodes."""

from __future__ import annotations

import pytest

from partfile.errors import ConfigError
from partfile.stores.hadoop import HadoopConfiguration
from partfile.stores.hdfs.options import web_address, web_addresses

HA = {
    "fs.defaultFS": "hdfs://Blue",
    "dfs.nameservices": "Blue, green",
    "dfs.ha.namenodes.Blue": "nn1, nn2",
    "dfs.namenode.rpc-address.Blue.nn1": "one:8020",
    "dfs.namenode.rpc-address.Blue.nn2": "Two:8020",
    "dfs.namenode.http-address.Blue.nn1": "web-one:1",
    "dfs.namenode.http-address.Blue.nn2": "0.0.0.0:2",
    "dfs.namenode.https-address.Blue.nn1": "web-one:3",
    "dfs.namenode.rpc-address.green": "three:9000",
    "dfs.namenode.http-address.green": "three:4",
    "dfs.namenode.http-address": "wrong:5",
}


def addresses(url: str, properties: dict[str, str]) -> list[str]:
    """The addresses as text."""
    return [str(address) for address in web_addresses(url, HadoopConfiguration(properties))]


@pytest.mark.parametrize("url", ["hdfs://blue/base", "hdfs://BLUE", "hdfs:///base", "hdfs://user@blue/base"])
def test_a_name_service_has_one_address_a_namenode(url: str) -> None:
    """In the order of the configuration; a wildcard stands for the host of the RPC address."""
    assert addresses(url, HA) == ["http://web-one:1", "http://two:2"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("hdfs://one:8020/base", "http://web-one:1"),
        ("hdfs://one/base", "http://web-one:1"),
        ("hdfs://TWO:8020/base", "http://two:2"),
        ("hdfs://three:9000", "http://three:4"),
        ("hdfs://green/base", "http://three:4"),
        ("hdfs://stranger:8020", "http://stranger:9870"),
        ("hdfs://one:9999", "http://one:9870"),
    ],
)
def test_a_host_has_just_its_own_address(url: str, expected: str) -> None:
    """It is found by its RPC address; one that the configuration does not know has Hadoop's default."""
    assert addresses(url, HA) == [expected]


@pytest.mark.parametrize("policy", ["HTTPS_ONLY", "https_only", "HTTP_AND_HTTPS"])
def test_where_there_is_tls_it_is_used(policy: str) -> None:
    """A token must not travel in the clear; where no address is written it is the default one."""
    assert addresses("hdfs://blue", {**HA, "dfs.http.policy": policy}) == ["https://web-one:3", "https://two:9871"]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, "http://nn:9870"),
        ({"dfs.namenode.http-address": "web:1"}, "http://web:1"),
        ({"dfs.namenode.http-address": "0.0.0.0:1"}, "http://nn:1"),
        ({"dfs.namenode.http-address": "web"}, "http://web:9870"),
        ({"dfs.namenode.http-address": "[::1]:1"}, "http://[::1]:1"),
        ({"dfs.namenode.http-address": "web:1", "fs.defaultFS": "hdfs://nn:8020"}, "http://web:1"),
        ({"dfs.namenode.http-address": "web:1", "fs.defaultFS": "hdfs://another"}, "http://nn:9870"),
        ({"dfs.namenode.http-address": "web:1", "dfs.namenode.rpc-address": "nn:8020"}, "http://web:1"),
        ({"dfs.namenode.http-address": "web:1", "dfs.namenode.rpc-address": "nn:1"}, "http://nn:9870"),
    ],
)
def test_properties_without_a_suffix_speak_of_the_default_namenode(properties: dict[str, str], expected: str) -> None:
    """Of another cluster's NameNode they say nothing."""
    assert addresses("hdfs://nn/base", properties) == [expected]


@pytest.mark.parametrize("default", ["", "file:///", "hdfs:///", "s3://bucket"])
def test_a_url_without_a_namenode_needs_a_default_of_hdfs(default: str) -> None:
    """Otherwise the refusal names both."""
    with pytest.raises(ConfigError, match=r"fs.defaultFS"):
        addresses("hdfs:///base", {"fs.defaultFS": default})


def test_a_name_service_without_an_rpc_address_is_refused() -> None:
    """It would be taken for a host of that name."""
    with pytest.raises(ConfigError, match="name service 'ns'"):
        addresses("hdfs://ns", {"dfs.nameservices": "ns", "dfs.ha.namenodes.ns": "a,b"})


@pytest.mark.parametrize("written", ["web:port", "web:99999", "web/path", "web?x", "[::1"])
def test_a_damaged_address_is_refused_by_the_name_of_its_property(written: str) -> None:
    """The property is what has to be mended."""
    with pytest.raises(ConfigError, match=r"dfs.namenode.http-address"):
        addresses("hdfs://nn", {"dfs.namenode.http-address": written})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("nn:9870", "http://nn:9870"),
        ("http://nn:1/", "http://nn:1"),
        ("https://NN:1", "https://nn:1"),
        ("[::1]:1", "http://[::1]:1"),
        ("127.0.0.1:1", "http://127.0.0.1:1"),
    ],
)
def test_an_address_can_be_written_with_or_without_a_scheme(written: str, expected: str) -> None:
    """Without one it is plain HTTP."""
    assert str(web_address(written)) == expected


@pytest.mark.parametrize(
    "written", ["", "nn", ":9870", "ftp://nn:1", "http://nn:1/webhdfs", "nn:1?a", "nn:1#a", "u:p@nn:1", "nn:x", "[:1"]
)
def test_what_is_no_address_is_refused(written: str) -> None:
    """A path, a query or a password in it would be ignored, so they are not taken."""
    with pytest.raises(ConfigError, match="no address of a web server"):
        web_address(written)
