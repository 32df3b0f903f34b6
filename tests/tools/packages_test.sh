#!/usr/bin/env bash
# tools/packages with stubs for the system's commands: its requests to apt, without any removal.
# Usage: packages_test.sh ROOT
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
triple=$(uname -m)-linux-gnu
fail() { echo "FAILED: $1"; cat "$work/out" "$work/calls" 2> /dev/null; failed=$((failed + 1)); }

# A machine with compilers and GoogleTest. Files hold apt's answers: `conflicts` lists packages that conflict.
machine() {
  rm -rf "$work/bin" "$work/system" "$work/deps" "$work/conflicts" "$work/calls"
  mkdir -p "$work/bin" "$work/system/usr/include/"{gtest,benchmark,"$triple"} "$work/system/usr/lib/$triple"
  touch "$work/system/usr/include/gtest/gtest.h" "$work/system/usr/lib/$triple/libgtest.a" "$work/system/usr/include/benchmark/benchmark.h" \
    "$work/system/usr/include/$triple/cblas.h" "$work/system/usr/lib/$triple/libopenblas.so" "$work/system/usr/include/zlib.h" "$work/conflicts" "$work/calls"
  printf '#!/bin/sh\necho 12\n' > "$work/bin/c++"
  printf '#!/bin/sh\necho cmake version 3.25.1\n' > "$work/bin/cmake"
  printf '#!/bin/sh\n' > "$work/bin/ninja"
  printf '#!/bin/sh\n[ "$1" = -u ] && echo 0\n' > "$work/bin/id"
  cat > "$work/bin/apt-cache" <<STUB
#!/bin/sh
for name; do :; done
case \$name in libboost-dev) echo "  Candidate: \$(cat $work/boost)" ;; libopenblas-dev) echo "  Candidate: \$(cat $work/openblas)" ;; *) echo "  Candidate: 1.81" ;; esac
STUB
  cat > "$work/bin/apt-get" <<STUB
#!/bin/bash
echo "apt-get \$*" >> $work/calls
case " \$* " in
  *" -s install "*)
    for name in \$(cat $work/conflicts); do
      if [[ " \$* " == *" \$name "* ]]; then
        [[ " \$* " != *" --no-remove "* ]] || exit 100
        echo "Remv libboost1.74-dev"; echo "Inst \$name"; echo "Inst libneeded"
      fi
    done ;;
  *" install "*) $work/bin/give $work/system ;;
  *" download "*) touch one.deb ;;
esac
exit 0
STUB
  printf '#!/bin/sh\necho "dpkg $*" >> %s/calls\n%s/bin/give $3\n' "$work" "$work" > "$work/bin/dpkg"
  cat > "$work/bin/give" <<STUB
#!/bin/sh
mkdir -p \$1/usr/include/boost \$1/usr/lib/$triple
echo '#define BOOST_VERSION 108100' > \$1/usr/include/boost/version.hpp
touch \$1/usr/lib/$triple/libboost_program_options.a \$1/usr/lib/$triple/libopenblas.so
STUB
  chmod +x "$work"/bin/*
  echo 1.74.0.3 > "$work/boost"
  echo 0.3.21 > "$work/openblas"
}
packages() {
  PATH="$work/bin:/usr/bin:/bin" WEIR_DEPS=$work/deps WEIR_SYSTEM_ROOT=$work/system "$root/tools/packages" "$@" > "$work/out" 2>&1
}
asked() { grep -q -- "$1" "$work/calls"; }

machine
packages build || fail "missing packages are installed"
asked 'install -y --no-remove .*libboost1.81-dev libboost-program-options1.81-dev' || fail "Debian 12 gets the Boost beside its default one"
! asked 'libgtest-dev' || fail "what is there is not installed again"
: > "$work/calls"
packages build || fail "a second call succeeds"
[ ! -s "$work/calls" ] && [ ! -s "$work/out" ] || fail "a second call asks apt nothing and says nothing"

machine
echo 1.83.0 > "$work/boost"
packages build || fail "newer systems install"
asked 'install -y --no-remove .*libboost-dev libboost-program-options-dev' || fail "a newer system's default Boost is taken"

machine
mkdir -p "$work/system/usr/include/boost"
echo '#define BOOST_VERSION 107400' > "$work/system/usr/include/boost/version.hpp"
touch "$work/system/usr/lib/$triple/libboost_program_options.a"
echo libboost1.81-dev > "$work/conflicts"
packages build || fail "a Boost that excludes another is unpacked"
! asked 'install -y' || fail "nothing is installed when that would remove a package"
asked 'download libboost1.81-dev libneeded' || fail "a package comes with what it needs"
asked "dpkg -x .*one.deb $work/deps" || fail "packages are unpacked into .deps"
grep -q '107400' "$work/system/usr/include/boost/version.hpp" || fail "the installed Boost stays"
! grep install "$work/calls" | grep -v -- ' -s ' | grep -qv -- --no-remove || fail "every installation forbids removals"

machine
printf '#!/bin/sh\n[ "$1" = -u ] && echo 1000\n' > "$work/bin/id"
printf '#!/bin/sh\nexit 1\n' > "$work/bin/sudo"
chmod +x "$work/bin/sudo"
packages build < /dev/null || fail "without root packages are unpacked"
asked 'dpkg -x' && ! asked 'install -y' || fail "without root nothing is installed"

machine
printf '#!/bin/sh\n[ "$1" = -u ] && echo 1000\n' > "$work/bin/id"
printf '#!/bin/sh\nexit 1\n' > "$work/bin/sudo"
printf '#!/bin/sh\necho 9\n' > "$work/bin/c++"
chmod +x "$work/bin/"*
if packages build < /dev/null; then fail "an old compiler that cannot be replaced is an error"; fi
grep -q 'apt-get install g++' "$work/out" || fail "the error says what to ask for"

reference_blas() {  # a machine with only the reference BLAS, and nothing else missing
  machine
  "$work/bin/give" "$work/system"
  rm "$work/system/usr/lib/$triple/libopenblas.so"
  touch "$work/system/usr/lib/$triple/libblas.so"
}
reference_blas
packages build || fail "OpenBLAS is installed beside the reference BLAS"
asked 'install -y --no-remove .*libopenblas-dev' || fail "the reference BLAS is not taken for OpenBLAS"
reference_blas
echo '(none)' > "$work/openblas"
packages build || fail "where OpenBLAS cannot be had the reference BLAS serves"
grep -q 'ten times' "$work/out" || fail "it is said that products will be slow"

# Another version of clang-format is none.
machine
printf '#!/bin/sh\necho clang-format version 15.0.7\n' | tee "$work/bin/clang-format" > "$work/bin/clang-format-14"
chmod +x "$work"/bin/*
if packages format; then fail "a clang-format that is still missing is an error"; fi
asked 'install -y --no-remove .*clang-format-14' || fail "clang-format 14 is installed beside another version"
grep -q 'still missing after the installation: clang_format' "$work/out" || fail "and the error names it"
: > "$work/calls"
printf '#!/bin/sh\necho Debian clang-format version 14.0.6\n' > "$work/bin/clang-format"
packages format && [ ! -s "$work/calls" ] || fail "a clang-format 14 of any name will do"

machine
if packages libtorch; then fail "LibTorch that is still missing is an error"; fi
asked 'install -y --no-remove .*libtorch-dev' || fail "LibTorch is installed on request"
: > "$work/calls"
mkdir -p "$work/system/usr/include/torch/csrc/api/include/torch"
touch "$work/system/usr/include/torch/csrc/api/include/torch/torch.h"
packages libtorch && [ ! -s "$work/calls" ] || fail "a LibTorch that is there will do"

if packages frobnicate; then fail "an unknown group is refused"; fi

[ "$failed" = 0 ] || { echo "$failed cases failed"; exit 1; }
