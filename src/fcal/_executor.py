"""Calls of functions, one after another in this process or several at a time in worker processes."""

import abc
import atexit
import bisect
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
from dataclasses import dataclass
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_MOST_WORKERS = 256
_TRIES = 2  # of a job whose worker was killed
_LOOK = 1.0  # seconds between looks of a worker at its parent
_LARGE_BLOCK = 24 << 20  # bytes; glibc learns from blocks up to 32 MB


class WorkerError(RuntimeError):
    """A worker process ended before its job did."""


@dataclass(eq=False)
class Job:
    """A submitted call of a function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    affinity: str | None = None
    priority: int = 0
    tries: int = 0
    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """What the function returned, once the job is finished.

        Raises:
            Exception: What the function raised.
            WorkerError: Its worker process was killed, also when it was tried again.
            pickle.PicklingError: The function, its arguments or its result cannot be sent between processes.
        """
        if self.error is not None:
            raise self.error
        return self.value


class Executor(abc.ABC):
    """Runs submitted jobs. On leaving the block all workers are gone; after an exception they are killed.

    Example:
        >>> with executor(workers=1) as pool:
        ...     jobs = [pool.submit(pow, 2, power) for power in range(3)]
        ...     print([job.result() for job in pool.as_completed()])
        [1, 2, 4]
    """

    def __init__(self) -> None:
        self._queue: list[Job] = []

    def submit(self, function: Callable[..., Any], *args: Any, affinity: str | None = None, priority: int = 0) -> Job:
        """Queue ``function(*args)``.

        Args:
            function: Runs in any process; it and ``args`` are pickled, by value if they cannot be imported.
            args: Its arguments.
            affinity: Jobs with the same affinity run in the same process if possible: it has their data in memory.
            priority: Jobs with a lower number run first; of the same number, those submitted first.
        """
        job = Job(function, args, affinity, priority)
        bisect.insort(self._queue, job, key=_priority)
        return job

    @property
    @abc.abstractmethod
    def running(self) -> list[Job]:
        """Jobs that have been started and are not finished."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start queued jobs on idle workers."""

    @abc.abstractmethod
    def completed(self, timeout: float | None = None) -> list[Job]:
        """Start queued jobs, wait until a job finishes or ``timeout`` seconds pass, and return the finished ones."""

    def as_completed(self) -> Iterator[Job]:
        """All submitted jobs, each as it finishes."""
        while self._queue or self.running:
            yield from self.completed()

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._queue.clear()
        self.close(kill=kind is not None)

    @abc.abstractmethod
    def close(self, *, kill: bool) -> None:
        """End all workers, at once or after their jobs."""


def executor(workers: int) -> Executor:
    """An executor that runs at most ``workers`` jobs at a time; one worker is this process itself.

    Raises:
        ImportError: More than one worker needs joblib.
    """
    check_workers(workers)
    return SerialExecutor() if workers == 1 else ProcessExecutor(workers)


def check_workers(workers: int) -> None:
    """Refuse a number of workers that is no int within [1, 256]."""
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise TypeError(f"expected `workers` an int, got {type(workers).__name__} {workers!r}")
    if not 1 <= workers <= _MOST_WORKERS:
        raise ValueError(f"expected `workers` within [1, {_MOST_WORKERS}], got {workers}")


class SerialExecutor(Executor):
    """Runs jobs in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._job: Job | None = None
        self._affinity: str | None = None

    @property
    def running(self) -> list[Job]:
        """The job that runs next."""
        return [] if self._job is None else [self._job]

    def start(self) -> None:
        """Choose the job that runs next."""
        if self._job is None and self._queue:
            self._job = take_job(self._queue, self._affinity)
            self._affinity = self._job.affinity

    def completed(self, timeout: float | None = None) -> list[Job]:  # noqa: ARG002 - nothing can interrupt the job
        """Run one job."""
        self.start()
        job, self._job = self._job, None
        if job is None:
            return []
        try:
            job.value = job.function(*job.args)
        except Exception as error:  # raised again by `result`
            job.error = error
        return [job]

    def close(self, *, kill: bool) -> None:
        """Nothing to end."""


class _Worker:
    """A process pool of size one, so that a killed process takes no other job with it.

    Attributes:
        job: The job that it runs, or None.
        affinity: That of its last job.
        future: Result of the job in the pool.
    """

    def __init__(self) -> None:
        self.job: Job | None = None
        self.affinity: str | None = None
        self.future: Future[Any] = Future()
        self._pool: Any = None

    @property
    def is_started(self) -> bool:
        return self._pool is not None

    def run(self, job: Job) -> None:
        from joblib.externals.loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

        job.tries += 1
        with _uninterrupted():  # the new process inherits it: Ctrl-C is handled by its parent
            try:
                if self._pool is None:
                    env = dict.fromkeys(_THREADS, "1")
                    self._pool = ProcessPoolExecutor(1, initializer=_prepare_worker, initargs=(os.getpid(),), env=env)
                self.future = self._pool.submit(_call, job.function, *job.args)
            except BrokenProcessPool as error:  # killed while it was idle
                self.future = Future()
                self.future.set_exception(error)
        self.job, self.affinity = job, job.affinity

    def collect(self) -> Job:
        """The finished job."""
        from joblib.externals.loky.process_executor import BrokenProcessPool, TerminatedWorkerError

        job, error = self.job, self.future.exception()
        assert job is not None
        self.job = None
        if isinstance(error, BrokenProcessPool):
            self.close(kill=True)
        if isinstance(error, TerminatedWorkerError):
            job.error = WorkerError(_exit_reason(str(error)))
        elif isinstance(error, BrokenProcessPool | pickle.PicklingError):
            trace = [line for line in str(error.__cause__ or error).splitlines() if line.strip('"')]
            job.error = pickle.PicklingError(trace[-1] if trace else str(error))
        elif error is not None:
            job.error = error
        else:
            job.value = self.future.result()
        return job

    def close(self, *, kill: bool) -> None:
        pool, self._pool, self.affinity = self._pool, None, None
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=kill)


class ProcessExecutor(Executor):
    """Runs jobs in processes of joblib's loky, with one thread each for torch and BLAS; started when first needed."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        try:
            import joblib.externals.loky  # noqa: F401
        except ModuleNotFoundError:
            raise ImportError("expected joblib for more than one worker; pip install 'fcal[cli]'") from None
        self._workers = [_Worker() for _ in range(workers)]

    @property
    def running(self) -> list[Job]:
        """Jobs that a process has."""
        return [worker.job for worker in self._workers if worker.job is not None]

    def start(self) -> None:
        """Give queued jobs to idle processes; new ones are started last."""
        for worker in sorted(self._workers, key=lambda worker: not worker.is_started):
            if worker.job is None and self._queue:
                elsewhere = {other.affinity for other in self._workers if other is not worker}
                worker.run(take_job(self._queue, worker.affinity, elsewhere))

    def completed(self, timeout: float | None = None) -> list[Job]:
        """Wait for a job; one whose process was killed goes to a new process and is reported if that is killed too."""
        self.start()
        busy = {worker.future: worker for worker in self._workers if worker.job is not None}
        if not busy:
            time.sleep(timeout or 0.0)
        finished = []
        for future in wait(busy, timeout, FIRST_COMPLETED).done:
            job = busy[future].collect()
            if isinstance(job.error, WorkerError) and job.tries < _TRIES:
                job.error = None
                bisect.insort_left(self._queue, job, key=_priority)
            else:
                finished.append(job)
        return finished

    def close(self, *, kill: bool) -> None:
        """End all processes; a second Ctrl-C does not leave any behind."""
        with _uninterrupted(), ThreadPoolExecutor(len(self._workers)) as threads:
            list(threads.map(lambda worker: worker.close(kill=kill), self._workers))


def _priority(job: Job) -> int:
    return job.priority


def take_job(queue: list[Job], affinity: str | None, elsewhere: Collection[str | None] = ()) -> Job:
    """Remove a job from a queue: one of the worker's affinity, or one of no other worker's, or the first.

    Args:
        queue: Queued jobs, at least one.
        affinity: That of the worker's last job.
        elsewhere: Affinities of the other workers.
    """
    near = [job for job in queue if affinity is not None and job.affinity == affinity]
    free = [job for job in queue if job.affinity is None or job.affinity not in elsewhere]
    job = (near or free or queue)[0]
    queue.remove(job)
    return job


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
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C for a moment; only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _prepare_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
        time.sleep(_LOOK)
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
