"""The same bits in every process and thread: under OpenMP's settings, in pools however they start, in threads that come
and go, and where the caller flushes denormals.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import digests
import pytest

PROGRAM = Path(digests.__file__)


@pytest.fixture(scope="module")
def want():
    return digests.digests()


def report_of(*arguments, **settings):
    """What the program of digests.py prints, in an environment without other settings of OpenMP's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("threads", [*range(1, 8), 64])
def test_numbers_of_threads(want, threads):
    report = report_of(OMP_NUM_THREADS=str(threads))
    assert report["threads"] == threads
    assert report["digests"] == want


SETTINGS = [
    {"OMP_DYNAMIC": "true", "OMP_NUM_THREADS": "7"},
    {"OMP_THREAD_LIMIT": "1"},
    {"OMP_THREAD_LIMIT": "2", "OMP_NUM_THREADS": "5"},
    {"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "2"},
    {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "3"},
    {"OMP_NESTED": "true", "OMP_NUM_THREADS": "3,2"},
    {"OMP_MAX_ACTIVE_LEVELS": "0", "OMP_NUM_THREADS": "3"},
    {"OMP_PROC_BIND": "close", "OMP_PLACES": "threads", "OMP_NUM_THREADS": "3"},
    {"OMP_SCHEDULE": "static,7", "OMP_STACKSIZE": "128k", "OMP_NUM_THREADS": "4"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ",".join(settings))
def test_settings_of_openmp(want, settings):
    assert report_of(**settings)["digests"] == want


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_a_pool(want, method):
    """The program itself compares its workers."""
    assert report_of(method, OMP_NUM_THREADS="3")["digests"] == want


def test_threads_that_come_and_go(want):
    for _ in range(12):
        with ThreadPoolExecutor(4) as executor:  # four new threads
            assert list(executor.map(digests.in_a_worker, range(4))) == [(os.getpid(), want)] * 4


RATIONED = """import resource, sys
import numpy as np
import gyrograd

random = np.random.default_rng(1)
dy = random.standard_normal((64, 64, 8, 64), dtype=np.float32)
table = random.standard_normal((1, 64, 1, 64), dtype=np.float32)
want = gyrograd.rotary_backward(dy, table, table, threads=1)
dx = np.zeros_like(dy)
pages = int(open("/proc/self/statm").read().split()[0])
limit = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + int(sys.argv[1]), limit[1]))
gyrograd.rotary_backward(dy, table, table, out=dx, threads=int(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_AS, limit)
assert (dx == want).all()
"""


@pytest.mark.parametrize("threads", [2, 8, 1000])
@pytest.mark.parametrize("mebibytes", [0, 1, 4, 9, 16, 40])
def test_threads_that_the_system_refuses(mebibytes, threads):
    """A thread takes 8 MiB of addresses for its stack, commonly; where there is no room, the others do its work."""
    done = subprocess.run(
        [sys.executable, "-c", RATIONED, str(mebibytes << 20), str(threads)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


COPIES = """import resource, sys
import numpy as np
import gyrograd

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

dy = eval(sys.argv[1])(np.ones((64, 32, 64, 256), np.float32))
table = np.ones((64, 1, 1, dy.shape[3]), np.float32)
dx = np.ones_like(dy)
before = peak()
gyrograd.rotary_backward(dy, table, table, out=dx)
gyrograd.rotary_backward(dy, table, table, dx, outputs=("dcos", "dsin"))
assert peak() - before < dy.nbytes / 4, peak() - before
"""
VIEWS = ["lambda a: a", "lambda a: a[..., ::2]", "lambda a: a.transpose(0, 2, 1, 3)", "lambda a: a[:, :, :, ::-1]"]


@pytest.mark.parametrize("view", VIEWS)
def test_inputs_are_not_copied(view):
    subprocess.run([sys.executable, "-c", COPIES, view], check=True, timeout=600)


FLUSHED = """import sys
import numpy as np, torch

def flushes():
    return not (np.full(4, 1e-40, np.float32) * np.float32(1)).any()

def tiny(*shape):
    return (np.random.default_rng(3).integers(1, 2**20, shape) / 2.0**148).astype(np.float32)

arrays = [tiny(*shape) for shape in ((9000, 8), (1, 8), (1, 8), (9000, 8))]
arrays[1] *= np.float32(2.0**127)
arrays[2] *= np.float32(2.0**127)
torch.set_flush_denormal(sys.argv[1] == "on")
before = flushes()
import gyrograd as gg
assert flushes() == before, "the import"
results = gg.rotary_backward(*arrays, threads=3)
assert flushes() == before, "the call"
torch.set_flush_denormal(False)
assert 0 < abs(results[0]).max() < 1e-38
print(before, *(result.tobytes().hex() for result in results))
"""


def test_flushed_denormals_of_the_caller():
    """Neither the import nor a call changes the setting, and the setting changes no bit."""
    printed = [
        subprocess.run([sys.executable, "-c", FLUSHED, setting], capture_output=True, text=True, check=True).stdout
        for setting in ("off", "on")
    ]
    settings, bits = zip(*(text.split(maxsplit=1) for text in printed), strict=True)
    assert settings == ("False", "True")
    assert bits[0] == bits[1]
