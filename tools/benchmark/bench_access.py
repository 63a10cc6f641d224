"""Server processor time per tiny request with a token or a JWT, beside an open server.

Each round asks all servers in turns. The figures are medians of the rounds.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from headrace.server.access.token_file import add_token
from tests.support.tokens import AUDIENCE, Signer, key_set
from tools.benchmark.bench_requests import load_tiny
from tools.benchmark.servers import INFER, Server, headrace, load

ROUNDS = 7
SECONDS = 0.7
CASES = (("unary, 32 callers", INFER, 32), ("1 stream, 32 in flight", "stream:1", 32))


def compare(servers: Mapping[str, tuple[Server, str]], message: Path, rounds: int) -> None:
    """Prints what a request costs each server, beside the first one.

    Args:
        servers: by name, each with the token that its callers have.
    """
    first = next(iter(servers))
    print(f"{'case':24} {'server':26} {'us':>6} {'ratio':>6}")
    for case, mode, callers in CASES:
        taken = [
            {
                name: load(
                    *server, mode, callers, message, SECONDS, {"HEADRACE_TOKEN": token}
                ).microseconds
                for name, (server, token) in servers.items()
            }
            for _ in range(rounds)
        ]
        for name in servers:
            ratio = statistics.median(each[name] / each[first] for each in taken)
            spent = statistics.median(each[name] for each in taken)
            print(f"{case:24} {name:26} {spent:6.0f} {ratio:6.2f}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, signer = Path(name), Signer()
        tokens, keys = folder / "tokens.toml", folder / "keys.json"
        keys.write_text(key_set([signer]))
        controlled = ("--tokens", str(tokens), "--jwt-jwks", str(keys), "--jwt-audience", AUDIENCE)
        token, jwt = add_token(tokens, "bench", ["manage"]), signer.sign(("manage",))
        audited = (*controlled, "--audit-log", str(folder / "audit"))
        servers = {
            "for everybody": (stack.enter_context(headrace()), ""),
            "token": (stack.enter_context(headrace(*controlled)), token),
            "JWT": (stack.enter_context(headrace(*controlled)), jwt),
            "token, audit log": (stack.enter_context(headrace(*audited)), token),
        }
        for (address, _), credential in servers.values():
            message = load_tiny(folder, address, token=credential or None)
        compare(servers, message, ROUNDS)


if __name__ == "__main__":
    main()
