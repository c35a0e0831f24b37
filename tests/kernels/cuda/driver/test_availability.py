"""What is missing where there is no CUDA device, each really missing, in a process of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "import spillgrad as sg; print(sg.cuda.missing()); print(sg.cuda.is_available(), sg.cuda.device_count())"
NO_EXTRA = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
"""
needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="the pretended driver is written in C")


def run(program: str, **variables: str) -> list[str]:
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_ENABLE_CUDASIM": "0", **variables,
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A function that puts a driver with this C code where the loader finds it first."""

    def put(source: str | Path) -> str:
        folder = tmp_path_factory.mktemp("driver")
        if isinstance(source, str):
            (folder / "driver.c").write_text(source)
            source = folder / "driver.c"
        command = ["cc", "-shared", "-fPIC", "-pthread", "-o", folder / "libcuda.so.1", source, "-ldl"]
        subprocess.run(command, check=True)
        return str(folder)

    return put


@pytest.fixture(scope="module")
def pretended(library):
    return library(Path(__file__).parent / "pretended_libcuda.c")


@pytest.mark.parametrize("names, module", [({"numba_cuda"}, "numba_cuda"), ({"cuda"}, "cuda.bindings.driver")])
@pytest.mark.parametrize("simulated", ["0", "1"])
def test_without_the_extra_it_is_named(names, module, simulated):
    lines = run(NO_EXTRA.format(names=names) + PROGRAM, NUMBA_ENABLE_CUDASIM=simulated)
    if simulated == "1" and module != "numba_cuda":  # which the simulator does without
        assert lines == ["None", "True 1"]
    else:
        assert lines == [
            f"the extra 'cuda' is missing: there is no Python module {module}; install it: pip install "
            "'spillgrad[cuda]'",
            "False 0",
        ]


@needs_a_compiler
def test_without_a_driver_it_is_said_why(library):
    says, none = run(PROGRAM, LD_LIBRARY_PATH=library("int nothing;"))
    assert says.startswith("NVIDIA's driver is missing: ") and "undefined symbol: cuInit" in says
    assert "nvidia-smi" in says and none == "False 0"


def test_without_any_library_of_the_driver_it_is_said_why():
    program = """
import ctypes
class Library(ctypes.CDLL):
    def __init__(self, name, *options, **others):
        super().__init__("libnone.so.1" if name == "libcuda.so.1" else name, *options, **others)
ctypes.CDLL = Library
"""
    assert run(program + PROGRAM)[0].startswith("NVIDIA's driver is missing: libnone.so.1: cannot open shared object")


@needs_a_compiler
@pytest.mark.parametrize("variables", [{"PRETEND_INIT": "100"}, {"PRETEND_DEVICES": "0"}])
def test_without_a_gpu_it_is_said_where_to_look(pretended, variables):
    lines = run(PROGRAM, LD_LIBRARY_PATH=pretended, CUDA_VISIBLE_DEVICES="7", **variables)
    assert lines == [
        "there is no GPU: NVIDIA's driver is installed, and finds none; see what nvidia-smi and CUDA_VISIBLE_DEVICES "
        "(7) say, or compute on 'cpu'",
        "False 0",
    ]


@needs_a_compiler
def test_a_gpu_that_is_too_old_is_told_from_none(pretended):
    lines = run(PROGRAM, LD_LIBRARY_PATH=pretended, PRETEND_CAPABILITY="61")
    assert lines == [
        "there is no GPU that will do: the first has compute capability 6.1, and 7.5 is the least; choose another by "
        "CUDA_VISIBLE_DEVICES, or compute on 'cpu'",
        "False 0",
    ]


@needs_a_compiler
def test_a_driver_that_does_not_work_says_what_it_says(pretended):
    lines = run(PROGRAM, LD_LIBRARY_PATH=pretended, PRETEND_INIT="803")
    assert lines == [
        "NVIDIA's driver does not work: a pretended error (error 803); see whether nvidia-smi runs, or reinstall it",
        "False 0",
    ]


@needs_a_compiler
@pytest.mark.parametrize("version, advice", [
    ("12040", "12.4, and the installed compiler makes code of CUDA 13; update the driver, or install an older "
     "compiler: pip install 'numba-cuda[cu12]'"),
    ("11080", "11.8, and the installed compiler makes code of CUDA 13; update the driver"),
])  # fmt: skip
def test_a_driver_that_is_too_old_says_for_what(pretended, version, advice):
    program = """
from importlib import metadata
found = metadata.version
metadata.version = lambda name: "13.0.1" if name == "nvidia-nvjitlink" else found(name)
"""
    lines = run(program + PROGRAM, LD_LIBRARY_PATH=pretended, PRETEND_VERSION=version)
    assert lines == [f"NVIDIA's driver is too old: it is for CUDA {advice}", "False 0"]


@needs_a_compiler
def test_with_all_three_there_is_a_device(pretended):
    assert run(PROGRAM, LD_LIBRARY_PATH=pretended) == ["None", "True 1"]


def test_the_simulator_is_a_device():
    assert run(PROGRAM, NUMBA_ENABLE_CUDASIM="1") == ["None", "True 1"]


def test_who_asks_what_a_missing_device_is_called_hears_that_it_is_missing():
    program = """
import spillgrad as sg
try: sg.cuda.get_device_name()
except RuntimeError as error: print(type(error).__name__, error)
print(sg.cuda.memory_stats()["allocated_bytes.all.peak"], sg.cuda.max_memory_allocated(), sg.cuda.memory_reserved())
print(sg.cuda.synchronize(), sg.cuda.empty_cache(), sg.cuda.reset_peak_memory_stats(), sg.cuda.is_initialized())
print(sg.cuda.is_bf16_supported())
"""
    lines = run(NO_EXTRA.format(names={"numba_cuda"}) + program)
    assert lines[0].startswith("DeviceError cuda: the extra 'cuda' is missing")
    assert lines[1:] == ["0 0 0", "None None None False", "False"]
