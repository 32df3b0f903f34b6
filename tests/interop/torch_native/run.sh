#!/usr/bin/env bash
# Compiles the allocator and its cases against the PyTorch that TORCH_ROOT names (the folder `torch` of an
# installed wheel, with include/ and lib/), and runs them. Without a GPU they run on simulated devices.
# Usage: run.sh SOURCE LIBWEIR_TORCH [GTEST ARGS...]      CUDA_HOME: the toolkit; SANITIZE: thread, address
# exit status: the cases'; 77: TORCH_ROOT is not set
set -euo pipefail
[ -n "${TORCH_ROOT:-}" ] || { echo "TORCH_ROOT names no PyTorch: skipped"; exit 77; }
source=$1 door=$2 root=$TORCH_ROOT cuda=${CUDA_HOME:-/usr/local/cuda}
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
native=$source/interop/torch/python/weir/torch
read -ra flags <<< "$(python3 "$native/_native.py" "$root/include")"
flags+=(-std=c++17 -O1 -g -Wall -Wextra -I"$source" -isystem "$root/include" -isystem "$cuda/include"
  -D_GLIBCXX_USE_CXX11_ABI="${TORCH_CXX11_ABI:-1}" ${SANITIZE:+-fsanitize=$SANITIZE})
libraries=(-L"$root/lib" -lc10 -lc10_cuda -L"$cuda/lib64" -lcudart -Wl,-rpath,"$root/lib:$cuda/lib64")
if [ ! -e /dev/nvidiactl ]; then
  export WEIR_DEVICES=sim:1:1
  ${CXX:-c++} -O1 -shared -fPIC -isystem "$cuda/include" -x c++ \
    "$source/tests/interop/torch_native/no_gpu_runtime.cu" -o "$work/libnone.so"
  libraries=(-L"$work" -Wl,--no-as-needed -lnone -Wl,-rpath,"$work" "${libraries[@]}")  # found before the toolkit's
fi
${CXX:-c++} "${flags[@]}" -shared -fPIC -fvisibility=hidden "$native/native/allocator.cpp" -o "$work/libnative.so" \
  "${libraries[@]}"
${CXX:-c++} "${flags[@]}" -DWEIR_TORCH_LIBRARY="\"$door\"" -DWEIR_TORCH_NATIVE="\"$work/libnative.so\"" \
  "$source"/tests/interop/torch_native/{cases,pool_cases}.cpp -o "$work/cases" "${libraries[@]}" \
  -lgtest -lgtest_main -lpthread -ldl
"$work/cases" "$@"
