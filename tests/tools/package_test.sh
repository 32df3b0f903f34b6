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
if [ "$(readelf -d "$build/libweir.so" | grep -c 'NEEDED.*blas')" = 0 ] && grep -q CBLAS "$work/build/CMakeCache.txt"; then
  echo "find_package(weir) looks for a CBLAS, which weir loads when there is one"
  exit 1
fi

# A program and its plugin over the shared library.
mkdir "$work/two"
cp "$root"/tests/interop/shared/*.cpp "$work/two/"
cat > "$work/two/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(two LANGUAGES CXX)
find_package(weir 0.1 REQUIRED)
add_executable(program main.cpp)
add_library(plugin MODULE plugin.cpp)
target_link_libraries(program PRIVATE weir::shared ${CMAKE_DL_LIBS})
target_link_libraries(plugin PRIVATE weir::shared)
END
cmake -S "$work/two" -B "$work/two/build" "${arguments[@]}" > "$work/log" 2>&1 && cmake --build "$work/two/build" >> "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
[ "$(WEIR_DEVICES=sim:1 "$work/two/build/program" "$work/two/build/libplugin.so")" = "one runtime serves the program and its plugin" ]

# The C program of docs/reference/c-interface.md, as its page says to build it.
if command -v pkg-config > /dev/null; then
  mkdir "$work/c"
  awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$root/docs/reference/c-interface.md" > "$work/c/program.c"
  export PKG_CONFIG_PATH
  PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name weir.pc)")
  libraries=$(pkg-config --variable=libdir weir)
  (cd "$work/c" && ${CC:-cc} -std=c99 -pedantic -Wall -Werror program.c $(pkg-config --cflags --libs weir) -o program)
  [ "$(WEIR_DEVICES=sim:1 LD_LIBRARY_PATH=$libraries "$work/c/program")" = "there and back; 0 blocks are left" ]
  [ "$(pkg-config --modversion weir)" = 0.1.0 ]
fi
find "$work/prefix" -path '*/doc/*/README.md' | grep -q . || { echo "no document was installed"; exit 1; }

# A Debian package has the same.
if command -v dpkg-deb > /dev/null; then
  (cd "$build" && cpack -G DEB -B "$work/deb") > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  dpkg-deb -c "$work"/deb/*.deb > "$work/inside"
  for file in include/weir/c.h include/weir/memory.h /libweir.so /libweir.a weir.pc weir-config.cmake bin/weir README.md; do
    grep -q "$file" "$work/inside" || { echo "the Debian package lacks $file"; exit 1; }
  done
fi

# The program of docs/tutorial/find-a-race.md, as written there: it finds the race it shows, and none once it is mended.
mkdir "$work/mine"
page=$root/docs/tutorial/find-a-race.md
block() { awk -v kind="^\`\`\`$1\$" '$0 ~ kind && !done { on = 1; next } /^```$/ { if (on) done = 1; on = 0 } on' "$page"; }
block cmake > "$work/mine/CMakeLists.txt"
block cpp > "$work/mine/my_test.cpp"
# A block of any page after <!-- program: NAME --> is a whole program, which runs here on simulated devices. With `cuda` behind
# the name it needs a GPU, and is compiled only.
with_cuda=no
! grep -q 'WEIR_BUILT_WITH_CUDA \(ON\|1\|TRUE\))' "$work/prefix"/lib*/cmake/weir/weir-config.cmake "$work/prefix"/lib/*/cmake/weir/weir-config.cmake 2> /dev/null || with_cuda=yes
programs=0
to_run=()
while IFS=: read -r file mark; do
  read -r _ _ name cuda _ <<< "$mark"
  [ "$cuda" != cuda ] || [ $with_cuda = yes ] || continue
  programs=$((programs + 1))
  awk -v mark="$mark" '$0 == mark { wait = 1; next } wait && /^```/ { on = !on; if (!on) exit; next } on' "$file" > "$work/mine/$name"
  if [ "$cuda" = cuda ]; then
    printf 'add_library(program%s OBJECT)\ntarget_link_libraries(program%s PRIVATE weir::weir)\nweir_kernels(program%s %s)\n' $programs $programs $programs "$name"
  else
    printf 'add_executable(program%s)\ntarget_link_libraries(program%s PRIVATE weir::weir)\nweir_kernels(program%s %s)\n' $programs $programs $programs "$name"
    to_run+=("program$programs")
  fi >> "$work/mine/CMakeLists.txt"
done < <(grep -r --include='*.md' '^<!-- program: .* -->$' "$root/README.md" "$root/docs")
[ $programs -ge 1 ] || { echo "no page has a program"; exit 1; }
make_mine() { cmake -S "$work/mine" -B "$work/mine/build" "${arguments[@]}" > "$work/log" 2>&1 && cmake --build "$work/mine/build" >> "$work/log" 2>&1 || { cat "$work/log"; exit 1; }; }
make_mine
for program in "${to_run[@]}"; do  # a printed figure beside the expected one is that one
  said=$(WEIR_DEVICES=sim:2 "$work/mine/build/$program") || { echo "$program of a page ended with status $?: $said"; exit 1; }
  [[ ! $said =~ ([0-9.]+),\ expected\ ([0-9.]+) || ${BASH_REMATCH[1]} = "${BASH_REMATCH[2]}" ]] || { echo "$program of a page: $said"; exit 1; }
done
if "$work/mine/build/my_test" > "$work/said"; then
  echo "the page's program found nothing"
  exit 1
fi
shown=$(grep -m 1 '^race: bytes .* my_test.cpp' "$root/docs/tutorial/find-a-race.md")
grep -qxF "$shown" "$work/said" || { cat "$work/said"; echo "and the page shows: $shown"; exit 1; }
# The README shows two lines of it.
sed -n '/^## A race/,/^## How/p' "$root/README.md" | sed -n '/^```cpp/,/^```$/p' | grep -v '^```' | while IFS= read -r line; do
  grep -qxF -- "$line" "$work/mine/my_test.cpp" || { echo "README.md shows a line that the program has not: $line"; exit 1; }
done
sed -i 's/^  weir::parallel_for/  compute.wait(copies);\n&/' "$work/mine/my_test.cpp"
make_mine
"$work/mine/build/my_test"

# A version of another major number is not this package.
sed 's/weir 0.1 REQUIRED/weir 1.0 REQUIRED/' "$root/tests/consumer/CMakeLists.txt" > "$work/CMakeLists.txt"
cp "$root"/tests/consumer/*.{cpp,cu,h} "$work/"
if cmake -S "$work" -B "$work/build1" "${arguments[@]}" > "$work/log" 2>&1; then
  echo "version 0.1 answered a request for 1.0"
  exit 1
fi
grep -q 'version: 0.1.0' "$work/log" || { cat "$work/log"; exit 1; }
