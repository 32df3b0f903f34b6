#!/usr/bin/env python3
"""PyTorch, CuPy and a C interface in one process take turns with 1 GiB, and share 256 MiB: what does the device hold?

Usage: one_pool.py one     all on weir: memory that one frees serves the next
       one_pool.py own     PyTorch and CuPy, each with its own pool
The turns' live peak is known: 1.25 GiB. With one pool the device holds at most 1.03 times that, which is checked;
with two pools 2.25 GiB. The numbers that the libraries compute are checked, too. Prints a line of JSON; exit status 0:
as it must be.
"""
import ctypes
import glob
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
one = sys.argv[1:] == ["one"]
if sys.argv[1:] not in (["one"], ["own"]):
    sys.exit(__doc__)

import torch  # noqa: E402

if one:
    import weir.torch

    weir.torch.install()
import cupy  # noqa: E402

if one:
    import weir.cupy

    weir.cupy.install()
    from weir import _library

    # A C or C++ extension that is linked with libweir.so shares the pool; here Python calls its C interface.
    found = glob.glob(os.path.join(os.path.dirname(_library.path()), "libweir.so.*"))
    c = ctypes.CDLL(found[0]) if found else None
else:
    c = None

GiB = 1 << 30
live = GiB + GiB // 4
shared = torch.arange(GiB // 16, device="cuda", dtype=torch.float32)  # 256 MiB, which CuPy reads in place
for turn in range(4):
    x = torch.full((GiB // 4,), float(turn), device="cuda")
    x.add_(1)
    assert x[-1].item() == turn + 1
    del x
    torch.cuda.synchronize()  # the two libraries work on one stream (CUDA's legacy one), so weir would not need it
    y = cupy.full(GiB // 8, turn, dtype=cupy.float64)
    y += 2
    assert float(y[-1]) == turn + 2
    assert float(cupy.from_dlpack(shared)[1000]) == 1000
    del y
    cupy.cuda.get_current_stream().synchronize()
    if c:
        z = ctypes.c_void_p()
        assert c.weir_allocate(ctypes.byref(z), ctypes.c_size_t(GiB), ctypes.c_size_t(0), 0, None) == 0
        assert c.weir_free(z) == 0

if one:
    stats = torch.cuda.memory_stats()
    held, told = stats["reserved_bytes.all.peak"], {"live_peak": stats["allocated_bytes.all.peak"]}
    right = stats["allocated_bytes.all.peak"] <= live + (8 << 20) and held <= 1.03 * live
else:
    mine, others = torch.cuda.max_memory_reserved(), cupy.get_default_memory_pool().total_bytes()
    held, told = mine + others, {"pytorch": mine, "cupy": others}
    right = held >= 2 * GiB
line = {"pools": sys.argv[1], "with_c": bool(c), "held": held, "times_live": round(held / live, 3)}
print(json.dumps({**line, **told, "right": right}))
sys.exit(not right)
