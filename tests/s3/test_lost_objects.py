"""A large staging file on real S3 servers, of which one object is gone or changed, and is missed by a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.errors import PartDamaged, PartMissing
from partfile.stores.s3.store import S3Store
from support.crash.worlds import Process
from support.lost_objects import OBJECTS, leave_a_staging_file, start
from support.s3.life import options_of

if TYPE_CHECKING:
    import random

    from support.servers.proxy import S3Proxy
    from support.servers.s3 import S3Server


MIB = 1 << 20


@pytest.fixture(params=["moto", "radosgw"])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """The servers on which parts stay open."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def process(s3_proxy: S3Proxy, s3_base: str) -> Process:
    """A process that works there, by way of the proxy."""
    options = options_of(s3_proxy)
    return Process(s3_base, lambda url, _options: S3Store(url, options))


@pytest.mark.parametrize("place", [0, OBJECTS - 1])
@pytest.mark.fault("F7")
def test_an_object_that_is_gone_is_told_and_given_up_on_demand(
    process: Process, s3_proxy: S3Proxy, rng: random.Random, place: int
) -> None:
    """As a lifecycle rule takes the oldest first. The coordinator asks for each object, and reads none but the last."""
    paths = leave_a_staging_file(process, rng, MIB)
    with process.open_store(process.base, {}) as store:
        store.delete_file(paths[place])
    with pytest.raises(PartMissing, match="is not there"):
        start(process, process)
    s3_proxy.forget()
    assert start(process, process, gives_up=True).given_up == 1
    asked = s3_proxy.count("*/_sides/*")
    assert asked["HeadObject"] <= place + 1
    assert asked["GetObject"] <= place + 1
    assert not process.owes()


@pytest.mark.fault("F18")
def test_an_object_that_was_changed_is_damage(process: Process, rng: random.Random) -> None:
    """A recovery that gives missing parts up does not lose a large staging file by one bit; put back, it is encoded."""
    path = leave_a_staging_file(process, rng, MIB)[0]
    with process.open_store(process.base, {}) as store:
        written = store.read_file(path, 16 * MIB)
        store.delete_file(path)
        store.create_file(path, written[:-1] + bytes([written[-1] ^ 1]))
    with pytest.raises(PartDamaged, match="is not what was written"):
        start(process, process, gives_up=True)
    with process.open_store(process.base, {}) as store:
        store.delete_file(path)
        store.create_file(path, written)
    assert start(process, process, gives_up=True).encoded == 1
    assert not process.owes()
