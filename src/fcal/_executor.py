"""Runs functions in this process, or several at a time in worker processes."""

import atexit
import contextlib
import gc
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_MOST_WORKERS = 256
_TRIES = 2  # of a job whose worker was killed
_POLL = 1.0  # seconds after which a worker checks again that its parent is alive
_LARGE_BLOCK = 24 << 20  # bytes; glibc learns from blocks up to 32 MB


class WorkerError(RuntimeError):
    """A worker process ended before its job did."""


class Job(Future[Any]):
    """A submitted call of a function, which runs only while the executor's ``completed`` or ``as_completed`` is called.

    Afterwards ``result()`` returns what the function returned or raises what it raised: also a ``WorkerError`` if its
    worker process was killed twice, and a ``pickle.PicklingError`` if the function, its arguments or its result cannot
    be sent between processes.
    """

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], affinity: str | None = None, priority: int = 0
    ) -> None:
        super().__init__()
        self.function, self.args, self.affinity, self.priority = function, args, affinity, priority
        self.tries = 0


class Executor:
    """Runs submitted jobs. Leaving the block drops jobs that wait and ends all workers; after an exception, at once.

    Args:
        workers: Number of processes, started when first needed; 1 runs all jobs in this process.

    Raises:
        ImportError: More than one worker needs joblib.

    Example:
        >>> with Executor(workers=1) as pool:
        ...     jobs = [pool.submit(pow, 2, power) for power in range(3)]
        ...     print([job.result() for job in pool.as_completed()])
        [1, 2, 4]
    """

    def __init__(self, workers: int) -> None:
        check_workers(workers)
        self._queue: list[Job] = []
        self._workers = [_Worker()] if workers == 1 else [_ProcessWorker() for _ in range(workers)]

    def submit(self, function: Callable[..., Any], *args: Any, affinity: str | None = None, priority: int = 0) -> Job:
        """Queue ``function(*args)``.

        Args:
            function: Runs in any process; it and ``args`` are pickled, by value if they cannot be imported.
            args: Its arguments.
            affinity: Jobs with the same affinity run in the same process if possible: it has their data in memory.
            priority: Jobs with a lower number run first; of the same number, those submitted first.
        """
        job = Job(function, args, affinity, priority)
        self._queue.append(job)
        return job

    @property
    def running(self) -> list[Job]:
        """Jobs that have been started and are not finished."""
        return [worker.job for worker in self._workers if worker.job is not None]

    def start(self) -> None:
        """Give queued jobs to idle workers; new processes are started last."""
        for worker in sorted(self._workers, key=lambda worker: not worker.is_started):
            if worker.job is None and self._queue:
                elsewhere = {other.affinity for other in self._workers if other is not worker}
                worker.start(take_job(self._queue, worker.affinity, elsewhere))

    def completed(self, timeout: float | None = None) -> list[Job]:
        """Start queued jobs, wait until a job finishes or ``timeout`` seconds pass, and return the finished ones.

        A job of this process itself always runs to its end.

        A job whose process was killed goes to a new process; it is finished if that is killed too.
        """
        self.start()
        busy = {worker.future(): worker for worker in self._workers if worker.job is not None}
        if not busy:
            time.sleep(timeout or 0.0)
        finished = []
        for future in wait(busy, timeout, FIRST_COMPLETED).done:
            job, error = busy[future].collect(future)
            if isinstance(error, WorkerError) and job.tries < _TRIES:
                self._queue.insert(0, job)
                continue
            if error is None:
                job.set_result(future.result())
            else:
                job.set_exception(error)
            finished.append(job)
        return finished

    def as_completed(self) -> Iterator[Job]:
        """All submitted jobs, each as it finishes."""
        while self._queue or self.running:
            yield from self.completed()

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._queue.clear()
        # A second Ctrl-C leaves no process behind.
        ignored = signal_handler(signal.SIGINT, signal.SIG_IGN)
        with ignored, ThreadPoolExecutor(len(self._workers)) as threads:
            list(threads.map(lambda worker: worker.close(kill=kind is not None), self._workers))


def check_workers(workers: int) -> None:
    """Refuse a number of workers that is no int within [1, 256]."""
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise TypeError(f"expected `workers` an int, got {type(workers).__name__} {workers!r}")
    if not 1 <= workers <= _MOST_WORKERS:
        raise ValueError(f"expected `workers` within [1, {_MOST_WORKERS}], got {workers}")


def take_job(queue: list[Job], affinity: str | None, elsewhere: Collection[str | None] = ()) -> Job:
    """Remove a job from a queue: of the worker's affinity, else of no other worker's, else any; then by priority."""

    def rank(job: Job) -> tuple[bool, bool, int]:
        has_data = job.affinity is not None
        return not (has_data and job.affinity == affinity), has_data and job.affinity in elsewhere, job.priority

    job = min(queue, key=rank)
    queue.remove(job)
    return job


class _Worker:
    """Runs jobs in this process, one at a time."""

    def __init__(self) -> None:
        self.is_started = True
        self.job: Job | None = None
        self.affinity: str | None = None  # of its last job

    def start(self, job: Job) -> None:
        self.job, self.affinity = job, job.affinity
        job.tries += 1

    def future(self) -> Future[Any]:
        """Outcome of the job; here it runs now."""
        assert self.job is not None
        future: Future[Any] = Future()
        try:
            future.set_result(self.job.function(*self.job.args))
        except Exception as error:  # raised again by `Job.result`
            future.set_exception(error)
        except BaseException:  # Ctrl-C: the job is not tried again
            self.job = None
            raise
        return future

    def collect(self, future: Future[Any]) -> tuple[Job, BaseException | None]:
        """The finished job and its error; the worker is idle again."""
        assert self.job is not None
        job, self.job = self.job, None
        return job, future.exception()

    def close(self, *, kill: bool) -> None:
        """End the process, at once or after its job."""


class _ProcessWorker(_Worker):
    """A pool of joblib's loky with one process, so that a killed process takes no other job with it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_started = False
        try:
            from joblib.externals.loky import process_executor
        except ModuleNotFoundError:
            raise ImportError("expected joblib for more than one worker; pip install 'fcal[cli]'") from None
        self._loky = process_executor
        self._pool: Any = None
        self._future: Future[Any] = Future()

    def start(self, job: Job) -> None:
        self.is_started = True
        with interrupts_deferred():
            try:
                if self._pool is None:
                    options = {"initializer": _prepare_worker, "initargs": (os.getpid(),)}
                    self._pool = self._loky.ProcessPoolExecutor(1, env=dict.fromkeys(_THREADS, "1"), **options)
                self._future = self._pool.submit(_call, job.function, *job.args)
            except self._loky.BrokenProcessPool as error:  # killed while it was idle
                self._future = Future()
                self._future.set_exception(error)
        super().start(job)

    def future(self) -> Future[Any]:
        return self._future

    def collect(self, future: Future[Any]) -> tuple[Job, BaseException | None]:
        job, error = super().collect(future)
        if isinstance(error, self._loky.BrokenProcessPool):
            self.close(kill=True)
        if isinstance(error, self._loky.TerminatedWorkerError):
            return job, WorkerError(_exit_reason(str(error)))
        if isinstance(error, self._loky.BrokenProcessPool | pickle.PicklingError):
            trace = [line for line in str(error.__cause__ or error).splitlines() if line.strip('"')]
            return job, pickle.PicklingError(trace[-1] if trace else str(error))
        return job, error

    def close(self, *, kill: bool) -> None:
        pool, self._pool = self._pool, None
        self.affinity, self.is_started = None, False
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=kill)


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of memory for reuse, by freeing one large block; without glibc this does nothing.

    Otherwise the buffers of every chunk or step are returned to the system and mapped again in the next, which takes a
    third to a half of the time of training small networks and of a pass over a file.
    """
    import torch

    torch.empty(_LARGE_BLOCK, dtype=torch.uint8)


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """One thread of torch, if it is loaded: results repeat bit for bit, and processes do not compete for cores."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def signal_handler(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Handle a signal differently during the block; only the main thread can, in others nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C wait until the end of the block; processes that are started in it never get one.

    A new process inherits what is blocked, so that it does not end with a traceback while it starts: its parent handles
    Ctrl-C. Ignoring the signal instead would lose one that is pressed in the meantime, and starting takes seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    with signal_handler(signal.SIGINT, lambda number, _: pressed.append(number)):  # another thread may receive it
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if pressed:
        signal.raise_signal(signal.SIGINT)


def _prepare_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by `interrupts_deferred`
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a worker; what it had to import is exempt from garbage collection.

    Loky collects garbage after every job, which would take a quarter of a second with torch loaded.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        atexit.register(gc.unfreeze)  # extension modules report what is not freed at exit
    return function(*args)


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL)
    os._exit(1)


def _exit_reason(message: str) -> str:
    """Why a worker ended, from loky's message, which ends with exit codes such as ``{SIGKILL(-9)}``.

    Example:
        >>> _exit_reason("The exit codes of the workers are {SIGKILL(-9)}")
        'its process was ended by signal 9 (SIGKILL; out of memory?)'
    """
    match = re.search(r"\((-?\d+)\)\}", message)
    if match is None:
        return "its process ended"
    code = int(match[1])
    if code >= 0:
        return f"its process ended with exit code {code}"
    hint = "; out of memory?" if -code == signal.SIGKILL else ""
    return f"its process was ended by signal {-code} ({signal.Signals(-code).name}{hint})"
