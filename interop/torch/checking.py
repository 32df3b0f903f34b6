"""What a check is, and how checks run: each in a process of its own, some in two, with and without weir.

check.py and graph_checks.py have the checks. A line of JSON for each: its name, whether it passed, seconds, and what it found.
"""
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time

here = os.path.dirname(os.path.abspath(__file__))
checks = {}


class NotHere(Exception):
    """The machine lacks what the check needs."""


def check(on="weir"):
    """on: weir; both: also on PyTorch's own allocator, and what the two return is equal; alone: started as it is."""
    def add(function):
        checks[function.__name__] = (function, on)
        return function

    return add


def expect(truth, *told):
    if not truth:
        raise AssertionError(" ".join(str(t) for t in told))


def bits_of(*tensors):
    import torch

    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def deterministic():
    import random

    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(7)
    random.seed(7)
    sys.path.insert(0, here)
    import programs

    return torch, programs


def child(*command, **environment):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=200,
                          env={**os.environ, **environment})


def program(text, *command, **environment):
    """The text as a program on weir; command: what runs it, %s standing for its file."""
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "program.py")
        with open(path, "w") as file:
            file.write(textwrap.dedent(text))
        words = [path if word == "%s" else word for word in command or ("%s",)]
        return child("-m", "weir.torch", *words, **environment)


def raised(act):
    try:
        act()
    except Exception as error:
        return error
    return AssertionError("nothing was raised")


def run_one(name):
    function, on = checks[name]
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                   "PYTHONPATH": os.pathsep.join([os.path.join(here, "python"), os.environ.get("PYTHONPATH", "")])}
    results = []
    began = time.monotonic()
    for mode in {"weir": ("weir",), "both": ("weir", "native"), "alone": ("native",)}[on]:
        start = ["-m", "weir.torch"] if mode == "weir" else []
        try:
            done = subprocess.run([sys.executable, *start, os.path.join(here, "check.py"), "--one", name],
                                  capture_output=True, text=True, timeout=240, env=environment)
        except subprocess.TimeoutExpired:
            return {"check": name, "passed": False, "on": mode, "error": "took more than 240 s"}
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        said = json.loads(lines[-1]) if lines else {"passed": False, "error": done.stderr[-2000:]}
        if done.returncode and said["passed"]:
            said = {"passed": False, "error": f"ended with {done.returncode}: {done.stderr[-1500:]}"}
        if not said["passed"] or said.get("lacks"):
            return {"check": name, "on": mode} | said
        results.append(said.get("found"))
    line = {"check": name, "passed": True, "s": round(time.monotonic() - began, 1)}
    if on != "both":
        return line | {"found": results[0]} if results[0] is not None else line
    if isinstance(results[0], dict):  # weir has all keys, and more
        missing = sorted(set(results[1]["keys"]) - set(results[0]["keys"]))
        if missing:
            return line | {"passed": False, "error": f"missing keys: {missing}"}
        return line | {"found": f"{len(results[1]['keys'])} keys"}
    return line | {"passed": results[0] == results[1], "found": f"{results[0]} on weir, {results[1]} on PyTorch's own"}


def main(arguments):
    if arguments[:1] == ["--one"]:
        try:
            found = checks[arguments[1]][0]()
            print(json.dumps({"passed": True, "found": found}), flush=True)
        except NotHere as error:
            print(json.dumps({"passed": True, "lacks": str(error)}), flush=True)
        except AssertionError as error:
            print(json.dumps({"passed": False, "error": str(error)[-3000:]}), flush=True)
        return 0
    unknown = [name for name in arguments if name not in checks]
    if unknown:
        print(f"check.py: no check {', '.join(unknown)}; there are {', '.join(checks)}", file=sys.stderr)
        return 2
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run_one, name) for name in arguments or checks]):
            print(json.dumps(done.result()), flush=True)
            failed += not done.result()["passed"]
    print(json.dumps({"checks": len(arguments or checks), "failed": failed}))
    return failed != 0
