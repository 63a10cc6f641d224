"""A client process: ``python -m tools.soak.client FOLDER NAME NUMBER DEVICES``. It calls until the
phase is STOP, and has no requests in flight while it is PAUSE."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path

from headrace.client import errors
from tools.soak import manager, own_callers, wire_callers
from tools.soak.caller import RUN, STOP, Caller, Kind, Phase, Place
from tools.soak.ledger import Ledger, Notes, Row
from tools.soak.networks import Target, targets

PROCESSES: dict[str, list[tuple[Kind, tuple[str, ...]]]] = {
    "own": [
        (
            own_callers.unary,
            ("double-cpu", "double-template", "double-opencl", "mlp-openvino", "mlp-hetero"),
        ),
        (own_callers.unary, ("magika-cpu", "magika-openvino", "silero-cpu", "mlp-auto")),
        (own_callers.started, ("mlp-multi", "image-openvino")),
        (own_callers.late, ("endless-cpu",)),
        (own_callers.reconnecting, ("double-cpu",)),
        (own_callers.many, ("image-batch", "double-opencl")),
    ],
    "aio": [(own_callers.awaited, ("mlp-multi", "image-batch", "double-cpu"))],
    "streams": [
        (wire_callers.stream, ("streamed-cpu", "mlp-openvino")),
        (own_callers.session, ("sum-cpu", "sum-openvino")),
        (own_callers.shared, ("large-cpu", "large-openvino")),
    ],
    "open": [
        (wire_callers.open_inference, ("double-cpu", "mlp-openvino", "magika-cpu")),
        (wire_callers.rest, ("double-cpu", "mlp-hetero")),
        (wire_callers.failing, ("fragile-cpu",)),
    ],
    "manager": [
        (manager.churn, ("double-cpu", "mlp-openvino", "double-template", "image-batch")),
        (manager.canary, ("canary",)),
        (manager.bad, ("double-cpu",)),
    ],
    "victim": [
        (own_callers.unary, ("double-cpu", "mlp-openvino")),
        (own_callers.many, ("image-batch",)),
        (own_callers.shared, ("large-cpu",)),
        (wire_callers.stream, ("streamed-cpu",)),
    ],
    "frozen": [(wire_callers.stream, ("frozen-cpu",))],
}
"""The kinds of load of each process, with their networks."""


def callers(name: str, known: dict[str, Target], place: Place) -> list[tuple[Kind, Caller]]:
    """The loads of a process, one for each kind and network that there is."""
    wanted = [
        (kind, known[network])
        for kind, networks in PROCESSES[name.partition("-")[0]]
        for network in networks
        if network in known
    ]
    folder = place.folder / "clients"
    rows = [_row(kind, target) for kind, target in wanted]
    ledger, notes = Ledger(folder / f"{name}.counts", rows), Notes(folder / f"{name}.jsonl")
    threading.Thread(target=_flush, args=(notes,), daemon=True).start()
    return [
        (kind, Caller(place, row, target, ledger, notes))
        for row, (kind, target) in zip(rows, wanted, strict=True)
    ]


def _row(kind: Kind, target: Target) -> Row:
    """The manager's calls are not compared with the counters of the network that they are like."""
    name = f"({target.name})" if kind.__module__ == manager.__name__ else target.name
    return Row(kind.__name__, name)


def run(kind: Kind, caller: Caller, phase: Phase) -> None:
    """Calls until the end. An exception that is no error of a request is noted, too."""
    while phase.now != STOP:
        rounds = kind(caller)
        try:
            while phase.now != STOP:
                time.sleep(next(rounds) if phase.now == RUN else 0.05)
        except errors.Error as error:  # between requests: it asks for its network again
            caller.note(error.code.name, str(error))
            time.sleep(1)
        except Exception:  # noqa: BLE001 - a fault of the soak, which makes it fail
            caller.note("BUG", traceback.format_exc()[-500:])
            return
        finally:
            rounds.close()


def _flush(notes: Notes) -> None:
    while True:
        time.sleep(2)
        notes.flush()


def main() -> None:
    folder, name, devices = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    place, phase = Place.read(folder), Phase(folder / "phase")
    known = {each.name: each for each in targets(devices)}
    known["canary"] = replace(known["double-cpu"], name="canary")  # the repository's
    loads = callers(name, known, place)
    threads = [
        threading.Thread(target=run, args=(kind, caller, phase), name=str(caller.row))
        for kind, caller in loads
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
