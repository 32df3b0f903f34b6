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

# A system call with pinned bytes in use: with the library that knows it, linked or preloaded, weir static or shared.
mkdir "$work/calls"
cat > "$work/calls/main.cpp" <<'END'
#include <unistd.h>
#include <cstdio>
#include "weir/copy.h"
#include "weir/observe.h"
#include "weir/sim.h"
int main() {
  weir::runtime rt{weir::simulated{.devices = 1, .schedule = weir::simulated::scheduling::stepped}, {.check_races = true}};
  weir::runtime_guard const in{rt};
  weir::stream const s;
  weir::buffer const host = weir::pinned(4096), x(s, 4096);
  weir::fill(s, x.data(), std::byte{7}, 4096);
  weir::copy(s, host.data(), x.data(), 4096, weir::non_blocking);
  int pipe[2];
  bool const works = ::pipe(pipe) == 0 && ::write(pipe[1], host.data(), 4096) == 4096;
  std::printf("%d %zu %d\n", works, weir::race_reports().size(), weir::races_not_judged().empty());
  s.synchronize();
}
END
cat > "$work/calls/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(calls LANGUAGES CXX)
find_package(weir 0.1 REQUIRED)
foreach(weir weir shared)
  add_executable(${weir}_alone main.cpp)
  target_link_libraries(${weir}_alone PRIVATE weir::${weir})
  add_executable(${weir}_linked main.cpp)
  target_link_libraries(${weir}_linked PRIVATE weir::${weir} weir::system_calls)
endforeach()
END
{ cmake -S "$work/calls" -B "$work/calls/build" "${arguments[@]}" && cmake --build "$work/calls/build"; } > "$work/log" 2>&1 ||
  { cat "$work/log"; exit 1; }
preload=$(find "$work/prefix" -name libweir_system_calls.so)
for weir in weir shared; do
  alone=$work/calls/build/${weir}_alone
  for run in "0 0 0:$alone" "1 1 1:$work/calls/build/${weir}_linked" "1 1 1:env LD_PRELOAD=$preload $alone"; do
    said=$(${run#*:})
    [ "$said" = "${run%%:*}" ] || { echo "${run#*:}: the call works, reports, all was judged: $said, not ${run%%:*}"; exit 1; }
  done
done

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
  for file in include/weir/c.h include/weir/memory.h /libweir.so /libweir.a /libweir_system_calls.so weir.pc weir-config.cmake bin/weir README.md; do
    grep -q "$file" "$work/inside" || { echo "the Debian package lacks $file"; exit 1; }
  done
fi

# The program of docs/tutorial/find-a-race.md, as written there: it finds the race it shows, and none once it is mended.
mkdir "$work/mine"
page=$root/docs/tutorial/find-a-race.md
block() { awk -v kind="^\`\`\`$1\$" '$0 ~ kind && !done { on = 1; next } /^```$/ { if (on) done = 1; on = 0 } on' "$page"; }
block cmake > "$work/mine/CMakeLists.txt"
# Whole programs and parts of programs on pages (page_programs). Those of kind `cuda` are compiled alone, by nvcc.
with_cuda=no
! grep -q 'WEIR_BUILT_WITH_CUDA \(ON\|1\|TRUE\))' "$work/prefix"/lib*/cmake/weir/weir-config.cmake "$work/prefix"/lib/*/cmake/weir/weir-config.cmake 2> /dev/null || with_cuda=yes
"$root/tests/tools/page_programs" "$root" "$work/mine"
echo 'include_directories(.)' >> "$work/mine/CMakeLists.txt"
while read -r file kind _; do
  target=${file%.*}
  case $kind.$with_cuda.$file in
    cuda.no.*) continue ;;
    cuda.*) echo "add_library($target OBJECT)" ;;
    runs.*) echo "add_executable($target)" ;;
    fails.*) continue ;;  # by the page's own CMakeLists.txt
  esac
  [[ $file == *.cpp ]] && echo "target_sources($target PRIVATE $file)" || echo "weir_kernels($target $file)"
  echo "target_link_libraries($target PRIVATE weir::weir)"
done < "$work/mine/list" >> "$work/mine/CMakeLists.txt"
make_mine() { cmake -S "$work/mine" -B "$work/mine/build" "${arguments[@]}" > "$work/log" 2>&1 && cmake --build "$work/mine/build" >> "$work/log" 2>&1 || { cat "$work/log"; exit 1; }; }
make_mine
while read -r file kind output; do
  [ "$kind" = runs ] || continue
  (cd "$work/mine/build" && WEIR_DEVICES=sim:2 "./${file%.*}" > "$work/said" 2>&1) && [[ $(cat "$work/said") == *"$output" ]] || { cat "$work/said"; echo "a page shows $file, which fails, or does not print '$output'"; exit 1; }
done < "$work/mine/list"
if "$work/mine/build/my_test" > "$work/said"; then
  echo "the page's program found nothing"
  exit 1
fi
shown=$(grep -m 1 '^race: bytes .* my_test.cpp' "$root/docs/tutorial/find-a-race.md")
grep -qxF "$shown" "$work/said" || { cat "$work/said"; echo "and the page shows: $shown"; exit 1; }
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
