"""Kill a process at every call, then its recovery at every call, and check what each leaves against the oracle.

A life is lived once under a camera: each picture is what a kill at that moment leaves. From each picture a recovery is
lived under a camera again, and from each of those pictures another one, which is not killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from partfile.errors import PartfileError
from partfile.testing.faults import CrashAt, SimulatedCrash
from support.crash.scenarios import ROWS
from support.crash.worlds import AnyPicture, Camera, Consumed, Moment
from support.sinks.life_cycle import assert_only_grew, rows_of

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from partfile.testing.faults import Interceptor, When
    from support.crash.scenarios import Deed, Scenario
    from support.crash.worlds import Kind, Process, World
    from support.state.tokens import NumberedTokens


Choose = Callable[[Sequence[Any]], Sequence[Any]]
"""Some of the moments."""


def all_of(moments: Sequence[Any]) -> Sequence[Any]:
    """Every moment."""
    return moments


def none_of(_moments: Sequence[Any]) -> Sequence[Any]:
    """No moment."""
    return ()


def nothing_again(_process: Process) -> list[Counter[str]]:
    """No part comes again after a consumer has taken its file."""
    return []


def some_of(rng: random.Random, most: int) -> Choose:
    """So many moments at random, or all of them if they are fewer."""
    return lambda moments: rng.sample(moments, min(most, len(moments)))


class Explored(NamedTuple):
    """How much there was to look at."""

    calls: list[str]
    """The changing calls of the life."""
    moments: int
    """Different pictures that a crash of it can leave."""
    second_moments: int
    """Different pictures that a crash of a recovery can leave."""
    shown_again: int = 0
    """Crashes after which a consumer gets rows that it has."""


class CrashHarness(Generic[AnyPicture]):
    """Explores one scenario in one kind of place.

    Args:
        scenario: What is killed.
        kind: Where.
        drawn: What draws tokens while this runs; see the fixture ``numbered_tokens``.
        first: Which moments of the life are gone on from; all of them unless it is given.
        second: Which moments of each recovery; likewise.
        again: The rows of each part that a start after a kill shows, also where a consumer has its file by then; no
            part unless it is given.
    """

    def __init__(
        self,
        scenario: Scenario,
        kind: Kind[AnyPicture],
        drawn: NumberedTokens,
        *,
        first: Choose = all_of,
        second: Choose = all_of,
        again: Callable[[Process], list[Counter[str]]] = nothing_again,
    ) -> None:
        self._scenario = scenario
        self._kind = kind
        self._tokens = drawn
        self._first = first
        self._second = second
        self._again = again
        self._shown_again = 0
        self._ended: set[AnyPicture] = set()
        self._second_moments: set[tuple[AnyPicture, int]] = set()
        """What has been gone on from, and how many rows had been acknowledged."""

    def explore(self) -> Explored:
        """Kill at every moment; raises AssertionError with the moment at which something is wrong."""
        with self._world(None) as world:
            self._do(world, "seed", self._scenario.seed)
            begun = world.now().finished()
            life = self._watched(world, "life", self._scenario.life)
            self._end(world)
        for moment in self._first(life.moments):
            with explained(f"{self._scenario.name}: dead {moment.when}"):
                self._die_at(moment, begun)
        return Explored(life.calls, len(life.moments), len(self._second_moments))

    def explore_beside_a_consumer(self) -> Explored:
        """Kill at every moment, while a consumer takes each finished file the instant it is visible.

        What it has taken in the end is each row once, and once more what a kill left to be shown again.
        """
        with self._world(None) as world:
            seeded = self._consumed(world, "seed", self._scenario.seed)
            life = self._consumed(world, "life", self._scenario.life, taken=seeded.taken, takes_pictures=True)
            self._end_consumed(world, life)
        for moment in self._first(life.moments):
            with explained(f"{self._scenario.name}: dead {moment.when}"):
                again = self._die_beside_a_consumer(
                    moment, life, "recovery", takes_pictures=self._second is not none_of
                )
                for second in self._second(again.moments):
                    with explained(f"recovery dead {second.when}"):
                        self._second_moments.add((second.picture, second.acknowledged))
                        self._die_beside_a_consumer(second, again, "third")
        return Explored(life.calls, len(life.moments), len(self._second_moments), self._shown_again)

    def _die_beside_a_consumer(
        self, moment: Moment[AnyPicture], life: Consumed[AnyPicture], name: str, *, takes_pictures: bool = False
    ) -> Consumed[AnyPicture]:
        """Recover and end from a moment of a life; the consumer of the recovery, which may be a camera."""
        with self._world(moment.picture) as world:
            taken = life.taken_by[moment.picture]
            committed = world.onlooker().position()
            assert committed >= moment.acknowledged, "an acknowledged checkpoint is gone"
            assert taken.keys() <= rows_up_to(committed).keys(), "rows were visible that no checkpoint holds"
            again = [rows for rows in self._again(world.onlooker()) if rows & taken]
            assert len(again) <= 1, "more comes again than the part that was at hand"
            self._shown_again += len(again)
            rest = taken - sum(again, Counter())
            recovered = self._consumed(
                world, name, self._scenario.recovery, moment.acknowledged, rest, takes_pictures=takes_pictures
            )
            self._end_consumed(world, recovered)
        return recovered

    def _end_consumed(self, world: World[AnyPicture], last: Consumed[AnyPicture]) -> None:
        """Let the end follow: each row was taken once, and a further start finds nothing to do."""
        ended = self._consumed(world, "end", self._scenario.end, taken=last.taken)
        assert ended.taken == rows_up_to(ROWS)
        again = self._consumed(world, "start", self._scenario.recovery, taken=ended.taken)
        assert again.taken == ended.taken

    def _consumed(
        self,
        world: World[AnyPicture],
        name: str,
        deed: Deed,
        acknowledged: int = 0,
        taken: Counter[str] | None = None,
        *,
        takes_pictures: bool = False,
    ) -> Consumed[AnyPicture]:
        self._tokens.begin(name)
        camera = Consumed(world, acknowledged, taken, takes_pictures=takes_pictures)
        deed(camera.process())
        world.end_process()
        camera.look("after its end")
        assert max(camera.taken.values(), default=1) == 1, "a consumer has seen a row twice"
        return camera

    def kill_then_crash(self, first: Choose, when: When = "after") -> int:
        """Kill the life at one call after the other, and crash the recovery that follows in the same place.

        So what the life did not make durable is not durable yet when the recovery finds it. Returns how many moments
        there were.
        """
        with self._world(None) as world:
            self._do(world, "seed", self._scenario.seed)
            calls = len(self._watched(world, "life", self._scenario.life).calls)
        for number in first(range(1, calls + 1)):
            with explained(f"{self._scenario.name}: killed {when} call {number} of {calls}"):
                self._kill_at(number, when)
        return len(self._second_moments)

    def fault_at_each(self, make: Callable[[int], Interceptor], first: Choose = all_of) -> tuple[int, int]:
        """Live once for each changing call, with the fault that ``make`` makes of its number, and let the end follow.

        Returns how many lives there were, and how many of them an error of ours ended.
        """
        with self._world(None) as world:
            self._do(world, "seed", self._scenario.seed)
            calls = len(self._watched(world, "life", self._scenario.life).calls)
        chosen = first(range(1, calls + 1))
        ended = 0
        for number in chosen:
            with explained(f"{self._scenario.name}: fault at call {number} of {calls}"), self._world(None) as world:
                ended += self._live_with(world, make(number))
        return len(chosen), ended

    def _live_with(self, world: World[AnyPicture], fault: Interceptor) -> bool:
        self._do(world, "seed", self._scenario.seed)
        before, told, has_ended = world.now().finished(), [0], False
        try:
            self._live(world, fault, told)
        except PartfileError:
            has_ended = True
        world.end_process()
        moment = Moment(world.now(), "after the fault", max(told))
        self._check_promises(world, moment, check_readers(moment.picture, before))
        self._do(world, "recovery", self._scenario.recovery)
        self._check_recovered(world)
        self._end(world)
        return has_ended

    def _live(self, world: World[AnyPicture], fault: Interceptor, told: list[int]) -> None:
        """Live with a fault, and note how many rows are acknowledged whenever some are."""
        self._tokens.begin("life")
        process = world.process(fault)
        self._scenario.life(process._replace(told=lambda: told.append(world.onlooker().position())))

    def _kill_at(self, number: int, when: When) -> None:
        with self._world(None) as world:
            self._do(world, "seed", self._scenario.seed)
            before, told = world.now().finished(), [0]
            killer = CrashAt(number, when, only=world.changing_calls)
            with suppress(SimulatedCrash):
                self._live(world, killer, told)
            if not killer.has_crashed:
                # Old lists are asked about again, now once more and now once less.
                return
            world.end_process()
            acknowledged = world.onlooker().position()
            again = self._watched(world, "recovery", self._scenario.recovery, max(told))
            recovered = self._check_recovered(world)
            # What the recovery has published it must have made safe, down to the checkpoint that it found.
            last = world.survivors()
        for moment in self._second(again.moments):
            with explained(f"recovery dead {moment.when}"):
                self._die_again_at(moment, before, recovered if moment.picture in last else None)
        for picture in last:
            self._die_again_at(Moment(picture, "after the recovery", acknowledged), before, recovered)

    def _die_at(self, moment: Moment[AnyPicture], before: dict[str, bytes]) -> None:
        seen = check_readers(moment.picture, before)
        with self._world(moment.picture) as world:
            self._check_promises(world, moment, seen)
            again = self._recover(world, moment.acknowledged)
            recovered = self._check_recovered(world)
            self._end(world)
        for second in self._second(again):
            with explained(f"recovery dead {second.when}"):
                self._die_again_at(second, seen, recovered)

    def _recover(self, world: World[AnyPicture], acknowledged: int) -> list[Moment[AnyPicture]]:
        if self._second is none_of:
            self._do(world, "recovery", self._scenario.recovery)
            return []
        return self._watched(world, "recovery", self._scenario.recovery, acknowledged).moments

    def _die_again_at(
        self, moment: Moment[AnyPicture], before: dict[str, bytes], recovered: dict[str, bytes] | None
    ) -> None:
        seen = check_readers(moment.picture, before)
        known = (moment.picture, moment.acknowledged)
        if known in self._second_moments:
            return
        self._second_moments.add(known)
        with self._world(moment.picture) as world:
            self._check_promises(world, moment, seen)
            self._do(world, "third", self._scenario.recovery)
            again = self._check_recovered(world)
            # I7: recovering after a recovery that crashed is recovering.
            assert self._scenario.keeps_parts or recovered is None or again == recovered
            self._end(world)

    def _check_promises(self, world: World[AnyPicture], moment: Moment[AnyPicture], seen: dict[str, bytes]) -> None:
        """I1, I3: what was acknowledged is in a checkpoint, and nothing is visible that is in none."""
        committed = world.onlooker().position()
        assert committed >= moment.acknowledged, "an acknowledged checkpoint is gone"
        assert rows_of(seen).keys() <= rows_up_to(committed).keys(), "rows are visible that no checkpoint holds"

    def _check_recovered(self, world: World[AnyPicture]) -> dict[str, bytes]:
        """I1: each row of a checkpoint is in one finished file, unless its part was kept, or its staging file waits."""
        finished = world.now().finished()
        process = world.onlooker()
        stands = process.stands()
        assert stands is not None
        if not stands.open and not stands.closed:
            assert rows_of(finished) == rows_up_to(process.position())
        else:
            assert self._scenario.keeps_parts
        return finished

    def _end(self, world: World[AnyPicture]) -> None:
        """I1, I2, I4, I6: each row once, nothing finished has changed, and a further start changes nothing."""
        begun = world.now()
        if begun in self._ended:
            return
        self._ended.add(begun)
        self._do(world, "end", self._scenario.end)
        ended = world.now()
        assert rows_of(ended.finished()) == rows_up_to(ROWS)
        assert_only_grew(begun.finished(), ended.finished())
        stands = world.onlooker().stands()
        assert stands is not None
        assert not stands.open
        assert not world.onlooker().owes()
        # What is staged after this was left by a process that was killed, and no checkpoint names it.
        self._do(world, "start", self._scenario.recovery)
        again = world.now()
        assert again.finished() == ended.finished()
        if self._scenario.has_staging_files:
            # A further start deletes the staging files that the checkpoints it replaces have needed.
            assert set(again.staged()) <= set(ended.staged())
        else:
            assert again.staged() == ended.staged()

    def _watched(self, world: World[AnyPicture], name: str, deed: Deed, acknowledged: int = 0) -> Camera[AnyPicture]:
        self._tokens.begin(name)
        camera = Camera(world, acknowledged)
        deed(camera.process())
        world.end_process()
        camera.look("after its end")
        return camera

    def _do(self, world: World[AnyPicture], name: str, deed: Deed) -> None:
        self._tokens.begin(name)
        deed(world.process())
        world.end_process()

    @contextmanager
    def _world(self, picture: AnyPicture | None) -> Iterator[World[AnyPicture]]:
        world = self._kind.world(picture)
        try:
            yield world
        finally:
            world.close()


def check_readers(picture: AnyPicture, before: dict[str, bytes]) -> dict[str, bytes]:
    """I2, I4, I5: what readers see at any moment are whole rows, each once, and nothing they saw has changed."""
    seen = picture.finished()
    assert max(rows_of(seen).values(), default=1) == 1
    assert_only_grew(before, seen)
    return seen


def rows_up_to(position: int) -> Counter[str]:
    """The rows that are written when the input stands there."""
    return Counter(f"row-{number:04d}" for number in range(position))


@contextmanager
def explained(moment: str) -> Iterator[None]:
    """Say which moment it was, with whatever is raised."""
    try:
        yield
    except BaseException as error:
        error.add_note(moment)
        raise
