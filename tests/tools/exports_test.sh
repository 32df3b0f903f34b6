#!/usr/bin/env bash
# What libweir.so exports: names that include/weir declares, weir/c.h's functions, and types of exceptions. Nothing of the insides.
# Usage: exports_test.sh ROOT BUILD
set -euo pipefail
root=$1
build=$2
library=$build/libweir.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Every word of the public headers, without comments.
sed 's|//.*||' "$root"/include/weir/*.h | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort -u > "$work/words"

# judge FILE: the names in it, demangled and one a line, that are not public.
judge() {
  awk -v words="$work/words" '
    BEGIN { while ((getline w < words) > 0) public[w] = 1 }
    function is_public(name,   parts, n, i) {
      gsub(/\[abi:[a-z0-9]*\]/, "", name)
      sub(/\(.*/, "", name)
      while (gsub(/<[^<>]*>/, "", name)) {}
      sub(/::operator[^A-Za-z_].*/, "", name)
      n = split(name, parts, "::")
      if (parts[1] != "weir") return 0
      for (i = 1; i <= n; i++) { sub(/^~/, "", parts[i]); if (!(parts[i] in public)) return 0 }
      return 1
    }
    /^weir_[a-z_]+$/ { if (!($0 in public)) print; next }
    /^(typeinfo|typeinfo name|vtable) for / {
      type = $0; sub(/^[a-z ]* for /, "", type)
      if (type !~ /^weir::(error|[a-z]+_[a-z]+(_[a-z]+)?)$/ || !is_public(type)) print
      next
    }
    !is_public($0) { print }' "$1"
}

nm -DC --defined-only "$library" | cut -c20- > "$work/exported"
judge "$work/exported" > "$work/bad"
if [ -s "$work/bad" ]; then
  echo "libweir.so exports what no public header declares:"
  cat "$work/bad"
  exit 1
fi
for wanted in 'weir::allocate(unsigned long, unsigned long, weir::source_location)' weir_allocate 'typeinfo for weir::out_of_memory' 'vtable for weir::invalid_use'; do
  grep -qxF "$wanted" "$work/exported" || { echo "libweir.so does not export $wanted"; exit 1; }
done
# Every function of weir/c.h is there.
grep -oE '\bweir_[a-z_]+\(' "$root/include/weir/c.h" | tr -d '(' | sort -u | while read -r name; do
  grep -qx "$name" "$work/exported" || { echo "weir/c.h declares $name, which libweir.so lacks"; exit 1; }
done

# The judge itself refuses insides, standard types and strangers.
printf '%s\n' 'weir::clock::find(unsigned long)' 'weir::runtime::impl::open(int)' 'std::vector<int>::~vector()' 'typeinfo for weir::driver::driver' \
  'vtable for weir::memory::allocator' 'main' 'weir_copy_mark' 'guard variable for weir::x' > "$work/insides"
[ "$(judge "$work/insides" | wc -l)" = "$(wc -l < "$work/insides")" ] || { echo "not refused:"; judge "$work/insides"; exit 1; }

# Its name says its version, and it needs no library of CUDA's.
readelf -d "$library" > "$work/dynamic"
grep -q 'SONAME.*\[libweir.so.[0-9]*.[0-9]*\]' "$work/dynamic"
if grep 'NEEDED' "$work/dynamic" | grep -E 'cuda|cublas|nccl|blas'; then
  echo "libweir.so needs a library that weir loads when it is there"
  exit 1
fi
