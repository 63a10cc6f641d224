"""Streams: the threads of one physical device, and the queue in front of them.

A task goes to an idle stream at once, or waits in the device's fair queue. A stream that finishes
takes the next task itself, so under load no thread has to be woken. A calling thread may take an
idle stream's place and run a task itself, which saves the hop. A task that runs in another process
is *dispatched*: it keeps the stream's place until its answer has come, and its thread is not woken.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable

from headrace.runtime.errors import Internal, Unavailable
from headrace.runtime.execution.fair_queue import Entry, FairQueue, Flow
from headrace.runtime.execution.inline_budget import InlineBudget
from headrace.runtime.execution.stream import ExecutionStream, Task, Work

_log = logging.getLogger(__name__)


class StreamsExecutor:
    """N streams and one queue. Thread-safe.

    `_lock` guards the queue, the flows, the idle list and the stream count; tasks run outside it.

    Args:
        name: the device's name, for example `CPU.0`. The threads are named after it.
        streams: how many tasks run at once, at least 1.
        bind: pin each stream's thread to a processor of this process's affinity set.
    """

    def __init__(self, name: str, streams: int, *, bind: bool = False) -> None:
        self.name = name
        self._bind = bind
        self._lock = threading.Lock()
        self._queue: FairQueue[Task] = FairQueue()
        self._streams: list[ExecutionStream] = []
        self._idle: list[ExecutionStream] = []
        self._target = 0
        self._stopped = False
        self.resize(streams)

    # -- what runs where --

    def share(self, limit: int) -> Share:
        """A lane of the queue for one network. At most `limit` of its tasks run at once."""
        return Share(self, Flow(limit))

    def inline_budget(self, *, safe: bool) -> InlineBudget | None:
        """Decides when a network's tasks run on the thread that submits them; None: never.

        Args:
            safe: whether the device computes on the calling thread.
        """
        return InlineBudget() if safe else None

    def submit(self, flow: Flow[Task], task: Task) -> None:
        """Starts the task on an idle stream, or queues it and sets its `entry`. Never blocks.

        Raises:
            Unavailable: the executor has stopped.
        """
        with self._lock:
            stream = self._idle_stream(flow)
            if stream is None:
                task.entry = self._queue.push(flow, task, task.priority)
                return
            stream.work = (flow, task)
        self._go_on(stream)

    def enter(self, flow: Flow[Task]) -> ExecutionStream | None:
        """Takes an idle stream's place, to run a task in the calling thread. Call `leave` after it.
        Returns None if no stream is idle, or if the flow is at its limit.

        Raises:
            Unavailable: the executor has stopped.
        """
        with self._lock:
            if self._stopped:
                raise self._unavailable()
            if not self._idle or flow.running >= flow.limit:
                return None
            flow.running += 1
            return self._idle.pop()

    @staticmethod
    def hand(stream: ExecutionStream, flow: Flow[Task], task: Task) -> None:
        """Has the thread of the stream that `enter` returned run a task after all."""
        stream.work = (flow, task)
        stream.wake.release()

    def leave(self, stream: ExecutionStream, flow: Flow[Task]) -> None:
        """Gives back the stream that `enter` returned, or with which a task was dispatched."""
        with self._lock:
            if not self._queue.length and len(self._streams) == self._target and not self._stopped:
                flow.running -= 1
                stream.work = None  # a task that was dispatched, with its tensors
                self._idle.append(stream)
                return
            goes_on = self._advance(stream, flow)
        if goes_on:
            self._go_on(stream)

    def take_more(self, flow: Flow[Task], most: int, fits: Callable[[Task], bool]) -> list[Task]:
        """Takes out waiting tasks that are sent together with one of the flow that has a stream.

        At most the stream's share of the flow's waiting tasks goes along, so that other streams get
        as many.

        Args:
            fits: whether a task may go along. The first that may not ends the list. It is called
                under the lock, and must be brief.
        """
        others: list[Task] = []
        with self._lock:
            most = min(most, -(-flow.waiting // max(1, min(flow.limit, self._target))))
            while len(others) < most:
                task = self._queue.head(flow)
                if task is None or not fits(task):
                    break
                others.append(self._queue.take(flow))
        return others

    def put_back(self, tasks: Iterable[Task]) -> None:
        """Undoes `take_more`: the tasks wait in their old places.

        Raises:
            Unavailable: the executor has stopped.
        """
        with self._lock:
            if self._stopped:
                raise self._unavailable()
            for task in tasks:
                assert task.entry is not None  # it has waited
                self._queue.put_back(task.entry, task)
            started = self._dispatch()
        self._wake(started)

    def remove(self, entry: Entry[Task]) -> bool:
        """Takes a waiting task out of the queue. Returns False if it has left already."""
        with self._lock:
            return self._queue.remove(entry)

    def set_limit(self, flow: Flow[Task], limit: int) -> None:
        with self._lock:
            flow.limit = limit
            started = self._dispatch()
        self._wake(started)

    # -- size --

    @property
    def streams(self) -> int:
        return self._target

    @property
    def busy(self) -> int:
        """How many tasks run now."""
        return max(0, len(self._streams) - len(self._idle))

    @property
    def waiting(self) -> int:
        """How many tasks are in the queue."""
        return len(self._queue)

    def resize(self, streams: int) -> None:
        """Changes the number of streams. Grows at once, and shrinks as streams finish their tasks.

        Raises:
            Unavailable: the executor has stopped.
        """
        if streams < 1:
            raise ValueError("an executor needs a stream")
        retired: list[ExecutionStream] = []
        with self._lock:
            if self._stopped:
                raise self._unavailable()
            self._target = streams
            taken = {stream.index for stream in self._streams}
            free = (index for index in itertools.count() if index not in taken)
            while len(self._streams) < streams:
                stream = ExecutionStream(next(free))
                self._start_thread(stream)
                self._streams.append(stream)
                self._idle.append(stream)
            while len(self._streams) > streams and self._idle:
                retired.append(self._retire(self._idle.pop()))
            started = self._dispatch()
        self._wake(retired + started)

    def stop(self, timeout: float | None = None) -> None:
        """Fails waiting tasks with Unavailable, lets running tasks finish, and ends the threads.

        A task must not call this: it would wait for its own end.

        Args:
            timeout: seconds to wait for running tasks; None: until they have finished.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._stopped = True
            abandoned = self._queue.drain()
            streams = list(self._streams)
            idle, self._idle = self._idle, []
            for stream in idle:
                self._retire(stream)
        for task in abandoned:
            task.fail(self._unavailable())
        self._wake(idle)
        for stream in streams:
            if stream.thread is not None:
                stream.thread.join(
                    None if deadline is None else max(0, deadline - time.monotonic())
                )

    # -- the threads --

    def _start_thread(self, stream: ExecutionStream) -> None:
        stream.thread = threading.Thread(
            target=self._main,
            args=(stream,),
            name=f"{self.name}-stream-{stream.index}",
            daemon=True,
        )
        stream.thread.start()

    def _main(self, stream: ExecutionStream) -> None:
        if self._bind:
            self._bind_thread(stream.index)
        while not stream.retired:
            stream.wake.acquire()
            work = stream.work
            while work is not None:
                flow, task = work
                self._run(stream, task)
                del task
                work = self._next(stream, flow)
                if work is not None and _dispatch(work[1], stream):
                    work = None

    def _run(self, stream: ExecutionStream, task: Task) -> None:
        """Runs a task. Nothing that it raises ends the thread, not even SystemExit. Otherwise the
        job would get no answer, and the device would have a stream less."""
        try:
            task.run(stream.index)
        except BaseException as error:  # noqa: BLE001 - see above
            _log.critical("a task of %s raised", self.name, exc_info=error)
            task.fail(Internal(f"the task ended with {error!r}"))

    @staticmethod
    def _go_on(stream: ExecutionStream) -> None:
        """Starts the work that the stream has been given, or lets its thread end."""
        work = stream.work
        if work is None or not _dispatch(work[1], stream):
            stream.wake.release()

    def _idle_stream(self, flow: Flow[Task]) -> ExecutionStream | None:
        """Takes an idle stream for a task of the flow, which counts as running from now on. Returns
        None if the task has to wait."""
        if self._stopped:
            raise self._unavailable()
        if not self._idle or flow.running >= flow.limit:
            return None
        flow.running += 1
        return self._idle.pop()

    def _next(self, stream: ExecutionStream, flow: Flow[Task]) -> Work | None:
        with self._lock:
            self._advance(stream, flow)
            return stream.work

    def _advance(self, stream: ExecutionStream, flow: Flow[Task]) -> bool:
        """A task of `flow` ended on the stream: gives the stream the next task, parks it or retires
        it.

        Returns:
            False if the stream is parked. This is known only under the lock, because another thread
            may give the stream work right after.
        """
        self._queue.finished(flow)
        if self._stopped or len(self._streams) > self._target:
            stream.work = None
            self._retire(stream)
            return True
        work = stream.work = self._queue.pop()
        if work is None:
            self._idle.append(stream)
            return False
        return True

    def _retire(self, stream: ExecutionStream) -> ExecutionStream:
        stream.retired = True
        self._streams.remove(stream)
        return stream

    def _dispatch(self) -> list[ExecutionStream]:
        """Gives tasks to idle streams, and returns these. The caller wakes them outside the
        lock."""
        started = []
        while self._idle and (work := self._queue.pop()) is not None:
            stream = self._idle.pop()
            stream.work = work
            started.append(stream)
        return started

    def _bind_thread(self, index: int) -> None:
        processors = sorted(os.sched_getaffinity(0))
        try:
            os.sched_setaffinity(0, {processors[index % len(processors)]})
        except OSError as error:
            _log.warning("a thread of %s runs unbound: %s", self.name, error)

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"device {self.name} is shutting down")

    def _wake(self, streams: list[ExecutionStream]) -> None:
        for stream in streams:
            self._go_on(stream)


def _dispatch(task: Task, stream: ExecutionStream) -> bool:
    """Dispatches the task, and returns whether it could. If that raises, the stream's thread runs
    the task, and the stream is not lost."""
    try:
        return task.dispatch(stream)
    except Exception:  # noqa: BLE001 - see above
        _log.exception("a task could not be dispatched")
        return False


class Share:
    """A network's lane on an executor.

    Attributes:
        executor, flow: public, so that `executor.enter` and `leave` are called directly; a method
            here would cost one more call.
    """

    __slots__ = ("executor", "flow")

    def __init__(self, executor: StreamsExecutor, flow: Flow[Task]) -> None:
        self.executor = executor
        self.flow = flow

    def submit(self, task: Task) -> None:
        self.executor.submit(self.flow, task)

    def remove(self, entry: Entry[Task]) -> bool:
        return self.executor.remove(entry)

    @property
    def limit(self) -> int:
        return self.flow.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self.executor.set_limit(self.flow, limit)
