#!/usr/bin/env python3
"""Runs a PyTorch program, and prints its peaks of device memory as a line of JSON.

Usage: peak_memory.py PROGRAM.py [ARGS...]                      on the allocator that PyTorch is configured for
       python -m weir.torch peak_memory.py PROGRAM.py [ARGS...] on weir
peak_requested: bytes that the program asked for and had in use at once, as the allocator counts them. peak_reserved: bytes that
the allocator took from the device. Both of the device with the largest peak.
Exit status: 0; 1 if the program failed; 2 for a wrong argument.
"""
import json
import os
import runpy
import sys


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    import torch

    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            return 1
    torch.cuda.synchronize()
    all_devices = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
    most = max(all_devices, key=lambda of: of.get("reserved_bytes.all.peak", 0))
    print(json.dumps({"peak_requested": most["requested_bytes.all.peak"], "peak_reserved": most["reserved_bytes.all.peak"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
