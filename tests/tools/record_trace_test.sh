#!/usr/bin/env bash
# tools/record_trace on synthetic snapshots, on a program with a stub of torch, and on weir's own.
# Usage: record_trace_test.sh ROOT BUILD
set -euo pipefail
root=$1 build=$2
python3 -c pass 2> /dev/null || { echo "not run: no python3 here"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

expect() {  # expect NAME EXPECTED FOUND
  [ "$2" = "$3" ] || { echo "FAILED: $1"; diff <(echo "$2") <(echo "$3") || true; failed=1; }
}
snapshot() {  # snapshot FILE TRACES [BLOCKS]: a pickle with entries ACTION, ADDRESS, SIZE, STREAM, and blocks STATE, SIZE of stream 77 at 0x10
  python3 - "$@" << 'PY'
import pickle, sys
names = dict(o="oom", a="alloc", r="free_requested", c="free_completed", s="segment_alloc")
entries = lambda t: [dict(action=names[w], addr=at, size=n, stream=s, time_us=0) for w, at, n, s in t]
states = dict(a="active_allocated", p="active_pending_free", i="inactive")
blocks = [dict(state=states[w], size=n, requested_size=n - 1) for w, n in eval((sys.argv + ["[]"])[3])]
segments = [dict(device=0, address=0x10, total_size=sum(b["size"] for b in blocks), stream=77, blocks=blocks)] if blocks else []
pickle.dump({"segments": segments, "device_traces": [entries(t) for t in eval(sys.argv[2])]}, open(sys.argv[1], "wb"))
PY
}
converted() { "$root/tools/record_trace" "$work/out.trace" --snapshot "$@" > "$work/told"; cat "$work/out.trace"; }

# One address is reused. A block that another stream used (0x40) completes after later allocations.
snapshot "$work/one" '[[], [("s", 0, 4096, 0), ("a", 0x10, 700, 77), ("r", 0x10, 700, 77), ("c", 0x10, 700, 77),
  ("a", 0x10, 300, 77), ("a", 0x40, 1000, 5), ("r", 0x40, 1000, 5), ("a", 0x60, 20, 77), ("r", 0x10, 300, 77), ("c", 0x10, 300, 77), ("c", 0x40, 1000, 5), ("r", 0x60, 20, 77)]]'
expect "lines of a trace" $'a 0 700 0\nf 0\na 1 300 0\na 2 1000 1\nf 2\na 3 20 0\nf 1\nc 2\nf 3\nc 3' "$(converted "$work/one")"
expect "what is in use on another stream counts until it completes" '"ops": 10, "blocks": 4, "streams": 2, "peak_requested": 1320, "refused": 0, "began_with": 0' "$(grep -o '"ops".*[0-9]' "$work/told")"
snapshot "$work/two" '[[("a", 1, 8, 0), ("r", 1, 8, 0)], [("a", 1, 9, 3), ("r", 1, 9, 3)]]'
expect "the first device that was used" $'a 0 8 0\nf 0\nc 0' "$(converted "$work/two" 2> "$work/said")"
grep -q 'of gpu:0. Used as well: gpu:1. Pass' "$work/said" || { echo "FAILED: the other device is told: $(cat "$work/said")"; failed=1; }
expect "a device that is named" $'a 0 9 0\nf 0\nc 0' "$(converted "$work/two" 1)"
"$root/tools/record_trace" "$work/out.trace.gz" --snapshot "$work/two" > "$work/told"
expect "a trace whose name ends so is packed" $'a 0 8 0\nf 0\nc 0' "$(gzip -dc "$work/out.trace.gz")"

# A recording that began in the middle begins with what was in use then: a block that its end still has (0x10), one that
# it frees (0x90), one whose free it completes (0x50), one freed before and still pending at the end (0x30).
snapshot "$work/middle" '[[("a", 0x20, 16, 5), ("r", 0x90, 5, 5), ("c", 0x90, 5, 5), ("c", 0x50, 64, 77)]]' '[("a", 16), ("a", 16), ("p", 16), ("i", 999)]'
expect "what was in use before" $'# began with 4 blocks, 99 bytes\na 0 15 0\na 1 15 0\nf 1\na 2 64 0\nf 2\na 3 5 1\na 4 16 1\nf 3\nc 2\nc 1' "$(converted "$work/middle" 2> "$work/said")"
expect "counts to the peak" '"peak_requested": 115, "refused": 0, "began_with": 99' "$(grep -o '"peak_requested".*[0-9]' "$work/told")"
grep -q '99 B were in use then' "$work/said" || { echo "FAILED: the beginning is told: $(cat "$work/said")"; failed=1; }
# The second half of a program needs as much as the whole, wherever the recording began. Its answer tells that it is a part.
if [ -x "$build/bin/weir" ]; then
  mib=$((1 << 20))
  whole="(\"a\", 16, 40 * $mib, 0), (\"a\", 1 << 30, 50 * $mib, 0), (\"r\", 1 << 30, 0, 0), (\"c\", 1 << 30, 0, 0)"
  for part in "$whole" "${whole#*), }"; do
    snapshot "$work/part" "[[$part, (\"a\", 1 << 31, 60 * $mib, 0)]]" "[(\"a\", 40 * $mib)]"
    converted "$work/part" > /dev/null 2>&1
    expect "the whole program's limit" 'FITS IN        100MiB' "$("$build/bin/weir" replay --fit --devices sim "$work/out.trace" > "$work/fit"; grep -o 'FITS IN *[0-9]*MiB' "$work/fit")"
  done
  grep -q 'began in the middle of the program: 40.0 MiB were in use' "$work/fit" || { echo "FAILED: a part is told: $(cat "$work/fit")"; failed=1; }
fi
# Its history ends with a block that its state at the end should have.
snapshot "$work/stateless" '[[("a", 0x20, 16, 5)]]' '[]'
status=0
"$root/tools/record_trace" - --snapshot "$work/stateless" > "$work/told" 2> "$work/said" || status=$?
expect "the status without segments" "1" "$status"
grep -q 'ends with 1 block in use, and no `segments`' "$work/said" || { echo "FAILED: missing segments are told: $(cat "$work/said")"; failed=1; }
# Without history there is no trace: the state at one moment is told instead.
snapshot "$work/state" '[[]]' '[("a", 3145729), ("i", 1607467007)]'
rm -f "$work/out.trace"
status=0
"$root/tools/record_trace" "$work/out.trace" --snapshot "$work/state" > "$work/told" 2> "$work/said" || status=$?
expect "the status without history" "1" "$status"
[ ! -e "$work/out.trace" ] || { echo "FAILED: an empty trace is written"; failed=1; }
grep -q 'no history of gpu:0.*one moment: 1 block of 3 MiB in use, 1.5 GiB reserved.*Record from the start' "$work/said" || { echo "FAILED: the state is told: $(cat "$work/said")"; failed=1; }

if [ -x "$build/bin/weir" ]; then
  "$build/bin/weir" snapshot "$work/state" > "$work/told"
  grep -q 'in use by 1 block (.*free in 1 hole (.*; no history: the state at one moment' "$work/told" || { echo "FAILED: no history is told: $(cat "$work/told")"; failed=1; }
  # Two of three devices were never used: one line, also beside an earlier snapshot.
  snapshot "$work/of_three" '[[("a", 1, 700, 0)], [], []]'
  for since in '' "--since $work/of_three"; do
    "$build/bin/weir" snapshot "$work/of_three" $since > "$work/told"
    grep -q '^gpu:0: ' "$work/told" && ! grep -q '^gpu:[12]' "$work/told" || { echo "FAILED: devices that hold nothing: $(cat "$work/told")"; failed=1; }
  done
fi

# A recording that ends out of memory says so, and how much was missing.
snapshot "$work/short" '[[("a", 1, 700, 0), ("o", 0, 9000, 0), ("r", 1, 700, 0)]]'
expect "a refused allocation" $'a 0 700 0\n# refused 9000\nf 0\nc 0' "$(converted "$work/short" 2> "$work/said")"
grep -q 'ran out of memory' "$work/said" || { echo "FAILED: the refusal is told"; failed=1; }

# A program that fails halfway still has a trace. It receives its own arguments.
mkdir "$work/torch"
cat > "$work/torch/__init__.py" << 'PY'
class cuda:
    entries = []
    class memory:
        _record_memory_history = staticmethod(lambda **how: cuda.entries.clear())
        _snapshot = staticmethod(lambda: {"device_traces": [cuda.entries]})
    synchronize = staticmethod(lambda: None)
    max_memory_reserved = staticmethod(lambda device: 2048)
    get_device_name = staticmethod(lambda device: "a GPU")
__version__ = "2.0"
PY
echo 'PART = 512' > "$work/part.py"
cat > "$work/program.py" << 'PY'
import sys, torch
from part import PART
assert __name__ == "__main__" and sys.argv[1:] == ["--steps", "3"], sys.argv
torch.cuda.entries.append(dict(action="alloc", addr=1, size=2 * PART, stream=0))
raise ValueError("no more steps")
PY
recorded() { (cd / && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$work "$root/tools/record_trace" "$@" 2> "$work/said"); }
status=0
told=$(recorded "$work/run.trace" "$work/program.py" --steps 3) || status=$?
expect "the status of a program that failed" 1 "$status"
expect "a program's trace" $'# PyTorch 2.0 on a GPU, reserved 2048 bytes, failed\na 0 1024 0' "$(cat "$work/run.trace")"
expect "what PyTorch reserved" '"peak_requested": 1024, "refused": 0, "began_with": 0, "peak_reserved": 2048, "ratio": 2.0}' "$(grep -o '"peak_requested.*' <<< "$told")"
grep -q 'program.py failed: ValueError: no more steps' "$work/said" || { echo "FAILED: the program's failure is told"; failed=1; }

# A program that went on after a refusal needs no more. A module is recorded like a file, each rank into its own.
cat > "$work/goes_on.py" << 'PY'
import sys, torch
assert __name__ == "__main__" and sys.argv[1:] == ["x"], sys.argv
torch.cuda.entries += [dict(action="oom", size=9000, stream=0), dict(action="alloc", addr=1, size=8, stream=0)]
PY
RANK=3 recorded "$work/{rank}.trace" -m goes_on x > /dev/null
expect "a module that went on" $'# PyTorch 2.0 on a GPU, reserved 2048 bytes\n# did without 9000\na 0 8 0' "$(cat "$work/3.trace")"
mv "$work/torch" "$work/no_torch"
status=0
recorded - "$work/program.py" || status=$?
expect "the status without torch" 1 "$status"
grep -q 'has no torch' "$work/said" || python3 -c 'import torch' 2> /dev/null || { echo "FAILED: $(cat "$work/said")"; failed=1; }

# What is no snapshot, and what is no device of it, is told in a line, not by a stack of Python.
gzip -c "$work/one" > "$work/packed"
python3 -c 'import pickle, sys; pickle.dump([1], open(sys.argv[1], "wb"))' "$work/list"
head -c 20 "$work/one" > "$work/cut"
wrong() {  # wrong STATUS TEXT ARGS...: it ends so, with one line that has the text
  local wanted=$1 text=$2 status=0
  shift 2
  "$root/tools/record_trace" - --snapshot "$@" > "$work/told" 2> "$work/said" || status=$?
  [ $status = $wanted ] && [ "$(wc -l < "$work/said")" = 1 ] && grep -qF -- "$text" "$work/said" ||
    { echo "FAILED: $*: status $status, not $wanted with '$text': $(cat "$work/said")"; failed=1; }
}
wrong 1 "$work/missing cannot be read: No such file" "$work/missing"
for file in packed list cut; do wrong 1 "$work/$file is no snapshot of torch.cuda.memory._dump_snapshot" "$work/$file"; done
wrong 1 "unpack it first (gzip -dc)" "$work/packed"
wrong 2 "gpu:5 of 2" "$work/two" 5
wrong 2 "gpu:x of 2" "$work/two" x
# Other tools in Python, too, name the file that is missing in a line.
for call in "scale_trace $work/missing $work/out.trace 2" "page_frames --page $work/missing" "pictures $work/missing $work"; do
  [[ $call != page_frames* ]] || command -v chromium > /dev/null || continue
  status=0
  "$root"/tools/$call > "$work/told" 2> "$work/said" || status=$?
  [ $status = 1 ] && [ "$(wc -l < "$work/said")" = 1 ] && grep -q "^${call%% *}: .*$work/missing" "$work/said" || { echo "FAILED: $call: status $status: $(cat "$work/said")"; failed=1; }
done
# Scaled, a trace begins with the scaled bytes of its first blocks.
printf '# began with 2 blocks, 300000 bytes\na 0 100000 0\na 1 200000 0\nf 0\na 2 500 1\n# refused 1000000\n' > "$work/in.trace"
"$root/tools/scale_trace" "$work/in.trace" "$work/out.trace" 2
expect "a scaled trace" $'# began with 2 blocks, 600000 bytes\na 0 200000 0\na 1 400000 0\nf 0\na 2 500 1\n# refused 2000000' "$(cat "$work/out.trace")"
# weir's record of a replay begins with the replayed trace.
if [ -x "$build/bin/weir" ]; then
  printf 'a 0 70000 0\na 1 5000 0\nf 0\na 2 64 0\nf 1\na 3 9000000 0\nf 3\nf 2\n' > "$work/in.trace"
  "$build/bin/weir" replay --devices sim --rounds 2 --snapshot "$work/weirs" "$work/in.trace" > /dev/null
  expect "there and back" "$(cat "$work/in.trace")" "$(converted "$work/weirs" | head -n 8)"
fi
exit $failed
