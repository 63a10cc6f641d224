"""``headrace top``: the busiest devices and networks, live in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.client import Client, errors
from headrace.client.cli import connection, console
from headrace.client.cli.console import SERVER, AsJson, Server
from headrace.client.cli.status.command import Match
from headrace.client.cli.status.figures import (
    DeviceFigures,
    Document,
    Figures,
    NetworkFigures,
    by_load,
    figures,
    same_start,
)
from headrace.client.cli.status.keys import keys
from headrace.client.cli.status.texts import (
    UNKNOWN,
    networks_text,
    of_text,
    rate_text,
    residence_text,
    seconds_text,
    server_lines,
    shadow_text,
    times_text,
)
from headrace.client.cli.texts import counted, visible

_ANSWER_SECONDS: Final = 5.0
_LEAST_SECONDS: Final = 0.1
_NAME: Final = 64
_GOOD_STATES: Final = ("UP", "ready", "known", "evicted")
_NOT_SHOWN: Final = "NOT_INSTALLED"
_TRANSIENT: Final = (errors.Unavailable, errors.DeadlineExceeded, errors.Cancelled)

Interval = Annotated[
    float,
    typer.Option(
        "--interval", metavar="SECONDS", min=_LEAST_SECONDS, help="Seconds between two looks."
    ),
]


def top(
    interval: Interval = 1.0, match: Match = "", server: Server = SERVER, as_json: AsJson = False
) -> None:
    """Show the busiest devices and networks, live. Press q or Ctrl-C to end.

    If the output is no terminal, or with --json, it prints the figures of one interval and ends.
    """
    with console.connected(server) as client:
        first = client.status(match)  # an error here ends the command
    if as_json or not sys.stdout.isatty():
        with console.connected(server) as client:
            time.sleep(interval)
            second = client.status(match)
        _print_once(second, first, match, as_json=as_json)
        return
    _Screen(server, match, interval, first).run()


def _print_once(now: Document, before: Document, match: str, *, as_json: bool) -> None:
    found = by_load(figures(now, before))
    if as_json:
        console.print_json(
            {
                "seconds": found.seconds,
                "devices": [_facts(device) for device in found.devices],
                "networks": [_facts(network) for network in found.networks],
            }
        )
        return
    for line in server_lines(now):
        typer.echo(line)
    for (title, rows), what in (
        (_devices(found.devices), "devices"),
        (_networks(found.networks), networks_text(match)),
    ):
        typer.echo("")
        names, texts = [name for name, _ in title], [list(map(str, row)) for row in rows]
        console.print_table(names, texts, what=what)


def _facts(row: DeviceFigures | NetworkFigures) -> dict[str, Any]:
    return {
        name: value._asdict() if hasattr(value, "_asdict") else value
        for name, value in row._asdict().items()
    }


@dataclass
class _Screen:
    """The live view.

    Attributes:
        document, before: the last two answers.
        lost: since when, in seconds since 1970, there is no answer, and why.
        restarts: how often the server has started again.
    """

    server: str
    match: str
    interval: float
    document: Document
    before: Document | None = None
    lost: tuple[float, str] | None = None
    restarts: int = 0
    shown: Figures | None = field(default=None, init=False)

    def run(self) -> None:
        """Shows the figures until somebody quits."""
        screen = Console()
        client: Client | None = None
        try:
            with keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(self._view(screen), refresh=True)
                    if pressed.quit_within(self.interval):
                        return
                    client = self._look(client)
        except KeyboardInterrupt:
            return
        finally:
            if client is not None:
                client.close()

    def _look(self, client: Client | None) -> Client | None:
        """Asks the server. Returns the client for the next look, or None if the next look has to
        connect anew: gRPC would wait longer and longer between its own tries."""
        try:
            if client is None:
                client = Client(
                    self.server, timeout=_ANSWER_SECONDS, **connection.arguments(self.server)
                )
            document = client.status(self.match, timeout=_ANSWER_SECONDS)
        except _TRANSIENT as error:
            self.lost = (self.lost or (time.time(), ""))[0], str(error)
            if client is not None:
                client.close()
            return None
        except errors.Error as error:
            if client is not None:
                client.close()
            console.fail(str(error), error)
        if not same_start(document, self.document):
            self.restarts += 1
        self.before, self.document, self.lost = self.document, document, None
        return client

    def _view(self, screen: Console) -> RenderableType:
        width, height = screen.size
        if self.lost is None:
            self.shown = by_load(figures(self.document, self.before))
        found = self.shown
        assert found is not None
        first, *others = server_lines(self.document)
        head = [Text(first, style="bold"), *map(Text, others)]
        head.append(self._state())
        for line in head:
            line.truncate(width, overflow="ellipsis")
        devices = [device for device in found.devices if device.state != _NOT_SHOWN]
        room = max(height - len(head) - 4, 2)  # the tables' headers, and the lines between
        of_devices = min(len(devices), max(room // 2, room - len(found.networks)))
        of_networks = max(room - of_devices, 1)
        style = "dim" if self.lost else ""
        return Group(
            *head,
            Text(),
            _table(*_devices(devices[:of_devices]), style=style),
            Text(),
            _table(*_networks(found.networks[:of_networks]), style=style)
            if found.networks
            else Text(f"no {networks_text(self.match)}", style, no_wrap=True, overflow="ellipsis"),
        )

    def _state(self) -> Text:
        if self.lost is not None:
            since, why = self.lost
            seconds = time.time() - since
            text = f"NO ANSWER from {self.server} for {seconds:.0f} s; connecting again ({why})"
            return Text(visible(text, 1000), style="bold red")
        assert self.shown is not None
        last = f"last {seconds_text(self.shown.seconds)}" if self.before else "server's life"
        text = f"figures of the {last}; q quits"
        if self.restarts:
            text = f"THE SERVER HAS RESTARTED, {counted(self.restarts, 'time')}; {text}"
        return Text(text, style="yellow" if self.restarts else "dim")


# A column: its name, and whether its values are numbers.
_Columns = Sequence[tuple[str, bool]]
_Rows = list[tuple[Text, ...]]


def _devices(found: Sequence[DeviceFigures]) -> tuple[_Columns, _Rows]:
    columns = _columns("DEVICE STATE", "STREAMS QUEUE WAIT EXECUTION PER_S ERR/S")
    return columns, [
        _row(
            device.state,
            device.name,
            device.state,
            of_text(device.busy, device.streams),
            of_text(device.queued, device.capacity),
            seconds_text(device.wait.mean),
            seconds_text(device.execution.mean),
            rate_text(device.rate),
            rate_text(device.failures),
        )
        for device in found
    ]


def _networks(found: Sequence[NetworkFigures]) -> tuple[_Columns, _Rows]:
    columns = _columns("NETWORK DEVICE STATE", "OPEN PER_S ERR/S MEAN P50 P99")
    budget = any(network.memory_bytes for network in found)
    shadows = any(network.shadow for network in found)
    columns = [*columns, *_columns("", "MEMORY IDLE" if budget else "")]
    return [*columns, ("SHADOW", False)] if shadows else columns, [
        _row(
            network.state,
            network.name,
            network.device or UNKNOWN,
            network.state,
            str(network.in_flight),
            rate_text(network.rate),
            rate_text(network.failures),
            *times_text(network.times),
            *(residence_text(network) if budget else ()),
            *([shadow_text(network.shadow)] if shadows else []),
        )
        for network in found
    ]


def _columns(texts: str, numbers: str) -> _Columns:
    names = ((texts, False), (numbers, True))
    return [(name.replace("_", " "), right) for text, right in names for name in text.split()]


def _row(state: str, *cells: str) -> tuple[Text, ...]:
    style = "" if state in _GOOD_STATES else "red"
    return tuple(Text(visible(cell, _NAME), style=style) for cell in cells)


def _table(columns: _Columns, rows: _Rows, style: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, expand=True, style=style)
    for at, (name, is_number) in enumerate(columns):
        table.add_column(
            name,
            justify="right" if is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if at == 0 else None,
        )
    for row in rows:
        table.add_row(*row)
    return table
