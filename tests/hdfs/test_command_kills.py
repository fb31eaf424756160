"""SIGKILL before and after calls of recover and of clean on HDFS; run again; then the sink goes on."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from support.hdfs.commands import COMMANDS
from support.hdfs.life import assert_exactly_once, opener
from support.life_cycle import STAGED_ENDS
from support.programs.clean_forks import CleanForks

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from support.servers.hdfs import HdfsCluster


FEW = 1


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["recover", "clean"])
@pytest.mark.fault("K16", "H6")
def test_a_kill_at_a_call_of_a_command(  # noqa: PLR0917 - fixtures.
    kind: str, hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path, rng: random.Random, pytestconfig: pytest.Config
) -> None:
    """A clean is killed a second time; a last run ends well, and all that a checkpoint vouches for is there.

    At each call with ``--long``, else at one at random; whether a clean deletes or moves is drawn too.
    """
    name = rng.choice([one for one in COMMANDS if one.startswith(kind)])
    with CleanForks("support.hdfs.commands") as forks:

        def run(function: str, url: str, **arguments: object) -> int:
            return forks.run(function, url=url, http_address=hdfs.http_address, **arguments)

        def mess(directory: str) -> str:
            url = f"{hdfs.url}{hdfs_directory}/{directory}"
            assert run("orphans", url) == -signal.SIGKILL
            assert run("seed", url, cut="auto") == -signal.SIGKILL
            return url

        assert run("count_command", mess("counted"), name=name, to=str(tmp_path / "calls")) == 0
        calls = json.loads((tmp_path / "calls").read_text())
        all_of_them = range(1, calls + 1)
        for number in all_of_them if pytestconfig.getoption("long") else rng.sample(all_of_them, FEW):
            url = mess(str(number))
            kills = [number] + [rng.randint(1, calls)] * (name != "recover")
            for kill in kills:
                when = rng.choice(["before", "after"])
                # Which has less to do than that the second time ends well.
                assert run("die_in_command", url, name=name, number=kill, when=when) in {-signal.SIGKILL, 0}
            assert run("command", url, name=name) == 0, f"{kills} of {calls}"
            assert run("live", url, cut="auto", is_restore=True) == 0
            with opener(hdfs.http_address)(url, None) as store:
                assert_exactly_once(store)
                staged = [file.path for file in store.list() if file.path.endswith(STAGED_ENDS)]
            # An orphan that a dead cleaner had leased is left until the lease ends.
            assert len(staged) == 2 if name == "recover" else len(staged) <= 2, staged
