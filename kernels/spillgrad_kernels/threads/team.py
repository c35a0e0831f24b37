"""A team of threads that share one kernel launch at a time. Handing a launch over takes about a microsecond.

The threads are Python threads, but they stay in compiled code, without the GIL. An idle thread spins for a moment,
then yields for another, before it sleeps, because the next launch of a training step comes soon. Threads share only a
block of int64 words, which they change by atomic operations. `team` below is the address of these words.

A launch runs in the calling thread alone if the team is busy with another thread's launch, or in a forked child.
"""

import ctypes
import inspect
import threading
from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.jit.by_address import code_address, emit_call, integers
from spillgrad_kernels.jit.compile import c_function, cgutils, emitted, intrinsic, jit, types
from spillgrad_kernels.threads.atomics import (
    WORD_BYTES,
    exchange,
    fetch_add,
    load,
    pause,
    store,
    wait_for,
    word_pointer,
    yield_core,
)

# Indices of the team's words. Words that different threads write lie in different cache lines of 8 words.
_BUSY = 0  # 1 while a launch runs
_JOB = 8  # grows by 2 with each launch; odd while shares are handed out
_ENTRY, _OPERANDS, _COUNT, _LENGTH, _HELPERS = 9, 10, 11, 12, 13
_NEXT = 16  # the first element of the next share
_ACTIVE = 24  # minus the number of helpers inside the launch
_SLEEPERS, _STOP, _FAILED = 32, 33, 34
_RUN = 40  # the address of `_run`, so that launchers do not contain the code of `_run`
_MUTEX, _CONDITION = 48, 64  # a pthread_mutex_t, then a pthread_cond_t
_WORDS = 80

# How often an idle thread reads the job counter before it sleeps. This takes about 0.3 ms, longer than Python takes
# between two kernels.
_SPINS = 10_000
# How often it then leaves its core to other threads that wait for one, which takes about 1 ms where none does. Python
# takes as long between kernels that read more than the caches hold, such as those that generate a token; to wake a
# thread takes 0.3 ms on a virtual machine.
_YIELDS = 2_000

_WORD = ir.IntType(64)
_RUN_PARAMETERS = 6

_mutex_lock = c_function("pthread_mutex_lock", 1)
_mutex_unlock = c_function("pthread_mutex_unlock", 1)
_condition_wait = c_function("pthread_cond_wait", 2)
_condition_broadcast = c_function("pthread_cond_broadcast", 1)


def _function_type(parameters: int) -> Any:
    return ir.FunctionType(_WORD, [_WORD] * parameters)


@emitted(lambda entry, operands, start, stop, worker: types.int64(*[types.int64] * 5))
def _call(builder: Any, entry: Any, operands: Any, start: Any, stop: Any, worker: Any) -> Any:
    """Call the native function at the address `entry`; return its status, 0 for success."""
    return builder.call(builder.inttoptr(entry, _function_type(4).as_pointer()), [operands, start, stop, worker])


@jit
def _work(team: int, worker: int) -> None:
    """Compute shares of the current launch until no share is left."""
    entry, operands, count, length = load(team, _ENTRY), load(team, _OPERANDS), load(team, _COUNT), load(team, _LENGTH)
    start = fetch_add(team, _NEXT, length)
    while start < count:
        if _call(entry, operands, start, min(start + length, count), worker) != 0:
            store(team, _FAILED, 1)
        start = fetch_add(team, _NEXT, length)


@jit
def _sleep(team: int, job: int) -> None:
    """Wait until the job counter is no longer `job`, or the team stops.

    The next job may have ended when the thread wakes. `_serve` then waits for the job after it.
    """
    fetch_add(team, _SLEEPERS, 1)  # before reading the job: a launcher changes it, then reads the sleepers
    _mutex_lock(team + _MUTEX * WORD_BYTES)
    while load(team, _STOP) == 0 and load(team, _JOB) == job:
        _condition_wait(team + _CONDITION * WORD_BYTES, team + _MUTEX * WORD_BYTES)
    _mutex_unlock(team + _MUTEX * WORD_BYTES)
    fetch_add(team, _SLEEPERS, -1)


@jit
def _wake(team: int) -> None:
    _mutex_lock(team + _MUTEX * WORD_BYTES)
    _condition_broadcast(team + _CONDITION * WORD_BYTES)
    _mutex_unlock(team + _MUTEX * WORD_BYTES)


@jit
def _serve(team: int, worker: int, spins: int) -> None:
    """Compute shares of each launch, as thread `worker` (from 1), until the team stops.

    Sleep after `spins` pauses, then `_YIELDS` more looks.
    """
    done = 0
    idle = 0
    while load(team, _STOP) == 0:
        job = load(team, _JOB)
        if job % 2 == 0 or job == done:
            idle += 1
            if idle < spins:
                pause()
            elif idle < spins + _YIELDS:
                yield_core()
            else:
                _sleep(team, job)
                idle = 0
            continue
        # Count this thread in, then read the job again: a launcher closes its job before it waits for counted helpers.
        fetch_add(team, _ACTIVE, -1)
        if load(team, _JOB) == job and worker <= load(team, _HELPERS):
            _work(team, worker)
        fetch_add(team, _ACTIVE, 1)
        done = job
        idle = 0


@jit
def _run(team: int, entry: int, operands: int, count: int, length: int, helpers: int) -> int:
    """Run a launch over [0, count) in shares of `length`, on the calling thread and `helpers` more threads.

    `entry` is the address of the native function, `operands` the address of its operands. Returns 0, or another number
    if a share failed.
    """
    if helpers == 0 or exchange(team, _BUSY, 1) == 1:
        return _call(entry, operands, 0, count, 0)  # type: ignore[no-any-return]
    store(team, _ENTRY, entry)
    store(team, _OPERANDS, operands)
    store(team, _COUNT, count)
    store(team, _LENGTH, length)
    store(team, _HELPERS, helpers)
    store(team, _NEXT, 0)
    store(team, _FAILED, 0)
    fetch_add(team, _JOB, 1)
    if load(team, _SLEEPERS) > 0:
        _wake(team)
    _work(team, 0)
    fetch_add(team, _JOB, 1)
    wait_for(team, _ACTIVE, 0)
    failed = load(team, _FAILED)
    store(team, _BUSY, 0)
    return failed


def _uncounted(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """Return the LLVM tuple `values` without reference counts of its arrays: threads would contend for the counts."""
    for i, kind in enumerate(kinds.types):
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, builder.extract_value(values, i))
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            values = builder.insert_value(values, array._getvalue(), i)
    return values


def launching(with_worker: bool) -> Any:
    """Return the function launch(team, count, length, helpers, operands), which compiled code calls.

    It runs a kernel, `kernel(start, stop, *operands)` or, if `with_worker`, `kernel(start, stop, worker, *operands)`,
    over [0, count). `worker` is the number of the thread; the calling thread is 0. The caller's machine code does not
    contain the kernel's: each place of a call has a word in memory for the address of the kernel's machine code, for
    these types of operands. Until the word is set, nothing runs, and the result is the word's address. Otherwise, the
    result is 0, or 1 if a share failed.
    """

    @intrinsic
    def launch(typing_context: Any, team: Any, count: Any, length: Any, helpers: Any, operands: Any) -> Any:
        kinds = kernel_types(operands.types, with_worker)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            team, count, length, helpers, values = arguments
            slot = cgutils.alloca_once_value(builder, _uncounted(context, builder, operands, values))
            word = ir.GlobalVariable(builder.module, _WORD, builder.module.get_unique_name("code"))
            word.linkage, word.initializer = "internal", _WORD(0)
            entry = ir.Function(builder.module, _function_type(4), builder.module.get_unique_name("entry"))
            entry.linkage = "internal"
            inside = ir.IRBuilder(entry.append_basic_block())
            address, start, stop, worker = entry.args
            loaded = inside.load(inside.inttoptr(address, slot.type))
            given = [start, stop, worker] if with_worker else [start, stop]
            given += [inside.extract_value(loaded, i) for i in range(len(operands.types))]
            has_failed, _ = emit_call(context, inside, inside.load(word), types.none, kinds, given)
            inside.ret(inside.zext(has_failed, _WORD))

            outcome = cgutils.alloca_once_value(builder, builder.ptrtoint(word, _WORD))
            with cgutils.if_likely(builder, builder.icmp_signed("!=", builder.load(word), _WORD(0))):
                run = builder.load(word_pointer(builder, team, _WORD(_RUN)))
                words = [team, builder.ptrtoint(entry, _WORD), builder.ptrtoint(slot, _WORD), count, length, helpers]
                _, failures = emit_call(context, builder, run, types.int64, integers(_RUN_PARAMETERS), words)
                has_failed = builder.icmp_signed("!=", builder.load(failures), _WORD(0))
                builder.store(builder.zext(has_failed, _WORD), outcome)
            return builder.load(outcome)

        return types.int64(types.int64, types.int64, types.int64, types.int64, operands), codegen

    return launch


def kernel_types(operands: Any, with_worker: bool) -> tuple[Any, ...]:
    """Return the types of a kernel's arguments, given the types of its operands."""
    return (*integers(3 if with_worker else 2), *operands)


def takes_worker(kernel: Any) -> bool:
    """Return whether a kernel's third parameter is the number of its thread."""
    return list(inspect.signature(getattr(kernel, "py_func", kernel)).parameters)[2:3] == ["worker"]


class Team:
    """The threads of one process. `address` is the address of the team's words, which `launch` takes."""

    def __init__(self) -> None:
        self._words = np.zeros(_WORDS, np.int64)
        self.address = self._words.ctypes.data
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        libc = ctypes.CDLL(None)
        libc.pthread_mutex_init(ctypes.c_void_p(self.address + _MUTEX * WORD_BYTES), None)
        libc.pthread_cond_init(ctypes.c_void_p(self.address + _CONDITION * WORD_BYTES), None)

    def grow(self, helpers: int) -> None:
        """Start threads until there are at least `helpers` threads beside the calling thread."""
        with self._lock:
            self._words[_RUN] = code_address(_run, integers(_RUN_PARAMETERS))
            while len(self._threads) < helpers:
                worker = len(self._threads) + 1
                thread = threading.Thread(
                    target=_serve, args=(self.address, worker, _SPINS), name=f"spillgrad-kernel-{worker}", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def stop(self) -> None:
        """End the threads. Call this before the team's words, and the threads' machine code, are freed."""
        with self._lock:
            self._words[_STOP] = 1
            if self._threads:
                _wake(self.address)
            for thread in self._threads:
                thread.join()
