"""HTTP/2 (RFC 9113) and gRPC over it, without sockets, loops or threads.

Bytes go in, events and bytes come out, and the time is an argument. `Connection` is one end of a
connection, a server's or a client's. Layers, each of which imports only those above it:

    frames      numbers and layouts of frames, error codes
    faults      what ends a connection or a stream
    limits      what a peer may do, and what it has left of that
    compression header compression: decoding
    blocks      header blocks: what they mean, what a list of fields must look like
    messages    gRPC's messages in a stream of data
    calls       a gRPC call's header blocks: metadata, deadlines, statuses
    streams     one stream: its windows, what it has yet to send
    events      what the owner of a connection is told
    sending     what one end sends, and the windows of its peer
    receiving   the data that a peer sends: messages, and the windows that they go through
    connection  the state machine of one end
"""
