"""weir.torch beside a PyTorch that is made up (fake_torch/), on simulated devices.

Each test is a process of its own, because weir is installed for good.

Usage: weir_torch_test.py ROOT LIBRARY
"""
import base64
import glob
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zipfile

root, library = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
here = os.path.dirname(os.path.abspath(__file__))
package = os.path.join(root, "interop", "torch", "python")


def run(*command, code=None, path=(package, os.path.join(here, "fake_torch")), cwd=None, **environment):
    if code is not None:
        command = ("-c", textwrap.dedent(code), *command)
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=60, cwd=cwd,
        env={"PATH": os.environ["PATH"], "WEIR_DEVICES": "sim:1:1", "WEIR_TORCH_LIBRARY": library,
             "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1", **environment})


class Case(unittest.TestCase):
    def passes(self, code, *command, **how):
        done = run(*command, code=code, **how)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def fails(self, code, text, **how):
        done = run(code=code, **how)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(text, done.stderr.splitlines()[-1])


class Native(Case):
    """The library that is compiled against PyTorch's headers: how it is made. What it does needs the headers of one."""

    made_up = """
        import os, sys, types
        from weir.torch import _native
        folder = os.environ["WORK"]
        torch = types.SimpleNamespace(__file__=os.path.join(folder, "torch", "__init__.py"), _C=types.SimpleNamespace(),
                                      __version__=os.environ.get("RELEASE", "2.11.0+cu130"))
        _native._loaded = lambda name: os.path.join(folder, name)
        _native._cuda_headers = lambda torch: folder
        """

    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.work = kept.name
        headers = os.path.join(self.work, "torch", "include", "c10", "cuda")
        os.makedirs(headers)
        with open(os.path.join(headers, "CUDACachingAllocator.h"), "w", encoding="utf-8") as file:
            file.write("class CUDAAllocator : public DeviceAllocator {\n  virtual bool isEnabled() const = 0;\n};\n")
        self.compiler = os.path.join(self.work, "compiler")
        self.compiles_by("sleep 0.3\nwhile [ \"$1\" != -o ]; do shift; done\necho made > \"$2\"\n")
        self.environment = {"WORK": self.work, "WEIR_TORCH_CACHE": os.path.join(self.work, "cache"), "CXX": self.compiler}

    def compiles_by(self, script):
        with open(self.compiler, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\necho \"$@\" >> {self.work}/calls\n{script}")
        os.chmod(self.compiler, 0o755)

    def calls(self):
        with open(os.path.join(self.work, "calls"), encoding="utf-8") as file:
            return file.read().splitlines()

    def program(self, then):
        return textwrap.dedent(self.made_up) + textwrap.dedent(then)

    def test_is_compiled_once_for_a_release(self):
        code = self.program("print(_native.build(torch))")
        first, again = (self.passes(code, **self.environment).stdout for _ in range(2))
        self.assertEqual(first, again)
        self.assertEqual(len(self.calls()), 1)
        other = self.passes(code, RELEASE="2.10.0", **self.environment).stdout
        self.assertNotEqual(first, other)
        self.assertEqual(len(self.calls()), 2)

    def test_headers_say_what_is_compiled(self):
        self.passes(self.program("_native.build(torch)"), **self.environment)
        called = self.calls()[0]
        for flag in ("-DWEIR_HAS_DEVICE_ALLOCATOR", "-DWEIR_HAS_ENABLE", "-D_GLIBCXX_USE_CXX11_ABI=1"):
            self.assertIn(flag, called.split())
        self.assertNotIn("-DWEIR_HAS_SHARE_IPC", called)

    def test_two_processes_compile_it_once(self):
        code = self.program("print(_native.build(torch))")
        own = {"PATH": os.environ["PATH"], "PYTHONPATH": package, "PYTHONDONTWRITEBYTECODE": "1", **self.environment}
        all_of = [subprocess.Popen([sys.executable, "-c", code], env=own, stdout=subprocess.PIPE, text=True)
                  for _ in range(4)]
        paths = {one.communicate(timeout=60)[0] for one in all_of}
        self.assertEqual(len(paths), 1, paths)
        self.assertTrue(os.path.exists(paths.pop().strip()))
        self.assertEqual(len(self.calls()), 1)

    def test_a_failed_compilation_leaves_nothing(self):
        self.compiles_by("echo 'allocator.cpp:7: error: no such member' >&2\nexit 1\n")
        self.fails(self.program("_native.build(torch)"), "error: no such member", **self.environment)
        self.compiles_by("while [ \"$1\" != -o ]; do shift; done\necho made > \"$2\"\n")
        self.passes(self.program("_native.build(torch)"), **self.environment)

    def test_other_releases_are_refused_by_number(self):
        self.fails(self.program("_native.build(torch)"), "is none of 2.4, 2.7", RELEASE="3.0.0", **self.environment)
        self.fails(self.program("_native.build(torch)"), "is none of 2.4, 2.7", RELEASE="2.6.0", **self.environment)

    def test_other_headers_of_one_release_are_compiled_anew(self):
        code = self.program("print(_native.build(torch))")
        first = self.passes(code, **self.environment).stdout
        with open(os.path.join(self.work, "torch", "include", "c10", "cuda", "CUDACachingAllocator.h"), "a") as file:
            file.write("// another order of members\n")
        self.assertNotEqual(first, self.passes(code, **self.environment).stdout)

    def test_a_folder_that_others_write_is_refused(self):
        os.makedirs(self.environment["WEIR_TORCH_CACHE"], mode=0o777)
        os.chmod(self.environment["WEIR_TORCH_CACHE"], 0o777)
        self.fails(self.program("_native.build(torch)"), "others may write it", **self.environment)

    def test_a_folder_that_cannot_be_made_is_named(self):
        self.environment["WEIR_TORCH_CACHE"] = os.path.join(self.compiler, "below a file")
        self.fails(self.program("_native.build(torch)"), "Name a folder in WEIR_TORCH_CACHE", **self.environment)

    def test_a_compiler_may_have_arguments(self):
        self.environment["CXX"] = f"{self.compiler} -march=native"
        self.passes(self.program("_native.build(torch)"), **self.environment)
        self.assertTrue(self.calls()[0].startswith("-march=native -std=c++17"), self.calls())

    def test_plug_serves_where_it_cannot_be_compiled(self):
        done = self.passes("""
            import torch, weir.torch
            weir.torch.install()
            assert weir.torch.is_installed() and not weir.torch.is_native()
            torch.UntypedStorage(100)
            """, WEIR_TORCH_NATIVE="1", WEIR_TORCH_CACHE=os.path.join(self.work, "cache"))
        self.assertIn("class CUDAAllocator in", done.stderr)
        self.assertEqual(done.stderr.count("RefusedWarning"), 1, done.stderr)


class Install(Case):
    def test_before_first_use(self):
        self.passes("""
            import torch, weir.torch
            assert not weir.torch.is_installed()
            weir.torch.install()
            weir.torch.install()
            assert weir.torch.is_installed()
            hooks = torch._Allocator.current.hooks
            assert len(hooks) == 8 and all(hooks.values()) and len(set(hooks.values())) == 8, hooks
        """)

    def test_after_first_use_says_so(self):
        self.fails("import torch, weir.torch; torch.cuda.init(); weir.torch.install()",
                   "comes too late: PyTorch has used CUDA already")

    # An extension may use the allocator without torch.cuda's knowledge.
    def test_after_another_allocator_says_so(self):
        self.fails("""
            import torch, weir.torch
            torch._Allocator.current = object()
            weir.torch.install()
        """, "Can't swap an already initialized allocator")

    def test_without_cuda_says_so(self):
        self.fails("import torch, weir.torch; weir.torch.install()", "is not built for CUDA", FAKE_TORCH_CUDA="none")

    # A runtime that install() made could not serve a forked child.
    def test_child_that_is_forked_later_works(self):
        self.passes("""
            import os, torch, weir.torch
            weir.torch.install()
            child = os.fork()
            s = torch.UntypedStorage(1 << 20)
            assert torch.cuda.memory_allocated() == 1 << 20, torch.cuda.memory_allocated()
            assert child == 0 or os.waitpid(child, 0)[1] == 0
        """)

    def test_without_library_says_so(self):
        self.fails("import torch, weir.torch; weir.torch.install()", "no libweir_torch.so at /nowhere",
                   WEIR_TORCH_LIBRARY="/nowhere")

    def test_settings_of_pytorchs_allocator_are_told(self):
        done = self.passes("import torch, weir.torch; weir.torch.install()",
                           PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        self.assertIn("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True has no effect on weir", done.stderr)


begin = "import torch, weir.torch; weir.torch.install()\n"


class Streams(Case):
    def test_external_streams_are_lent(self):
        self.passes("""
            import torch, weir._library, weir.torch
            lent = []
            weir._library.load().weir_torch_lend = lambda *what: lent.append(what)
            weir.torch.install()
            one, own = torch.cuda.ExternalStream(4096), torch.cuda.Stream()
            two = torch.cuda.ExternalStream(stream_ptr=8192, device=0)
            assert two.cuda_stream == 8192 and lent == [(4096,), (8192,)], lent
        """)


class Figures(Case):
    def test_follow_storages(self):
        self.passes(begin + textwrap.dedent("""
            from torch.cuda import memory_allocated
            before = memory_allocated()
            s = torch.UntypedStorage(1 << 20)
            assert memory_allocated() == before + (1 << 20)
            stats = torch.cuda.memory_stats()
            for key in ("num_ooms", "num_alloc_retries", "max_split_size", "reserved_bytes.all.peak",
                        "allocation.small_pool.freed", "oversize_segments.current", "num_device_alloc",
                        "inactive_split_bytes.large_pool.current"):
                assert isinstance(stats[key], int), key
            del s
            assert memory_allocated() == before
            assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] >= before + (1 << 20)
            torch._C._cuda_resetPeakMemoryStats(0)
            torch._C._cuda_resetAccumulatedMemoryStats(0)
            assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == before
            assert torch._C._cuda_getMemoryFraction(0) == 1.0
            assert torch._C._accelerator_getDeviceStats(0)["reserved_bytes"]["all"]["current"] > 0
            assert "reserved" in weir.torch.summary() and weir.torch.report()
        """))

    def test_device_that_is_not_there_says_so(self):
        self.fails(begin + "torch.UntypedStorage(8); torch._C._cuda_memoryStats(9)", "gpu:9")

    # The innermost line that is not PyTorch's own.
    def test_snapshot_has_the_line_of_the_program(self):
        with tempfile.TemporaryDirectory() as work:
            program = os.path.join(work, "program.py")
            with open(program, "w") as file:
                file.write(begin + textwrap.dedent("""
                    import pickle, sys
                    torch.cuda.memory._record_memory_history(max_entries=1000)
                    kept = torch.UntypedStorage(123456)
                    torch.cuda.memory._dump_snapshot(sys.argv[1])
                    found = pickle.load(open(sys.argv[1], "rb"))
                    blocks = [b for s in found["segments"] for b in s["blocks"] if b["requested_size"] == 123456]
                    assert len(blocks) == 1 and blocks[0]["state"] == "active_allocated", blocks
                    frame = blocks[0]["frames"][0]
                    assert frame["filename"].endswith("program.py") and frame["line"] == 5, frame
                    events = [e for t in found["device_traces"] for e in t if e["action"] == "alloc"]
                    assert [e["size"] for e in events] == [123456], events
                    assert torch._C._cuda_memorySnapshot((0, 1))["segments"] == []
                    assert not any(torch._C._cuda_memorySnapshot((0, 0, False))["device_traces"])
                    torch.cuda.memory._record_memory_history(None)
                    more = torch.UntypedStorage(999999)
                    traces = torch._C._cuda_memorySnapshot()["device_traces"]
                    assert not any(e["size"] == 999999 for t in traces for e in t)
                    weir.torch.save_page(sys.argv[1] + ".html")
                """))
            done = run(program, os.path.join(work, "snapshot"))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertGreater(os.path.getsize(os.path.join(work, "snapshot.html")), 1000)


class Pools(Case):
    def test_a_capture_reaches_pytorch(self):
        self.fails(begin + "torch.cuda.CUDAGraph().capture_begin()", "AssertionError: a capture has begun")

    def test_the_pool_of_a_failed_capture_is_released(self):
        self.passes(begin + """
torch.cuda.CUDAGraph.fails_at_its_end = True
g = torch.cuda.CUDAGraph()
g.capture_begin(capture_error_mode="relaxed")
import weir._library
weir._library.load().weir_torch_hold_pool(0, 7, 0)  # as PyTorch's allocator does at the beginning
try:
    g.capture_end()
except RuntimeError as failed:
    assert "previous error" in str(failed)
else:
    raise AssertionError("nothing was raised")
assert torch._ended == [] and torch._released == [(0, (7, 0))], (torch._ended, torch._released)
""")

    def test_a_pool_is_held_until_its_object_ends(self):
        self.passes(begin + """
pool = torch.cuda.MemPool()
assert isinstance(pool, torch.cuda.memory.MemPool) and pool.id == (7, 0), pool.id
assert torch._released == []
del pool
assert torch._released == [(0, (7, 0))], torch._released
""")

    def test_a_pool_of_another_allocator(self):
        self.fails(begin + "torch.cuda.MemPool(object())", "weir is the allocator of every pool. Leave it out")


regions = begin + """
import contextlib, weir._library as library
made, inside, asked = [], [], []
class MemPool:
    def __init__(self):
        made.append(self)
        self.id = (0, 100 + len(made))
@contextlib.contextmanager
def use_mem_pool(pool):
    inside.append(pool.id)
    yield
    inside.append(None)
torch.cuda.MemPool, torch.cuda.use_mem_pool = MemPool, use_mem_pool
library.call = lambda name, *what: asked.append((name, *what))
"""


class Sleep(Case):
    def test_regions_of_a_tag_share_a_pool(self):
        self.passes(regions + """
for tag in ("weights", "cache", "weights"):
    with weir.torch.region(tag):
        pass
assert len(made) == 2 and inside == [(0, 101), None, (0, 102), None, (0, 101), None], inside
weir.torch.sleep("weights")
weir.torch.sleep("cache", keep=False)
weir.torch.wake("weights")
weir.torch.wake()
assert asked == [("sleep_pool", 0, 0, 101, 1), ("sleep_pool", 0, 0, 102, 0), ("wake_pool", 0, 0, 101),
                 ("wake_pool", 0, 0, 101), ("wake_pool", 0, 0, 102)], asked
""")

    def test_an_unknown_tag_is_named(self):
        self.fails(regions + "\nwith weir.torch.region('weights'): pass\nweir.torch.sleep('weight')",
                   "no region 'weight' was entered. Those of this process: weights")

    def test_without_weir_there_are_no_regions(self):
        self.fails("import torch, weir.torch\nwith weir.torch.region(): pass", "Call weir.torch.install() first")

    def test_a_memory_saver_keeps_what_was_asked_to_be_kept(self):
        self.passes(regions + """
from weir.torch.memory_saver import configure_subprocess, torch_memory_saver as saver
with configure_subprocess():
    pass
saver.hook_mode = "torch"
with saver.region(tag="weights", enable_cpu_backup=True):
    with saver.region(tag="kv_cache"):
        pass
with saver.region(tag="weights"):
    pass
assert saver.enabled and len(made) == 3
saver.pause("weights")
saver.resume("kv_cache")
assert sorted(asked) == [("sleep_pool", 0, 0, 101, 1), ("sleep_pool", 0, 0, 103, 0), ("wake_pool", 0, 0, 102)], asked
asked.clear()
saver.pause()
saver.resume()
assert len(asked) == 6
saver.pause("unknown")
assert len(asked) == 6
for _ in range(2):
    with saver.disable():
        assert inside[-1] == (0, 104), inside
""")
        self.fails(regions + "from weir.torch.memory_saver import torch_memory_saver as saver\nsaver.cuda_graph(None)",
                   "the memory of a graph neither moves nor sleeps")


class Refusals(Case):
    def test_ipc(self):
        self.fails(begin + "torch.UntypedStorage(100)._share_cuda_()", "CUDA IPC")
        self.fails(begin + "torch.UntypedStorage._new_shared_cuda(1, 2)", "CUDA IPC")

    def test_cudnn_benchmark_stays_off_and_says_so(self):
        for line in ("torch.backends.cudnn.benchmark = True", "torch._C._set_cudnn_benchmark(True)"):
            done = self.passes(begin + line + "\nassert not torch.backends.cudnn.benchmark")
            self.assertIn("torch.backends.cudnn.benchmark stays off", done.stderr)
        done = self.passes(begin + "torch.backends.cudnn.benchmark = False")
        self.assertEqual(done.stderr, "")

    def test_cudnn_benchmark_of_before(self):
        done = self.passes("import torch; torch._C._set_cudnn_benchmark(True)\n" + begin +
                           "assert not torch.backends.cudnn.benchmark")
        self.assertIn("stays off", done.stderr)


class Launcher(Case):
    def setUp(self):
        self.work = tempfile.mkdtemp()
        self.program = self.write("program.py", """
            import multiprocessing, os, subprocess, sys
            import beside

            def child(q):
                import torch, weir.torch
                q.put(weir.torch.is_installed())

            if __name__ == "__main__":
                assert "torch" not in sys.modules
                import torch, weir.torch
                assert weir.torch.is_installed()
                assert torch.__spec__.loader.__class__.__name__ == "SourceFileLoader", torch.__spec__
                print(sys.argv, beside.name)
                ask = "import torch, weir.torch; print(weir.torch.is_installed())"
                print(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout.strip())
                spawn = multiprocessing.get_context("spawn")
                q = spawn.Queue()
                p = spawn.Process(target=child, args=(q,))
                p.start()
                print(q.get(timeout=20))
                p.join()
                sys.exit(3)
        """)
        self.write("beside.py", "name = 'beside'")

    def write(self, name, text):
        path = os.path.join(self.work, name)
        with open(path, "w") as file:
            file.write(textwrap.dedent(text))
        return path

    def test_program_that_allocates_is_quiet(self):
        done = run("-m", "weir.torch", self.write("p.py", "import torch; torch.UntypedStorage(100)"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_program_and_its_processes(self):
        done = run("-m", "weir.torch", self.program, "--steps", "3", "-m")
        self.assertEqual((done.returncode, done.stdout.splitlines()),
                         (3, [f"{[self.program, '--steps', '3', '-m']} beside", "True", "True"]), done.stderr)

    def test_module(self):
        done = run("-m", "weir.torch", "-m", "program", "x", cwd=self.work)
        self.assertEqual((done.returncode, done.stdout.splitlines()),
                         (3, [f"{[self.program, 'x']} beside", "True", "True"]), done.stderr)

    # Without the folder of the package on PYTHONPATH, too: the package may lie in a repository.
    def test_processes_find_the_package_themselves(self):
        ask = "import torch, weir.torch, sys; print(weir.torch.is_installed(), sum('_start' in p for p in sys.path))"
        done = run("-m", "weir.torch", self.write("outer.py", f"""
            import os, subprocess, sys
            start, fake = os.environ["PYTHONPATH"].split(os.pathsep)[0], {os.path.join(here, "fake_torch")!r}
            path = os.pathsep.join([start, fake])
            subprocess.run([sys.executable, "-c", {ask!r}], env={{**os.environ, "PYTHONPATH": path}})
        """))
        self.assertEqual(done.stdout.strip(), "True 1", done.stderr)

    def test_switch_off_is_honoured(self):
        done = run("-m", "weir.torch", self.write("outer.py", """
            import os, subprocess, sys
            ask = "import torch, weir.torch; print(weir.torch.is_installed())"
            subprocess.run([sys.executable, "-c", ask], env={**os.environ, "WEIR_TORCH": "0"})
        """))
        self.assertEqual(done.stdout.strip(), "False", done.stderr)

    def test_other_sitecustomize_still_runs(self):
        other = tempfile.mkdtemp()
        with open(os.path.join(other, "sitecustomize.py"), "w") as file:
            file.write("import builtins; builtins.other_ran = True")
        outer = self.write("outer.py", """
            import subprocess, sys
            subprocess.run([sys.executable, "-c", "print(other_ran)"])
        """)
        done = run("-m", "weir.torch", outer, path=(package, os.path.join(here, "fake_torch"), other))
        self.assertEqual(done.stdout.strip(), "True", done.stderr)

    def test_program_without_cuda_runs(self):
        ask = self.write("p.py", "import torch, weir.torch; print(weir.torch.is_installed())")
        done = run("-m", "weir.torch", ask, FAKE_TORCH_CUDA="none")
        self.assertEqual(done.stdout.strip(), "False", done.stderr)

    def test_wrong_use(self):
        self.assertEqual(run("-m", "weir.torch").returncode, 2)
        self.assertEqual(run("-m", "weir.torch", "-m").returncode, 2)
        done = run("-m", "weir.torch", "-u", "x.py")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no option -u", done.stderr)
        self.assertEqual(run("-m", "weir.torch", "--help").returncode, 0)
        done = run("-m", "weir.torch", "--check", "--suppress")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--suppress needs a file", done.stderr)

    def test_check_and_its_suppressions_reach_the_program(self):
        ask = self.write("p.py", """
            import os, sys
            print(os.environ["WEIR_CHECK_RACES"], os.environ["WEIR_CHECK_SUPPRESS"], sys.argv[1:])
        """)
        done = run("-m", "weir.torch", "--check", "--suppress", "/a/list", ask, "--check", FAKE_TORCH_CUDA="none")
        self.assertEqual(done.stdout.strip(), "fail /a/list ['--check']", done.stderr)


class CuPy(Case):
    def test_shares_the_pool(self):
        self.passes(begin + textwrap.dedent("""
            import cupy, weir.cupy
            weir.cupy.install()
            used = torch.cuda.memory_allocated()
            s = torch.UntypedStorage(1 << 24)
            where = s.address
            del s
            p = cupy.allocator(1 << 24)  # on the stream of the block that was freed
            assert p.ptr == where and p.mem.device_id == 0 and torch.cuda.memory_allocated() == used + (1 << 24)
            assert weir.cupy.memory_allocated() == weir.cupy.memory_allocated(0) == 1 << 24
            peak = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
            assert peak < 3 << 23, peak
            del p
            assert torch.cuda.memory_allocated() == used and weir.cupy.memory_allocated() == 0
            assert cupy.allocator(0).ptr

            # A user of libweir.so's C interface, if the library shares it.
            import ctypes, glob, os
            for path in glob.glob(os.path.join(os.path.dirname(weir._library.path()), "libweir.so.*")):
                z = ctypes.c_void_p()
                size, default = ctypes.c_size_t(1 << 24), ctypes.c_size_t(0)
                assert ctypes.CDLL(path).weir_allocate(ctypes.byref(z), size, default, 0, None) == 0
                assert z.value == where and ctypes.CDLL(path).weir_free(z) == 0
            try:
                cupy.allocator(1 << 40)
            except cupy.OutOfMemoryError as error:
                assert "1024.00 GiB" in str(error), error
            else:
                raise AssertionError("1 TiB")
            kept = cupy.allocator(100)  # until the interpreter's end
        """))

    def test_per_thread_stream_serves(self):
        self.passes("""
            import threading, cupy, weir.cupy
            cupy.stream.ptr = 2
            blocks = [weir.cupy.allocate(100)]
            other = threading.Thread(target=lambda: blocks.append(weir.cupy.allocate(100)))
            other.start()
            other.join()
            assert weir.cupy.memory_allocated() == 1024
            blocks.clear()
            assert weir.cupy.memory_allocated() == 0
        """)


class Wheel(Case):
    """./run wheel, into an environment of its own."""

    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.mkdtemp()
        made = run(os.path.join(root, "interop", "torch", "wheel.py"), library, cls.work)
        cls.path = made.stdout.strip()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", os.path.join(cls.work, "env")], check=True)
        cls.site = glob.glob(os.path.join(cls.work, "env", "lib", "python*", "site-packages"))[0]
        zipfile.ZipFile(cls.path).extractall(cls.site)
        cls.python = os.path.join(cls.work, "env", "bin", "python")

    def test_record_is_of_its_files(self):
        wheel = zipfile.ZipFile(self.path)
        record = next(n for n in wheel.namelist() if n.endswith("/RECORD"))
        lines = dict(line.split(",", 1) for line in wheel.read(record).decode().splitlines())
        self.assertEqual(sorted(lines), sorted(wheel.namelist()))
        self.assertIn("weir/libweir_torch.so", lines)
        for name, told in lines.items():
            data = wheel.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            self.assertEqual(told, "," if name == record else f"sha256={digest},{len(data)}", name)

    # The platform that is named has the symbols that are asked for.
    def test_name_tells_the_platform(self):
        newest = max(int(m) for m in re.findall(r"GLIBC_2\.(\d+)", subprocess.run(
            ["readelf", "-VW", library], capture_output=True, text=True).stdout))
        found = re.fullmatch(r"weir-(.+)-py3-none-(?:manylinux_2_(\d+)|linux)_(.+)\.whl", os.path.basename(self.path))
        self.assertTrue(found, self.path)
        self.assertGreaterEqual(int(found[2] or 1000), newest)

    def test_same_files_make_the_same_wheel(self):
        again = run(os.path.join(root, "interop", "torch", "wheel.py"), library, os.path.join(self.work, "again"))
        with open(self.path, "rb") as one, open(again.stdout.strip(), "rb") as other:
            self.assertEqual(one.read(), other.read())

    def in_env(self, *command, **environment):
        own = {"PATH": os.environ["PATH"], "WEIR_DEVICES": "sim:1:1", "PYTHONPATH": os.path.join(here, "fake_torch")}
        return subprocess.run([self.python, *command], capture_output=True, text=True, timeout=60, cwd=self.work,
                              env={**own, **environment})

    def test_installed_package_works(self):
        code = ("import torch, weir, weir.torch, weir._library as l; weir.torch.install(); torch.UntypedStorage(100); "
                "assert l.text('version') == weir.__version__; print(l.path())")
        done = self.in_env("-c", code)
        self.assertEqual(done.stdout.strip(), os.path.join(self.site, "weir", "libweir_torch.so"), done.stderr)

    # A launcher that sets nothing but the switch, such as torchrun's.
    def test_switch_alone_puts_a_process_on_weir(self):
        code = "import torch, weir.torch; print(weir.torch.is_installed())"
        for switch, on in (("1", "True"), ("0", "False")):
            self.assertEqual(self.in_env("-c", code, WEIR_TORCH=switch).stdout.strip(), on)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
