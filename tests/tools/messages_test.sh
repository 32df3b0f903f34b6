#!/usr/bin/env bash
# Each error text of the library has a number of its own, and docs/reference/messages.md lists it. Then a small tree, for what
# tools/messages refuses: a throw without a number, a number used twice or again. Usage: messages_test.sh ROOT
set -euo pipefail
command -v python3 > /dev/null || exit 0
root=$1
failed=0
"$root/tools/messages" || failed=1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tools" "$work/docs/reference" "$work/runtime"
cp "$root/tools/messages" "$work/tools/"
page=$work/docs/reference/messages.md
printf '| weir- | message |\n| – | `has no name` |\n\n```\nweir-\n```\n' > "$page"
source() { printf '%s\n' "$@" > "$work/runtime/a.cpp"; }
run() {  # run STATUS TEXT ARGS...: the tool ends so, and says the text
  local wanted=$1 text=$2 status=0
  shift 2
  "$work/tools/messages" "$@" > "$work/out" 2>&1 || status=$?
  [ $status = "$wanted" ] && { [ -z "$text" ] || grep -qF -- "$text" "$work/out"; } || { echo "FAILED: status $status, not $wanted with '$text':"; cat "$work/out"; failed=1; }
}
page_has() { grep -qxF -- "$1" "$page" || { echo "FAILED: the page has no line '$1':"; cat "$page"; failed=1; }; }

source '  throw invalid_use("open", "block " + text(b) + " has no name", "Give it (a name) first", at);'
run 1 'runtime/a.cpp:1: this throw has no error_id'
run 0 'runtime/a.cpp' --write
grep -q 'at, error_id{101});' "$work/runtime/a.cpp" || { echo "FAILED: the throw got no number"; failed=1; }
page_has '| 101 | `has no name` |'
page_has 'weir-101  open: block … has no name. Give it (a name) first'
"$work/tools/messages" || failed=1

source '  throw invalid_use("open", "block has no name", "Give it a name first", at, error_id{101});' \
  '  throw driver_error(7, "close", "the file", "Wait", at, error_id{101});'
run 1 'weir-101 is also the number of runtime/a.cpp:1'
source '  throw invalid_use("open", "block has no name", "Give it a name first", at, error_id{101});' '  print("weir: it ends\n");'
run 1 'runtime/a.cpp:2: this text begins with "weir: "'
source '  throw invalid_use("open", "block has no name", "Give it a name first", at, error_id{101});' '  print("weir-102: it ends\n");'
run 1 'is not what tools/messages --write writes'
run 0 '' --write
page_has 'weir-102  it ends'

# A number that has gone is retired; it never comes back for something else.
source '  print("weir-102: it ends\n");'
run 0 '' --write
page_has 'retired: 101'
source '  throw timed_out("wait", "five seconds", "Wait longer", at, error_id{101});' '  print("weir-102: it ends\n");'
run 1 'weir-101 is retired'
source '  print("weir-102: no answer came yet\n");'
run 1 'weir-102 was "it ends"' --write
run 0 '' --write --reworded 102
exit $failed
