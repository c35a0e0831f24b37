"""What stands between callers and operations, beside threads and forks."""

import os
import signal
import threading

import pytest

import spillgrad as sg
from spillgrad.ops import intercept


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_begins_to_intercept_may_do_so_too():
    done, stop = threading.Event(), threading.Event()
    x = sg.ones(1)

    def work():
        while not stop.is_set():
            with sg.autocast("cpu", dtype=sg.bfloat16):
                done.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert done.wait(60)
    codes = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            ended = False
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(5)  # what hangs must die
                with intercept.intercept(lambda operation, arguments: operation(*arguments)):
                    ended = (x + 1).tolist() == [2.0]
            finally:
                os._exit(0 if ended else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    stop.set()
    thread.join()
    assert codes == [0] * len(codes)
