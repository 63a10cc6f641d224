"""From the name of a server to a socket that is connected to it, and why there is none.

    names    gRPC's names: the hosts, ports and sockets that they stand for
    proxies  the proxy that the environment names, and the words that it is asked with
    tls      how a client knows its server
    reasons  the likely causes of failures, and the errors that tell them
    waits    what connecting waits for, for a thread and for asyncio
    dialling looking names up, trying addresses, passing proxies

    dialler = Dialler(parse("dns:///example.com:9000"), tls)
    link = run(dialler.dial(seconds))                    # a thread
    link = await run_on_loop(dialler.dial(seconds))      # asyncio

`link.socket` is connected and does not block. Its owner does the handshake of TLS
(`tls.wrap`, `link.check_protocol`) and speaks HTTP/2. If that fails before the server's first
SETTINGS, `dialler.explain(link, error, received)` gives the error that says why.
"""

from headrace.client.channel.connecting.dialling import Dialler, DialResult
from headrace.client.channel.connecting.names import Location, Name, parse
from headrace.client.channel.connecting.reasons import Unreachable
from headrace.client.channel.connecting.tls import Tls
from headrace.client.channel.connecting.waits import run, run_on_loop

__all__ = [
    "DialResult",
    "Dialler",
    "Location",
    "Name",
    "Tls",
    "Unreachable",
    "parse",
    "run",
    "run_on_loop",
]
