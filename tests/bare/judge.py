#!/usr/bin/env python3
"""Runs every case of the programs in this folder under the race checker, and compares what it says with the lists.

Usage: judge.py BUILD [options]      BUILD: a build folder with the targets weir_bare_*, weir_tool and weir_torch
  --check COMMAND     what runs a program that does not use weir (default: "BUILD/bin/weir check")
  --torch COMMAND     what runs a PyTorch program (default: "python3 -m weir.torch")
  --program NAME      races, pool_races, torch_races or clean; may be repeated (default: all)
  --only WORD         cases whose name contains the word
  --keep FOLDER       what each run printed, a file each
  --jobs N            runs at a time (default: 4)
  --csan              the PyTorch programs under PyTorch's own sanitizer instead, on its own allocator
A row has the program, the case, what must be said, what was said, and what was said of the same program made right.
Rows that are wrong end with the reason. `weaker`: a possible race was said where the race is certain; `stronger`: the reverse.
Exit status: 0 each bug was reported and nothing else was; 1 not so, or a program failed; 2 usage; 77 no case could run.
"""
import argparse
import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAMS = ("races", "pool_races", "torch_races", "clean")
SKIPPED, RACES_FOUND, TIMED_OUT = 77, 66, 124
GRADES = ("none", "possible", "race")

# The words of the reports: finding::kind in runtime/driver/race_control.h.
POSSIBLE = re.compile(r"^weir: possible race: ", re.M)
RACE = re.compile(r"^weir: (race|use after free|freed in use|handed out too early|unmapped in use|source changed|"
                  r"host too early|undeclared use): ", re.M)
CHECKED = re.compile(r"^weir-\d+: the race checker found ", re.M)
CSAN = re.compile(r"CSAN detected a possible data race")


def commands(options):
    """The command and the environment of each program, without the name of the case."""
    built = os.path.join(options.build, "bin", "bare_")
    check = shlex.split(options.check or os.path.join(options.build, "bin", "weir") + " check")
    torch = ["python3"] if options.csan else shlex.split(options.torch)
    weir = {"WEIR_CHECK_RACES": "1", "WEIR_DEVICES": "cuda"}
    paths = [os.path.join(ROOT, "interop", "torch", "python"), os.environ.get("PYTHONPATH", "")]
    library = os.path.join(options.build, "interop", "libweir_torch.so")
    on_torch = {"TORCH_CUDA_SANITIZER": "1"} if options.csan else {
        **weir, "PYTHONPATH": os.pathsep.join(p for p in paths if p), "WEIR_TORCH_LIBRARY": library}
    return {"races": ([*check, built + "races"], weir),
            "clean": ([*check, built + "clean"], weir),
            "pool_races": ([built + "pool_races"], weir),
            "torch_races": ([*torch, os.path.join(HERE, "torch_races.py")], on_torch)}


def listed(program, options):
    alone = [sys.executable, os.path.join(HERE, "torch_races.py")] if program == "torch_races" else \
        [os.path.join(options.build, "bin", "bare_" + program)]
    first = commands(options)[program][0][0]
    if not os.path.exists(alone[-1]) or not shutil.which(first):
        missing = first if os.path.exists(alone[-1]) else f"{alone[-1]} (the target weir_bare_{program} makes it)"
        print(f"judge.py: no {missing}", file=sys.stderr)
        sys.exit(2)
    told = subprocess.run([*alone, "--list"], capture_output=True, text=True, check=True).stdout
    return [tuple(line.split()) for line in told.splitlines()]


def run(command, environment, keep):
    """What the checker said, or an empty word if it did not judge, and the exit status."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120,
                              env={**os.environ, **environment})
        text, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        text, status = "", TIMED_OUT
    if keep:
        with open(keep, "w") as file:
            file.write(f"{shlex.join(command)}: {status}\n{text}")
    if CSAN.search(text):
        return "race", RACES_FOUND
    if "TORCH_CUDA_SANITIZER" not in environment and not CHECKED.search(text):
        return "", status
    return "race" if RACE.search(text) else "possible" if POSSIBLE.search(text) else "none", status


class Case:
    def __init__(self, program, name, must, options):
        self.program, self.name, self.must = program, name, must
        self.command, self.environment = commands(options)[program]
        self.options = options
        self.said = self.right = "-"
        self.wrong, self.skipped = [], False

    def run_one(self, *more):
        keep = self.options.keep and os.path.join(self.options.keep, ".".join((self.program, self.name, *more)))
        said, status = run([*self.command, self.name, *more], self.environment, keep)
        if status == SKIPPED:
            self.skipped = True
        elif status not in (0, RACES_FOUND):
            self.wrong.append(f"ended with {status}")
        elif not said:
            self.wrong.append("no checker")
        return said or "none"

    def judge(self):
        self.said = self.run_one()
        if self.skipped:
            return self
        if self.program == "clean":
            if GRADES.index(self.said) > GRADES.index(self.must):
                self.wrong.append("false report")
            return self
        self.right = self.run_one("right")
        if self.said == "none":
            self.wrong.append("missed")
        if self.right != "none":
            self.wrong.append("false report")
        return self

    def line(self):
        said = "skipped" if self.skipped else self.said
        other = {("race", "possible"): "weaker", ("possible", "race"): "stronger"}
        note = ", ".join(self.wrong)
        if not note and self.program != "clean":
            note = other.get((self.must, said), "")
        return f"{self.program:12} {self.name:42} {self.must:9} {said:9} {self.right:9} {note}".rstrip()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    for name, default in (("check", ""), ("torch", "python3 -m weir.torch"), ("only", ""), ("keep", "")):
        parser.add_argument("--" + name, default=default)
    parser.add_argument("--program", action="append", choices=PROGRAMS)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--csan", action="store_true")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
    programs = ["torch_races"] if options.csan else options.program or PROGRAMS
    cases = [Case(program, name, must, options) for program in programs
             for name, must in listed(program, options) if options.only in name]
    print(f"{'program':12} {'case':42} {'must say':9} {'said':9} {'right':9}")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for case in pool.map(Case.judge, cases):
            print(case.line(), flush=True)
    ran = [case for case in cases if not case.skipped]
    bugs = [case for case in ran if case.program != "clean"]
    clean = [case for case in ran if case.program == "clean"]
    certain = [case for case in bugs if case.must == "race"]
    print(f"{len(bugs)} bugs: {sum(case.said != 'none' for case in bugs)} reported, "
          f"{sum(case.said == 'race' for case in bugs)} of them as race; of the {len(certain)} that are certain "
          f"{sum(case.said == 'race' for case in certain)} as race")
    print(f"{len(bugs)} made right and {len(clean)} clean programs: "
          f"{sum('false report' in case.wrong for case in ran)} with a false report; {len(cases) - len(ran)} cases skipped; "
          f"{sum(any(w.startswith(('ended', 'no checker')) for w in case.wrong) for case in ran)} failed")
    return SKIPPED if not ran else 1 if any(case.wrong for case in ran) else 0


if __name__ == "__main__":
    sys.exit(main())
