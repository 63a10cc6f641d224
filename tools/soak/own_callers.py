"""Load through our own client: one request after another, started ones, many on a stream."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Generator

import numpy as np

from headrace.client import aio, errors
from tools.soak.caller import SECONDS, Caller
from tools.soak.ledger import End
from tools.soak.networks import LARGE

MANY = 32


def unary(caller: Caller) -> Generator[float]:
    """One request after another."""
    with caller.place.client() as client:
        network = client.network(caller.target.name)
        while True:
            inputs, expected = caller.sample()
            with caller.sent():
                caller.judge(network.infer(inputs), expected)
            yield 0.03


def reconnecting(caller: Caller) -> Generator[float]:
    """A connection for each request: each has a handshake, with the certificate of that moment."""
    while True:
        inputs, expected = caller.sample()
        with caller.sent(), caller.place.client() as client:
            caller.judge(client.network(caller.target.name).infer(inputs), expected)
        yield 0.2


def started(caller: Caller) -> Generator[float]:
    """Eight requests at a time, some of which are cancelled."""
    dice = random.Random(1)
    with caller.place.client() as client:
        network = client.network(caller.target.name)
        while True:
            begun = []
            for _ in range(8):
                inputs, expected = caller.sample()
                caller.count(End.SENT)
                begun.append((network.start_async(inputs), expected))
            for request, _ in begun:
                if dice.random() < 0.2:
                    request.cancel()
            for request, expected in begun:
                try:
                    caller.judge(request.result(), expected)
                except errors.Cancelled:
                    caller.count(End.GIVEN_UP)
                except errors.Error as error:
                    caller.failed(error.code.name, str(error))
            yield 0.1


def late(caller: Caller) -> Generator[float]:
    """Requests that never end by themselves, and have little time."""
    dice = random.Random(2)
    with caller.place.client() as client:
        network = client.network(caller.target.name)
        inputs = {"x": np.ones(2, np.float32)}
        while True:
            caller.count(End.SENT)
            try:
                network.infer(inputs, timeout=dice.choice((0.001, 0.02, 0.1)))
                caller.failed("OK", "an endless request has ended")
            except errors.DeadlineExceeded:
                caller.count(End.GIVEN_UP)
            except errors.Error as error:
                caller.failed(error.code.name, str(error))
            yield 0.5


def many(caller: Caller) -> Generator[float]:
    """Many requests over one stream."""
    with caller.place.client() as client:
        network = client.network(caller.target.name)
        while True:
            samples = [caller.sample() for _ in range(MANY)]
            begin, open_ones = time.monotonic(), MANY
            caller.count(End.SENT, MANY)
            try:
                for index, outputs in network.infer_many(inputs for inputs, _ in samples):
                    open_ones -= 1
                    if isinstance(outputs, errors.Error):
                        caller.failed(outputs.code.name, str(outputs))
                    else:
                        caller.judge(outputs, samples[index][1])
            except errors.Error as error:
                for _ in range(open_ones):
                    caller.failed(error.code.name, str(error))
            caller.took(begin)
            yield 0.3


def shared(caller: Caller) -> Generator[float]:
    """Tensors in shared memory."""
    with caller.place.client(shared_memory=True) as client:
        network = client.network(caller.target.name)
        while True:
            inputs, expected = caller.sample()
            assert inputs["x"].shape == LARGE
            with caller.sent():
                caller.judge(network.infer(inputs), expected)
            yield 0.1


def session(caller: Caller) -> Generator[float]:
    """Sequences of ten requests, each of which has the sum of those before it."""
    with caller.place.client() as client:
        network = client.network(caller.target.name)
        while True:
            sequence, so_far, alive = network.session(), 0, True
            for step in range(1, 11):
                so_far += step
                expected = {"doubled": np.full((1, 2), 2 * so_far, np.float32)}
                errors_before = caller.errors
                with caller.sent():
                    x = np.full((1, 2), step, np.float32)
                    caller.judge(sequence.infer({"x": x}, end=step == 10), expected)
                if caller.errors > errors_before:
                    alive = False
                    break
                yield 0.03
            if not alive:
                caller.count(End.SENT)
                caller.count(End.GIVEN_UP)  # its end is counted if the server knows the sequence
                try:
                    sequence.end()
                except errors.Error as error:
                    caller.note(error.code.name, str(error))


def awaited(caller: Caller) -> Generator[float]:
    """The asyncio client: requests together, some cancelled, then many on a stream."""
    runner, dice = asyncio.Runner(), random.Random(3)

    async def one(network: aio.Network) -> None:
        inputs, expected = caller.sample()
        with caller.sent():
            caller.judge(await network.infer(inputs), expected)

    async def cancelled(network: aio.Network) -> None:
        inputs, expected = caller.sample()
        caller.count(End.SENT)
        request = network.start_async(inputs)
        await asyncio.sleep(0)
        request.cancel()
        try:
            caller.judge(await request.result(), expected)
        except errors.Cancelled:
            caller.count(End.GIVEN_UP)
        except errors.Error as error:
            caller.failed(error.code.name, str(error))

    async def streamed(network: aio.Network) -> None:
        samples = [caller.sample() for _ in range(8)]
        left = len(samples)
        caller.count(End.SENT, left)
        try:
            async for index, outputs in network.infer_many(inputs for inputs, _ in samples):
                left -= 1
                if isinstance(outputs, errors.Error):
                    caller.failed(outputs.code.name, str(outputs))
                else:
                    caller.judge(outputs, samples[index][1])
        except errors.Error as error:
            for _ in range(left):
                caller.failed(error.code.name, str(error))

    async def together(network: aio.Network) -> None:
        ways = [dice.choice((one, one, one, cancelled)) for _ in range(6)]
        await asyncio.gather(*(way(network) for way in ways))

    async def opened() -> tuple[aio.Client, aio.Network]:
        place = caller.place
        client = aio.Client(place.target, tls_ca=place.ca, token=place.token, timeout=SECONDS)
        return client, await client.network(caller.target.name)

    client, network = runner.run(opened())
    try:
        for way in itertools.cycle((together, together, streamed)):
            runner.run(way(network))
            yield 0.1
    finally:
        runner.run(client.close())
        runner.close()
