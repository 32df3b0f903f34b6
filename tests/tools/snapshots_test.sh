#!/usr/bin/env bash
# Snapshots that PyTorch 2.11 wrote on a GPU while a small transformer trained for 12 steps: whole, until it ran out of
# memory (oom), and without a history (nohistory). Their paths of installed packages are shortened.
# Usage: snapshots_test.sh ROOT BUILD
set -euo pipefail
root=$1 build=$2
python3 -c pass 2> /dev/null || { echo "not run: no python3 here"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fail() { echo "FAILED: $1"; shift; printf '%s\n' "$@"; failed=1; }
says() { grep -qF -- "$2" "$work/told" || fail "$1 does not say '$2'" "$(cat "$work/told")"; }
needs() { "$build/bin/weir" replay --fit --devices sim "$1" | sed -n 's/^FITS IN *\([0-9]*\)MiB.*/\1/p'; }

for name in whole oom nohistory; do
  gzip -dc "$root/tests/tools/snapshots/$name.pickle.gz" > "$work/$name"
  "$build/bin/weir" snapshot "$work/$name" --html "$work/$name.html" > "$work/told"
  says "$name" "/home/user/train.py:34"
  # 5 MB are allowed for 100,000 events. These have at most 35,584.
  [ "$(stat -c %s "$work/$name.html")" -lt 700000 ] || fail "the page of $name is too long" "$(stat -c %s "$work/$name.html")"
  [ "$(grep -c 'others' "$work/told")" = 0 ] || fail "lines of $name are not told apart" "$(cat "$work/told")"
done
"$root/tools/record_trace" "$work/whole.trace" --snapshot "$work/whole" > /dev/null 2> "$work/told"
says whole "began in the middle: 65 MiB were in use then"
whole=$(needs "$work/whole.trace")

# The second half of the recording, which began in the middle, needs no less where the peak is in it.
python3 - "$work/whole" "$work/half" << 'PY'
import pickle, sys
snapshot = pickle.load(open(sys.argv[1], "rb"))
trace = snapshot["device_traces"][0]
live, now, peak, where = {}, 0, 0, 0
for number, entry in enumerate(trace):
    if entry["action"] == "alloc":
        live[entry["addr"]] = entry["size"]
        now += entry["size"]
    elif entry["action"] == "free_completed":
        now -= live.pop(entry["addr"], 0)
    if now > peak:
        peak, where = now, number
snapshot["device_traces"][0] = trace[where // 2:]
pickle.dump(snapshot, open(sys.argv[2], "wb"))
PY
"$root/tools/record_trace" "$work/half.trace" --snapshot "$work/half" > /dev/null 2> "$work/told"
says half "began in the middle"
half=$(needs "$work/half.trace")
[ -n "$whole" ] && [ $((half - whole)) -le 32 ] && [ $((whole - half)) -le 32 ] || fail "a half needs $half MiB, the whole $whole"

"$root/tools/record_trace" "$work/oom.trace" --snapshot "$work/oom" > /dev/null 2> "$work/told"
says oom "ran out of memory"
"$build/bin/weir" replay --fit --devices sim "$work/oom.trace" > "$work/told" || true
says "the fit of oom" "at least 6 GB"
if "$root/tools/record_trace" "$work/none.trace" --snapshot "$work/nohistory" > /dev/null 2> "$work/told"; then
  fail "a snapshot without a history becomes a trace"
fi
says nohistory "Record from the start"
exit $failed
