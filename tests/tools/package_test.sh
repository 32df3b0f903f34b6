#!/usr/bin/env bash
# Installs weir into an empty prefix and builds tests/consumer against it, as a stranger's project would.
# Then the install is moved, and must still be found: nothing in it may name the place it was first put.
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

# A version of another major number is not this package.
sed 's/weir 0.1 REQUIRED/weir 1.0 REQUIRED/' "$root/tests/consumer/CMakeLists.txt" > "$work/CMakeLists.txt"
cp "$root"/tests/consumer/*.{cpp,cu,h} "$work/"
if cmake -S "$work" -B "$work/build1" "${arguments[@]}" > "$work/log" 2>&1; then
  echo "version 0.1 answered a request for 1.0"
  exit 1
fi
grep -q 'version: 0.1.0' "$work/log" || { cat "$work/log"; exit 1; }
