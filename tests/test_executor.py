"""Jobs in this process and in others: order, failures, killed workers."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fcal._executor import Executor, Job, WorkerError, interrupts_deferred, take_job


def killed_once(folder):
    """Kill the worker, but not on the second try."""
    mark = Path(folder) / "killed"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def slow(value):
    time.sleep(0.3)
    return value


@pytest.mark.parametrize("workers", [1, 2])
def test_results_and_errors_come_back_with_their_jobs(workers):
    with Executor(workers) as pool:
        powers = {pool.submit(pow, 2, power): 2**power for power in range(5)}
        bad = pool.submit(divmod, 1, 0)
        finished = list(pool.as_completed())
    assert {*finished} == {*powers, bad}
    assert all(job.result() == power for job, power in powers.items())
    with pytest.raises(ZeroDivisionError):
        bad.result()


def test_function_that_nobody_can_import_is_sent_by_value():
    offset = 3
    with Executor(2) as pool:
        jobs = [pool.submit(lambda x: (os.getpid(), x + offset), number) for number in range(2)]
        list(pool.as_completed())
    assert [job.result()[1] for job in jobs] == [3, 4]
    assert os.getpid() not in {job.result()[0] for job in jobs}


def test_job_whose_worker_was_killed_is_tried_again_in_a_new_process(tmp_path):
    with Executor(2) as pool:
        again, other = pool.submit(killed_once, str(tmp_path)), pool.submit(slow, 7)
        list(pool.as_completed())
    assert again.result() != os.getpid()
    assert again.tries == 2
    assert (other.result(), other.tries) == (7, 1)  # the killed process takes no other job with it


def test_job_that_kills_every_worker_fails_and_the_others_go_on():
    with Executor(2) as pool:
        bad, good = pool.submit(killed), [pool.submit(slow, number) for number in range(3)]
        list(pool.as_completed())
    with pytest.raises(WorkerError, match=r"^its process was ended by signal 9 \(SIGKILL; out of memory\?\)$"):
        bad.result()
    assert bad.tries == 2
    assert [job.result() for job in good] == [0, 1, 2]


def test_idle_worker_that_was_killed_is_replaced():
    with Executor(2) as pool:
        first = pool.submit(os.getpid)
        list(pool.as_completed())
        os.kill(first.result(), signal.SIGKILL)
        time.sleep(0.5)
        second = pool.submit(os.getpid)
        list(pool.as_completed())
    assert second.result() not in (first.result(), os.getpid())


def test_what_cannot_be_pickled_is_an_error_of_its_job():
    with Executor(2) as pool:
        bad, good = pool.submit(len, threading.Lock()), pool.submit(len, "abc")
        list(pool.as_completed())
    assert good.result() == 3
    with pytest.raises(Exception, match="cannot pickle '_thread.lock' object"):
        bad.result()


def test_processes_end_with_the_block():
    with Executor(2) as pool:
        pids = [pool.submit(os.getpid) for _ in range(2)]
        list(pool.as_completed())
    for job in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(job.result(), 0)


def test_exception_kills_the_workers_at_once():
    def interrupted():
        with Executor(2) as pool:
            pool.submit(time.sleep, 60)
            pool.start()
            raise KeyError

    start = time.monotonic()
    with pytest.raises(KeyError):
        interrupted()
    assert time.monotonic() - start < 10


def test_jobs_run_by_priority_and_then_in_order():
    with Executor(1) as pool:
        for priority, name in ((2, "c"), (1, "a"), (2, "d"), (1, "b")):
            pool.submit(str, name, priority=priority)
        assert [job.result() for job in pool.as_completed()] == ["a", "b", "c", "d"]


def test_worker_prefers_its_own_data_and_leaves_the_data_of_others():
    jobs = [Job(print, (), affinity) for affinity in "abcabc"]
    queue = list(jobs)
    assert take_job(queue, None) is jobs[0]
    assert take_job(queue, None, {"a"}) is jobs[1]
    assert take_job(queue, "a", {"b"}) is jobs[3]
    assert take_job(queue, None, {"a", "b"}) is jobs[2]
    assert take_job(queue, None, {"a", "b", "c"}) is jobs[4]


@pytest.mark.parametrize(
    ("workers", "error"), [(0, ValueError), (257, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_bad_number_of_workers_is_refused(workers, error):
    with pytest.raises(error, match="expected `workers` "):
        Executor(workers)


def test_processes_without_joblib_name_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "joblib.externals.loky", None)
    with pytest.raises(ImportError, match=r"^expected joblib for more than one worker; pip install 'fcal\[cli\]'$"):
        Executor(2)
    with Executor(1) as pool:
        job = pool.submit(len, "abc")
        assert [job.result() for job in pool.as_completed()] == [3]
    assert job.result() == 3


QUIET = """
from heavy import work
from fcal._executor import Executor

if __name__ == "__main__":
    with Executor(workers=2) as pool:
        jobs = [pool.submit(work) for _ in range(2)]
        list(pool.as_completed())
"""


def test_workers_end_without_a_word(tmp_path):
    """Also those that import extension modules, which report what they cannot free."""
    (tmp_path / "heavy.py").write_text("import torch._dynamo\n\ndef work():\n    pass\n", encoding="utf-8")
    (tmp_path / "quiet.py").write_text(QUIET, encoding="utf-8")
    done = subprocess.run([sys.executable, tmp_path / "quiet.py"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_job_that_is_interrupted_is_not_run_again():
    def interrupted():
        raise KeyboardInterrupt

    pool = Executor(workers=1)
    pool.submit(interrupted)
    after = pool.submit(int, "7")
    with pytest.raises(KeyboardInterrupt):
        pool.completed()
    assert pool.running == []
    assert [job.result() for job in pool.as_completed()] == [after.result()] == [7]


def press_ctrl_c_and_wait(pressed: list[int]) -> None:
    pressed.append(1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    pressed.append(2)


@pytest.mark.parametrize("thread", [False, True])
def test_ctrl_c_while_a_process_starts_is_not_lost(thread):
    """Pressed in the block, it is raised at its end; also if another thread is what the kernel chooses."""
    done: list[int] = []

    def start() -> None:
        with interrupts_deferred():
            if thread:
                other = threading.Thread(target=press_ctrl_c_and_wait, args=(done,))
                other.start()
                other.join()
            else:
                press_ctrl_c_and_wait(done)
            done.append(3)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == [1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_process_that_starts_meanwhile_gets_no_ctrl_c():
    with interrupts_deferred():
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
        sleeper.send_signal(signal.SIGINT)
    assert sleeper.wait(20) == 0
