"""The locks of stores, which come and go with them."""

import subprocess
import sys

# Locks die in the middle of the search for one that this thread has: the garbage collector runs there, as up to Python
# 3.11 it does in the middle of C functions too.
_COLLECTED = """
import gc
from spillgrad.storage.threads.store_lock import StoreLock, is_interrupted

class Garbage:
    def __init__(self):
        self.itself, self.lock = self, StoreLock()

for _ in range(50):
    gc.disable()
    for _ in range(40):
        Garbage()
    gc.set_threshold(gc.get_count()[0] + 1)
    gc.enable()
    assert not is_interrupted()
    gc.disable()
    gc.collect()
"""


def test_locks_may_die_while_one_is_looked_for():
    done = subprocess.run([sys.executable, "-c", _COLLECTED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
