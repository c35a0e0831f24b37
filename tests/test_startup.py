"""`import spillgrad` is quick because of what it does not load."""

import os
import subprocess
import sys

import pytest


def run(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    ).stdout


@pytest.mark.parametrize(
    "module", ["numba", "numba.cuda", "cuda", "h5py", "rich", "typer", "torch", "paddle", "matplotlib", "scipy"]
)
def test_import_does_not_load(module: str):
    assert run(f"import sys, spillgrad; print({module!r} in sys.modules)") == "False\n"


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("torch", "torch"), ("paddle", "paddlepaddle"), ("transformers", '"transformers[torch]"'),
        ("lightning", "lightning"),
    ],
)  # fmt: skip
def test_a_module_for_a_package_that_is_not_there_names_it_and_the_command_that_installs_it(package: str, command: str):
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"  # as if it were not installed
        "import spillgrad, spillgrad.interop\n"
        f"try: import spillgrad.interop.{package}\n"
        "except ModuleNotFoundError as error: print(type(error).__name__, error.name, error)"
    )
    message = f"spillgrad.interop.{package}: got no package {package}; pip install {command}"
    assert run(program) == f"MissingPackageError {package} {message}\n"


def test_import_does_not_load_what_looks_at_runs():
    program = "import sys, spillgrad; print([name for name in sys.modules if 'spillgrad.inspection' in name])"
    assert run(program) == "[]\n"


def test_import_does_not_load_what_only_other_libraries_ask_for():
    interop = tuple(f"spillgrad.interop.{name}" for name in ("numpy.", "torch", "paddle", "einops"))
    theirs = ("spillgrad.array_api", *interop, "einops", "opt_einsum")
    assert run(f"import sys, spillgrad; print([n for n in sys.modules if n.startswith({theirs})])") == "[]\n"


def test_import_does_not_load_rooms_that_few_programs_use():
    rooms = ("spillgrad.distributions", "spillgrad.func", "spillgrad.sparse")
    assert run(f"import sys, spillgrad; print([n for n in sys.modules if n.startswith({rooms})])") == "[]\n"


def test_import_neither_compiles_nor_looks_for_compiled_kernels():
    program = (
        "import spillgrad; from spillgrad_kernels.jit import cache; from spillgrad_kernels.jit.compile import counts;"
        "print(counts.compiled, counts.loaded, cache.version.cache_info().currsize)"
    )
    assert run(program) == "0 0 0\n"


def test_threads_that_call_the_first_kernels_together_all_wait_for_numba():
    program = (
        "import sys, threading, spillgrad as sg; start = threading.Barrier(4); sums = [];"
        "work = lambda: (start.wait(), sums.append((sg.ones(9) + sg.ones(9)).sum().item()));"
        "threads = [threading.Thread(target=work) for _ in range(4)];"
        "print('numba' in sys.modules); [t.start() for t in threads]; [t.join() for t in threads]; print(sums)"
    )
    assert run(program) == "False\n[18.0, 18.0, 18.0, 18.0]\n"


def test_an_interrupt_while_numba_is_loaded_leaves_what_waits_waiting():
    program = (
        "from spillgrad_kernels.jit import compile\n"
        "attempts = iter([KeyboardInterrupt, None])\n"
        "def make(compiler):\n"
        "    error = next(attempts)\n"
        "    if error: raise error\n"
        "    return 'made'\n"
        "first, then = compile.Deferred(make), compile.Deferred(lambda compiler: 'then')\n"
        "try: then.made\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "print(first.made, then.made)"
    )
    assert run(program) == "interrupted\nmade then\n"


def test_a_fork_waits_until_numba_is_loaded():
    program = (
        "import os, threading, time\n"
        "from spillgrad_kernels.jit import compile\n"
        "compile.Deferred(lambda compiler: (started.set(), time.sleep(0.3)))\n"
        "started = threading.Event()\n"
        "threading.Thread(target=compile.load).start()\n"
        "started.wait()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    compile.load()\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert run(program) == "7\n"


def test_hdf5_is_loaded_with_the_first_store(tmp_path):
    program = (
        "import sys; from spillgrad.storage import DiskStore; print('h5py' in sys.modules);"
        f"store = DiskStore({str(tmp_path)!r}, ram_budget=0); print('h5py' in sys.modules); store.close()"
    )
    assert run(program) == "False\nTrue\n"


def test_hdf5_stays_whole_until_every_store_is_closed(tmp_path):
    program = (
        "import atexit; registered = []; register = atexit.register;"
        "atexit.register = lambda function: registered.append(function) or register(function);"
        "from spillgrad.storage import DiskStore;"
        f"store = DiskStore({str(tmp_path)!r}, ram_budget=0); store.close();"
        "print(*(f.__module__.split('.')[-1] for f in registered if f.__module__.startswith(('h5py', 'spillgrad.'))))"
    )
    assert run(program) == "_conv open_segments lifecycle\n"  # run from the last to the first
