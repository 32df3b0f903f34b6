#!/usr/bin/env bash
# Installs weir into an empty prefix and builds tests/consumer against it, as an external project would. Then
# it moves the installation, which must still work: no installed file may contain the first prefix.
# Usage: package_test.sh ROOT BUILD
set -euo pipefail
root=$1
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/prefix"
if grep -rl "$work/first\|$root" "$work/prefix" --include='*.cmake'; then
  echo "the installed package names the place it was built or first installed in"
  exit 1
fi
arguments=(-DCMAKE_PREFIX_PATH="$work/prefix;$root/.deps/usr" -DCMAKE_CUDA_ARCHITECTURES=90-real)
command -v ninja > /dev/null && arguments+=(-G Ninja)
cmake -S "$root/tests/consumer" -B "$work/build" "${arguments[@]}" > "$work/log" 2>&1 && cmake --build "$work/build" >> "$work/log" 2>&1 || { cat "$work/log"; exit 1; }

[ "$(WEIR_DEVICES=sim:2 "$work/build/consumer")" = "2 devices computed the right values" ]

# The first test of docs/how-to/test-without-a-gpu.md, verbatim: it reports the race, and nothing after the fix.
mkdir "$work/mine"
block() { awk -v kind="^\`\`\`$1\$" '$0 ~ kind && !done { on = 1; next } /^```$/ { if (on) done = 1; on = 0 } on' "$root/docs/how-to/test-without-a-gpu.md"; }
block cmake > "$work/mine/CMakeLists.txt"
block cpp > "$work/mine/my_test.cpp"
make_mine() { cmake -S "$work/mine" -B "$work/mine/build" "${arguments[@]}" > "$work/log" 2>&1 && cmake --build "$work/mine/build" >> "$work/log" 2>&1 || { cat "$work/log"; exit 1; }; }
make_mine
if "$work/mine/build/my_test" > "$work/said"; then
  echo "the page's program found nothing"
  exit 1
fi
shown=$(grep -m 1 '^race: bytes .* my_test.cpp' "$root/docs/how-to/test-without-a-gpu.md")
grep -qxF "$shown" "$work/said" || { cat "$work/said"; echo "and the page shows: $shown"; exit 1; }
sed -i 's/^  weir::parallel_for/  compute.wait(copies);\n&/' "$work/mine/my_test.cpp"
make_mine
"$work/mine/build/my_test"

# A different major version is rejected.
sed 's/weir 0.1 REQUIRED/weir 1.0 REQUIRED/' "$root/tests/consumer/CMakeLists.txt" > "$work/CMakeLists.txt"
cp "$root"/tests/consumer/*.{cpp,cu,h} "$work/"
if cmake -S "$work" -B "$work/build1" "${arguments[@]}" > "$work/log" 2>&1; then
  echo "version 0.1 answered a request for 1.0"
  exit 1
fi
grep -q 'version: 0.1.0' "$work/log" || { cat "$work/log"; exit 1; }
