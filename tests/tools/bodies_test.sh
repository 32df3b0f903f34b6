#!/usr/bin/env bash
# Bodies that parallel_for accepts and rejects (rules of weir/parallel_for.h), by the host compiler and, if
# the build has it, by nvcc.
# Usage: bodies_test.sh ROOT BUILD
set -euo pipefail
root=$1
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
of_cache() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
host=$(of_cache CMAKE_CXX_COMPILER)
cuda=$(sed -n 's/^set(CMAKE_CUDA_COMPILER "\(.*\)")/\1/p' "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake 2> /dev/null | head -n 1 || true)

by_host() { "$host" -std=c++20 -fsyntax-only -I"$root/include" -x c++ "$1" > "$work/said" 2>&1; }
by_nvcc() { "$cuda" -std=c++20 --extended-lambda --expt-relaxed-constexpr -arch=sm_90 -I"$root/include" "$@" -o /dev/null > "$work/said" 2>&1; }
fail() { cat "$work/said"; echo "$1"; exit 1; }

cat > "$work/right.cu" << 'END'
#include <tuple>
#include "weir/parallel_for.h"
struct pairs { std::pair<float*, int> p; std::tuple<int, float> t; WEIR_HOST_DEVICE void operator()(size_t i) const { p.first[i] = 1; } };
struct with_a_member { void go(weir::stream_ref s, float* p) { weir::parallel_for(s, 4, {}, [p] WEIR_HOST_DEVICE(size_t i) { p[i] = 1; }); } };
void go(weir::stream_ref s, float* p) {
  int const a[3] = {1, 2, 3};
  weir::parallel_for(s, 4, {}, [p, a] WEIR_HOST_DEVICE(size_t i) { p[i] = static_cast<float>(a[i % 3]); });
  weir::parallel_for(s, 4, {}, [=] WEIR_HOST_DEVICE(size_t i) { p[i] = 1; });
  weir::parallel_for(s, 4, {}, pairs{{p, 1}, {1, 1.0f}});
  [&] { weir::parallel_for(s, 4, {}, [p] WEIR_HOST_DEVICE(size_t i) { p[i] = 1; }); }();
  with_a_member().go(s, p);
}
END
cat > "$work/owns.cu" << 'END'
#include <vector>
#include "weir/parallel_for.h"
struct body { std::vector<int> v; WEIR_HOST_DEVICE void operator()(size_t) const {} };
void go(weir::stream_ref s) { weir::parallel_for(s, 4, {}, body{}); }
END
cat > "$work/captures.cu" << 'END'
#include <vector>
#include "weir/parallel_for.h"
void go(weir::stream_ref s, float* p) {
  std::vector<float> const v(3);
  weir::parallel_for(s, 3, {}, [p, v] WEIR_HOST_DEVICE(size_t i) { p[i] = v[i]; });
}
END
for wrong in owns captures; do
  ! by_host "$work/$wrong.cu" || fail "$wrong.cu compiles"
  grep -q 'parallel_for: this body owns something' "$work/said" || fail "and says nothing of the body"
done
by_host "$work/right.cu" || fail "right.cu is refused"
[ -n "$cuda" ] || exit 0

for wrong in owns captures; do
  ! by_nvcc -ptx "$work/$wrong.cu" || fail "nvcc compiles $wrong.cu"
  grep -q 'parallel_for: this body owns something' "$work/said" || fail "and says nothing of the body"
done
by_nvcc -c "$work/right.cu" || fail "nvcc refuses right.cu"

# One line per rule; nvcc reports all at once.
cat > "$work/rules.cu" << 'END'
#include "weir/parallel_for.h"
using weir::parallel_for;
weir::stream_ref const& s();
void init_capture(float* p) { parallel_for(s(), 4, {}, [x = p] WEIR_HOST_DEVICE(size_t i) { x[i] = 1; }); }
void reference(float* p) { parallel_for(s(), 4, {}, [&] WEIR_HOST_DEVICE(size_t i) { p[i] = 1; }); }
template <class... T> void pack(T... t) { parallel_for(s(), 4, {}, [t...] WEIR_HOST_DEVICE(size_t i) { ((t[i] = 1), ...); }); }
void local_type(float* p) { struct local { float* p; } x{p}; parallel_for(s(), 4, {}, [x] WEIR_HOST_DEVICE(size_t i) { x.p[i] = 1; }); }
class private_type { struct own { float* p; }; void go(own); public: void run(own x) { parallel_for(s(), 4, {}, [x] WEIR_HOST_DEVICE(size_t i) { x.p[i] = 1; }); } };
template <bool B> void if_constexpr(float* p) { parallel_for(s(), 4, {}, [=] WEIR_HOST_DEVICE(size_t i) { if constexpr (B) p[i] = 1; }); }
void generic(float* p) { parallel_for(s(), 4, {}, [p] WEIR_HOST_DEVICE(auto i) { p[i] = 1; }); }
struct constructor { explicit constructor(float* p) { parallel_for(s(), 4, {}, [p] WEIR_HOST_DEVICE(size_t i) { p[i] = 1; }); } };
class private_function { void go(float* p) { parallel_for(s(), 4, {}, [p] WEIR_HOST_DEVICE(size_t i) { p[i] = 1; }); } };
auto deduced(float* p) { parallel_for(s(), 4, {}, [p] WEIR_HOST_DEVICE(size_t i) { p[i] = 1; }); return 1; }
void in_a_generic_one(float* p) { [p](auto) { parallel_for(s(), 4, {}, [p] WEIR_HOST_DEVICE(size_t i) { p[i] = 1; }); }(1); }
void in_one_marked(float* p) { parallel_for(s(), 4, {}, [p] WEIR_HOST_DEVICE(size_t i) { [p] WEIR_HOST_DEVICE(size_t j) { p[j] = 1; }(i); }); }
auto const outside = [](float* p) { parallel_for(s(), 4, {}, [p] WEIR_HOST_DEVICE(size_t i) { p[i] = 1; }); };
void all(float* p) { pack(p, p); if_constexpr<true>(p); }
END
! by_nvcc -ptx "$work/rules.cu" || fail "nvcc compiles what weir/parallel_for.h says it refuses"
for line in $(seq 4 16); do
  grep -q "rules.cu($line): error" "$work/said" || fail "nvcc takes line $line of rules.cu: $(sed -n "${line}p" "$work/rules.cu")"
done
