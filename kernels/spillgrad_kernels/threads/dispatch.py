"""Run one kernel over a range, on one thread or several, depending on the amount of work.

A kernel is a compiled function `kernel(start, stop, *operands)`. It computes a share of a range, from `start` to below
`stop`, without the GIL. The threads of a team take one share after the other, so that a core busy with I/O does not
delay the others. Kernels need no parallel compilation, no threading layer and no care after a fork.
"""

import atexit
import ctypes
import inspect
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from spillgrad_kernels.jit.by_address import code_address, compiled_for, integers
from spillgrad_kernels.jit.compile import DISABLE_JIT, jit, types
from spillgrad_kernels.threads.team import Team, kernel_types, launching, takes_worker

Kernel = Any  # the result of `compile.jit`

# The number of elements that pays for another thread: 3 to 6 microseconds of work.
GRAIN_ELEMENTS = 1 << 13
# Shares per thread. With several shares each, one slow share does not leave the other cores idle.
_SHARES_PER_THREAD = 4

_num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_num_threads(count: int) -> None:
    """Set how many threads large kernels use.

    Parameters
    ----------
    count : int
        Number of threads, the caller's included; at least 1.

    Raises
    ------
    ValueError
        If `count` is less than 1.
    """
    global _num_threads
    if count < 1:
        raise ValueError(f"set_num_threads: got {count}; at least 1 thread is needed")
    _num_threads = int(count)


def get_num_threads() -> int:
    """Return how many threads large kernels use.

    Returns
    -------
    int
        Number of threads, the caller's included; at first, the number of cores that the process may use.
    """
    return _num_threads


_team = Team()
_team_size = 0


class Launches:
    """Who is told of each run of a kernel: a function of its name and its times in ns, or None for nobody."""

    observer: Callable[[str, int, int], None] | None = None


launches = Launches()


def observe_launches(observer: Callable[[str, int, int], None] | None) -> None:
    """Call `observer` after each run of a kernel, with its name and its times in ns (`time.perf_counter_ns`).

    None ends that.
    """
    launches.observer = observer


def run_observed(code: Callable[..., Any], *arguments: Any) -> None:
    """Run the compiled `code` of a kernel, which its caller runs without `parallel_for`, and tell the observer."""
    observer = launches.observer
    began_ns = time.perf_counter_ns()
    code(*arguments)
    if observer is not None:
        name = code.__name__ if "." in code.__name__ else f"{code.__module__}.{code.__name__}"
        observer(".".join(name.split(".")[-2:]), began_ns, time.perf_counter_ns())


def _forget_team() -> None:
    """Give a forked child a new team: none of the parent's threads run in the child."""
    global _team, _team_size
    _team = Team()
    _team_size = 0


os.register_at_fork(after_in_child=_forget_team)
atexit.register(lambda: _team.stop())


def _make_launcher(kernel: Kernel) -> Any:
    """Make and return `kernel.launcher(team, count, grain, threads, *operands)`, a compiled function that runs it.

    `team` is the address of the team's words. The result is that of `launch` (see `launching`). The source of the
    launcher is generated from the kernel's parameters. All threads get the same launcher.
    """
    names = list(inspect.signature(kernel.py_func).parameters)[3 if takes_worker(kernel) else 2 :]
    source = f"""
def launcher(team, count, grain, threads, {", ".join(names)}):
    threads = min(threads, (count + grain - 1) // grain)
    shares = threads * {_SHARES_PER_THREAD}
    return launch(team, count, max(grain, (count + shares - 1) // shares), threads - 1, ({", ".join(names)},))
"""
    name = f"{kernel.py_func.kernel_name}.launcher"
    namespace: dict[str, Any] = {"launch": _launching[takes_worker(kernel)], "__name__": __name__}
    exec(compile(source, f"<{name}>", "exec"), namespace)
    # Without a lock, which a fork could leave taken: `setdefault` is atomic.
    return kernel.__dict__.setdefault("launcher", jit(namespace["launcher"], name=name).made)


_launching = {with_worker: launching(with_worker) for with_worker in (False, True)}


def _link(kernel: Kernel, word: int, operands: Sequence[Any]) -> None:
    """Compile `kernel` for these operands, or load it, and set the launcher's word at address `word` to its address."""
    kinds = kernel_types([kernel.typeof_pyval(operand) for operand in operands], takes_worker(kernel))
    if compiled_for(kernel, kinds).signature.return_type != types.none:
        raise TypeError(f"kernel {kernel.py_func.kernel_name}: got a result; a kernel that threads share returns none")
    ctypes.c_int64.from_address(word).value = code_address(kernel, kinds)


def grain_of(elements: int) -> int:
    """Return how many units of work, of `elements` elements each, are enough to justify another thread."""
    return max(1, GRAIN_ELEMENTS // max(elements, 1))


def entry_point(kernel: Kernel, parameters: int) -> Kernel:
    """Return `kernel`, compiled for `parameters` int64 arguments, as a function without type checks (0.3 us)."""
    if DISABLE_JIT:
        return kernel
    return compiled_for(kernel, integers(parameters)).entry_point


def parallel_for(kernel: Kernel, count: int, grain: int, *operands: Any, most: int | None = None) -> None:
    """Call `kernel(start, stop, *operands)` for shares of [0, count), on up to min(get_num_threads(), most) threads.

    A share has at least `grain` elements, which is at least 1. Fewer elements do not justify another thread: handing
    work over takes about a microsecond, waking a sleeping thread 20. If the kernel's third parameter is named `worker`,
    it is the number of the thread that runs the share; the kernel finds the thread's scratch memory by this number.
    Results do not depend on the number of threads, because the same code computes each element.
    Raises MemoryError if a kernel could not allocate memory.
    """
    global _team_size
    if count <= 0:
        return
    if DISABLE_JIT:
        kernel(0, count, *((0,) if takes_worker(kernel) else ()), *operands)
        return
    threads = _num_threads if count > grain else 1
    if most is not None and threads > most:  # the number of threads may have grown since scratch memory was allocated
        threads = most
    if threads > _team_size:
        _team.grow(threads - 1)
        _team_size = threads
    launcher = kernel.launcher or _make_launcher(kernel)
    observer = launches.observer  # another thread may end the observation meanwhile
    began_ns = 0 if observer is None else time.perf_counter_ns()
    outcome = launcher(_team.address, count, grain, threads, *operands)
    if outcome > 1:  # the address of the word that lacks the kernel's
        _link(kernel, outcome, operands)
        outcome = launcher(_team.address, count, grain, threads, *operands)
    if observer is not None:
        observer(kernel.py_func.kernel_name, began_ns, time.perf_counter_ns())
    if outcome:
        raise MemoryError("kernel: got no memory for its scratch space; use a smaller batch")
