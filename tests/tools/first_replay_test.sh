#!/usr/bin/env bash
# The scripts in tools/ contain no machine-specific path, and report missing input.
# Usage: first_replay_test.sh ROOT
set -euo pipefail
cd "$1"
failed=0
fail() { echo "FAILED: $*"; failed=1; }
if grep -nE '/opt/|/home/|\$root"?/shared' tools/gpu tools/first_replay tools/record_trace tools/prove tools/planted; then fail "a place of one machine"; fi
status=0
out=$(WEIR_TOOL=/bin/true tools/first_replay 2>&1) || status=$?
[ $status = 2 ] && [[ $out == *"no trace is named"*"tools/record_trace"* ]] || fail "without traces: status $status, $out"
status=0
out=$(WEIR_TOOL=/bin/true tools/first_replay /nowhere.trace.gz 2>&1) || status=$?
[ $status = 2 ] && [[ $out == *"/nowhere.trace.gz"* ]] || fail "a trace that is not there: status $status, $out"
exit $failed
