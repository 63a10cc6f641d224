"""How calls reach a server: HTTP/2 of our own, for threads and for asyncio.

    channel      the interface, which everything above uses
    budget       how many calls may be repeated
    repeats      which calls are sent again, and when
    requests     the header blocks of calls
    answers      what came of one call
    bounds       what a server may do, and how a connection's socket is set
    connecting   from a name to a connected socket, and why there is none
    cipher       TLS over memory
    connection   one connection: the protocol and its calls, without a way to wait
    opening      from a name to a connection that carries calls
    threads      the channel of the synchronous client
    tasks        the channel of the asyncio client
    grpcio       the same interface over a channel of grpcio that the user has made

`threads.channel.SocketChannel(name, tls=None, authority="", max_message_bytes=...)` and
`tasks.channel.LoopChannel(...)` with the same arguments are `channel.Channel` and
`channel.AsyncChannel`. The name and TLS are those of `connecting`.
"""
