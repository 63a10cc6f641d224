"""Whether others send requests to the server."""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.client import aio

_LOOK_SECONDS: Final = 0.25


async def requests_of_others(client: aio.Client, own: str) -> str:
    """Waits until a network other than `own` gets requests, or runs some. Returns their names.

    Raises:
        Error: the server does not say.
    """
    before: dict[str, int] | None = None
    while True:
        counts: dict[str, int] = {}
        busy = set()
        for row in (await client.status())["networks"]:
            name = row["name"]
            if name != own:
                counts[name] = counts.get(name, 0) + int(row["accepted"])
                if row["in_flight"]:
                    busy.add(name)
        before = before if before is not None else counts
        busy |= {name for name, count in counts.items() if count > before.get(name, 0)}
        if busy:
            return ", ".join(sorted(busy)[:3])
        await asyncio.sleep(_LOOK_SECONDS)
