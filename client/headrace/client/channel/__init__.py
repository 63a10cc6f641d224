"""How calls reach a server: HTTP/2 of our own, for threads and for asyncio.

channel      the interface, which everything above uses
connecting   names, addresses, proxies, TLS: from a target to a connected socket
bounds       what a server may do, and how the sockets of connections are set
answers      what came of one call, without sockets
repeats      which calls are sent again, and when
requests     the header blocks of calls
threads      the channel of the synchronous client
tasks        the channel of the asyncio client
grpcio       the same interface over a channel of grpcio that the user has made
"""
