"""Worker processes that end with their parent, one for each piece of work.

A worker has its own process group, so Ctrl-C in a terminal reaches the parent alone. The parent then asks its workers to
stop, which they do after the step they are in, and kills those that take longer than `PATIENCE`. A training that is killed
resumes from its last checkpoint, so nothing but a little time is lost.

If the parent is gone, however that happened, the worker ends: the Linux kernel kills it (PR_SET_PDEATHSIG), and on every
platform a thread of the worker looks after its parent once a second.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

PATIENCE = 3.0
"""Seconds that a worker has to stop of its own accord."""
_POLL = 0.2
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Numbers of glibc's options in `mallopt`."""


class WorkerFailed(RuntimeError):
    """A worker ended without finishing its work."""


@dataclass
class Workers:
    """Up to `most` processes of one thread each; each carries out one call and ends.

    Leaving the `with` block ends every worker that is still running.
    """

    most: int
    niceness: int = 0
    _running: dict[int, BaseProcess] = field(default_factory=dict)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> tuple[int, ...]:
        """The names of the calls that are under way."""
        return tuple(self._running)

    @property
    def has_room(self) -> bool:
        """Whether another worker may be started."""
        return len(self._running) < self.most

    def start(self, name: int, function: Callable[..., object], *arguments: Any) -> None:
        """Starts a worker process that calls `function`; both it and its arguments must be picklable."""
        # A fresh process: a fork would copy torch's threads and the noise keys of the parent.
        process = get_context("spawn").Process(target=_work, args=(os.getpid(), self.niceness, function, arguments))
        # Until it has its own process group, a Ctrl-C in the terminal would reach it too and print a traceback.
        with _interrupts_wait():
            process.start()
            self._running[name] = process

    def take_finished(self) -> list[tuple[int, int]]:
        """Returns the names and exit codes of the worker processes that have ended since the last time."""
        # A process is joined once, so that it leaves no zombie.
        ended = [(name, process) for name, process in self._running.items() if process.exitcode is not None]
        for name, process in ended:
            process.join()
            del self._running[name]
        return [(name, process.exitcode or 0) for name, process in ended]

    def pause(self) -> None:
        """Stops every running worker process where it is, until `resume`; call it again while others may be starting.

        A worker in its first moments goes on: if it were stopped before it has arranged to end with this process, nobody
        would ever wake it after this process was killed.
        """
        for pid in self._pids():
            if _ends_with_parent(pid):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets every worker process go on that `pause` has stopped."""
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        """Returns the numbers of the worker processes that have not ended."""
        return [one.pid for one in self._running.values() if one.pid is not None and one.exitcode is None]

    def stop(self) -> None:
        """Ends all worker processes: asks them, waits for `PATIENCE` seconds at most, then kills those that are left."""
        for process in self._running.values():
            process.terminate()
        # All are asked first and then waited for together, so that patience is spent once.
        until = time.monotonic() + PATIENCE
        for process in self._running.values():
            process.join(max(0.0, until - time.monotonic()))
        for process in self._running.values():
            if process.exitcode is None:
                process.kill()
                process.join()
        self._running.clear()


def run_all(jobs: Sequence[tuple[int, Callable[..., object], Sequence[Any]]], most: int) -> Iterator[int]:
    """Carries out numbered jobs in their order in `most` worker processes, and yields the number of each when it is
    done.

    Raises:
        WorkerFailed: a worker ended with an error; the others are ended too.

    """
    # Jobs are begun in their order as workers get free; the caller hears of each as it ends.
    waiting = list(jobs)
    with Workers(most) as workers:
        while waiting or workers.running:
            while waiting and workers.has_room:
                number, function, arguments = waiting.pop(0)
                workers.start(number, function, *arguments)
            for number, code in workers.take_finished():
                # One failure ends the rest: leaving the `with` block stops the other workers.
                if code != 0:
                    raise WorkerFailed(f"a worker ended with exit code {code}; its message is above")
                yield number
            # Waiting in short pauses costs no processor time that the workers could use.
            time.sleep(_POLL)


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM end this process as Ctrl-C does, so that its workers are asked to stop and keep a last checkpoint."""
    # Python allows handlers in the main thread alone; elsewhere, as in a notebook's thread, SIGTERM stays what it was.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Holds a Ctrl-C back until the block is left; a process that is started meanwhile goes on holding it back."""
    # Windows has no masks of signals.
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # The first process started has a helper started before it, which would let SIGINT through again.
    from multiprocessing.resource_tracker import ensure_running

    ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _heed_interrupts() -> None:
    """Lets a worker heed SIGINT from now on; one that came while it was starting was meant for its parent."""
    if hasattr(signal, "pthread_sigmask"):
        # To ignore a signal discards it where it is waiting.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _work(parent: int, niceness: int, function: Callable[..., object], arguments: Sequence[Any]) -> None:
    """Prepares this process as a worker, which ends with its parent and has one thread, and carries out its call."""
    # Before anything else, so that no worker outlives a parent that is killed at once.
    end_with_parent(parent)
    # The process group comes second, because it tells the parent that this worker may be paused.
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    _heed_interrupts()
    if niceness and hasattr(os, "nice"):
        os.nice(max(0, niceness - os.nice(0)))
    os.environ["OMP_NUM_THREADS"] = "1"
    keep_freed_memory()
    import torch

    torch.set_num_threads(1)
    # SIGTERM ends a worker through Python, so that it cleans up; while it trains, the loop takes the signal itself.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        function(*arguments)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)


def keep_freed_memory() -> None:
    """Lets this process keep the memory it frees, so that the next tensor of a training need not ask the system for it.

    By default glibc gives large blocks back at once, and every block that it asks for anew is filled with zeros page by
    page. A step of the thesis' network on CIFAR-10 took 61 ms in place of 88, and an evaluation 1.7 s in place of 4
    (AMD EPYC 26.2, one thread). Nothing happens where the C library is another.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)  # no block of its own for a large tensor
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 << 20)


def _ends_with_parent(pid: int) -> bool:
    """Returns whether a worker process has arranged to end with its parent, after which it has its own process group."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def end_with_parent(parent: int) -> None:
    """Arranges that this worker process ends when the process `parent` does, even if that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    # The parent may have ended before the call above; the thread sees that too.
    threading.Thread(target=watch, daemon=True, name="parent watch").start()
