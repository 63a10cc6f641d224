"""What the server and its workers take: sampled all the time, and read in quiet moments."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

from headrace.client.shared_memory.segment import PREFIX
from tools.soak.verdict import Sample
from tools.soak.world import World

QUIET_SAMPLES = 16
_PERIOD_SECONDS = 1.0


def sample(name: str, process: psutil.Process) -> Sample | None:
    """None if the process has ended."""
    try:
        with process.oneshot():
            rss, threads = process.memory_info().rss, process.num_threads()
            return Sample(time.time(), name, rss, process.num_fds(), threads)
    except psutil.Error:
        return None


def processes(world: World) -> dict[str, psutil.Process]:
    return {"server": world.process, **world.workers()}


def quiet(world: World) -> dict[str, Sample]:
    """The medians of some seconds in which nothing happens, for the server and each worker."""
    found: dict[str, list[Sample]] = {}
    for _ in range(QUIET_SAMPLES):
        for name, process in processes(world).items():
            each = sample(name, process)
            if each is not None:
                found.setdefault(name, []).append(each)
        time.sleep(0.25)
    return {
        name: Sample(
            many[-1].at,
            name,
            int(median(each.bytes for each in many)),
            int(median(each.descriptors for each in many)),
            int(median(each.threads for each in many)),
        )
        for name, many in found.items()
    }


def opened(process: psutil.Process) -> Counter[str]:
    """What the process's descriptors are, numbers left out."""
    found: Counter[str] = Counter()
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):
            found[re.sub(r"[0-9a-f]{6,}|\d+", "N", str(each.readlink()))] += 1
    return found


def connections(process: psutil.Process) -> list[str]:
    """The clients that are still connected, of which some are given time to go."""
    for _ in range(600):
        found = [
            str(each.raddr)
            for each in process.net_connections("tcp")
            if each.status == psutil.CONN_ESTABLISHED
        ]
        if not found:
            break
        time.sleep(0.1)
    return found


class Watch:
    """Samples on a thread of its own until it is closed.

    Attributes:
        samples: what it has seen; appended to by its thread alone.
        segments: shared memory files that the soak's clients have had.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._over = threading.Event()
        self.samples: list[Sample] = []
        self.segments: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_PERIOD_SECONDS):
            with suppress(psutil.Error):
                for name, process in processes(self._world).items():
                    found = sample(name, process)
                    if found is not None:
                        self.samples.append(found)
            with suppress(OSError):  # the server has the files of its clients open
                self.segments.update(
                    name
                    for each in Path(f"/proc/{self._world.process.pid}/fd").iterdir()
                    if (name := each.readlink().name).startswith(PREFIX) and "(" not in name
                )
