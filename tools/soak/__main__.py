"""``make soak``: one server under mixed load for an hour, while all that may happen to it happens.

SOAK=short is ten minutes, and a number is seconds. Exit status 1 with the reasons if anything is
wrong; the report lies in .cache/soak.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tests.integration.harness import until
from tools.soak import accounts, ledger, report, timeline, verdict
from tools.soak.networks import DOUBLE
from tools.soak.provoke import LOGGED, Provoker, rules
from tools.soak.watch import Watch, connections, opened, quiet
from tools.soak.world import World

LENGTHS = {"": 3600.0, "short": 600.0}
REPORT = Path(__file__).parents[2] / ".cache/soak"
STEADY_SECONDS = 3.0
"""How long the load runs undisturbed between two provocations."""
WARM_UP_ROUNDS = 2


class Soak:
    """Rounds of provocations, each with a quiet moment at its end.

    Args:
        seconds: how long the load lasts.
    """

    def __init__(self, world: World, seconds: float) -> None:
        self._world = world
        self._seconds = seconds
        self._provoker = Provoker(world)
        self._opened: Counter[str] = Counter()
        self.story = report.Story(time.time(), windows=self._provoker.windows)

    def run(self) -> None:
        """All of it. What is wrong is in the story."""
        world, story = self._world, self.story
        for target in world.targets:
            _say(f"loading {target.name} on {target.device}")
            world.load(target)
        self._quiet()
        idle = opened(world.process)
        watch = Watch(world)
        try:
            world.start_all()
            self._rounds()
            self._count("the end")
            story.reasons += world.stop_clients()
        finally:
            watch.close()
            story.samples = watch.samples
        self._settle()
        story.reasons += verdict.growth(story.readings)
        self._quiet()
        after = opened(world.process)
        story.facts.append(f"descriptors without clients: {idle.total()}, then {after.total()}")
        # Connections and memory that the server shares with its workers are made when needed.
        files = Counter({each: count for each, count in after.items() if each.startswith("/tmp")})
        if more := files - idle:
            story.reasons.append(f"without clients the server has more open files: {more}")
        story.reasons += [f"{each} is still connected" for each in connections(world.process)]
        left = [each for each in watch.segments if (Path("/dev/shm") / each).exists()]
        story.reasons += [f"{each} is left in /dev/shm" for each in left]
        story.facts.append(f"{len(watch.segments)} segments of clients in shared memory were seen")
        self._end()

    def _rounds(self) -> None:
        begin, number, longest = time.monotonic(), 0, 0.0
        while number <= WARM_UP_ROUNDS or time.monotonic() - begin + longest < self._seconds:
            began = time.monotonic()
            for name, provoke in self._provoker.all():
                time.sleep(STEADY_SECONDS)
                _say(f"round {number + 1}: {name}")
                provoke()
            time.sleep(timeline.SLACK_SECONDS)
            self._count(f"round {number + 1}")
            reading = self._quiet()
            if number + 1 >= WARM_UP_ROUNDS:
                self.story.readings.append(reading)
            self._world.resume()
            number += 1
            longest = max(longest, time.monotonic() - began)
        self.story.facts.append(f"{number} rounds of {len(self._provoker.all())} provocations")

    def _count(self, when: str) -> None:
        """Has the clients pause, and compares what they and the server have counted."""
        world, story = self._world, self.story
        world.pause()
        story.quiet_at.append(time.time())
        story.reasons += world.ended()
        self._settle()
        clients = ledger.total(world.counts().values())
        names = [each.name for each in world.targets]
        restarted = [each.name for each in world.targets if each.worked_by]
        wrong = accounts.differences(clients, world.scrape(), names, restarted)
        story.reasons += [f"{when}: {each}" for each in wrong]
        errors = timeline.unexplained(world.errors(), story.windows, rules(world))
        _say(f"{when}: {len(wrong)} counters differ, {len(errors)} errors without a reason")
        for each in [*wrong, *errors[-5:]]:
            _say(f"  {each[:300]}")

    def _settle(self) -> None:
        """Waits until nothing waits or runs on the server any more."""
        try:
            until(lambda: not accounts.unsettled(self._world.scrape()), "all was to end")
        except AssertionError:
            self.story.reasons += accounts.unsettled(self._world.scrape())

    def _quiet(self) -> verdict.Reading:
        """What the processes take while nothing happens. An unload gives memory back first."""
        with self._world.place.client() as client:
            for device in ("CPU", *self._world.workers()):
                client.load_network(DOUBLE, device=device, name="last").unload()
        reading, now = quiet(self._world), opened(self._world.process)
        _say(
            ", ".join(
                f"{name} {each.bytes >> 20} MiB {each.descriptors} fds {each.threads} threads"
                for name, each in reading.items()
            )
        )
        _say(f"descriptors: {now - self._opened or 'no'} more than at the last quiet moment")
        self._opened = now
        return reading

    def _end(self) -> None:
        """Stops the server, and looks at what is left of it."""
        world, story = self._world, self.story
        story.counts = ledger.total(world.counts().values())
        story.notes = world.notes()
        story.reasons += timeline.unexplained(world.errors(), story.windows, rules(world))
        if code := world.server.stop():
            story.reasons.append(f"the server ended with {code}")
        story.end = time.time()
        log = world.server.log()
        (world.folder / "server.log").write_text(log)
        story.reasons += timeline.bad_lines(_lines(log), story.windows, LOGGED)
        story.reasons += ["a traceback in the server's log"] * ("Traceback" in log)
        left = [*(world.folder / "temporary").iterdir(), *world.disk.rglob("*.headrace-tmp")]
        story.reasons += [f"{each} is left" for each in left]
        requests = sum(each[ledger.End.SENT] for each in story.counts.values())
        story.facts.insert(0, f"{requests:,} counted requests on {', '.join(world.devices)}")
        if not world.disk_is_small:
            story.facts.append("no full disk: this user may not mount a small one")


def _lines(log: str) -> Iterator[tuple[float, str, str]]:
    """Time, level and text of each line; a line that is not JSON is an error."""
    for line in log.splitlines():
        try:
            facts = json.loads(line)
            at = datetime.fromisoformat(facts["timestamp"]).timestamp()
            if facts["event"] == "request failed":  # its client has noted it, and is asked why
                continue
            yield at, facts["level"], f"{facts['event']} {facts.get('exception', '')}".strip()
        except (ValueError, KeyError, TypeError):
            yield 0.0, "error", line


def _say(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {text}", flush=True)


def main() -> None:
    wanted = os.environ.get("SOAK", "")
    seconds = LENGTHS[wanted] if wanted in LENGTHS else float(wanted)
    folder = Path(tempfile.mkdtemp(prefix="headrace-soak-"))
    world = World(folder)
    try:
        soak = Soak(world, seconds)
        try:
            soak.run()
        except AssertionError as error:
            soak.story.reasons.append(str(error))
        soak.story.end = soak.story.end or time.time()
        report.write(soak.story, REPORT)
    finally:
        world.close()
    reasons = soak.story.reasons
    for each in reasons[:50]:
        print(f"- {each[:1000]}")
    print(f"{REPORT / 'report.md'}: {len(reasons)} reasons to fail")
    if not reasons:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"the files are in {folder}")
    sys.exit(1 if reasons else 0)


if __name__ == "__main__":
    main()
