#!/usr/bin/env python3
"""Packs the Python package `weir` and libweir_torch.so into a wheel that pip installs.

Usage: wheel.py LIBRARY FOLDER      prints the wheel's path
The platform in its name is the oldest manylinux whose C and C++ libraries have every symbol that the library asks for.
If there is none, the name says linux, which pip installs but no index takes.
"""
import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

here = os.path.dirname(os.path.abspath(__file__))
package = os.path.join(here, "python", "weir")

# glibc's minor version: libstdc++'s newest GLIBCXX_3.4.x and CXXABI_1.3.x there (PEP 600 names a platform
# by the first).
platforms = {17: (19, 7), 24: (22, 10), 28: (24, 11), 31: (28, 12), 34: (29, 13), 35: (30, 13), 38: (32, 14),
             39: (33, 15)}
of_every_platform = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so\.\d+|ld-linux.*")


def asked_for(library):
    """The newest version of each family of symbols that the library needs, and the libraries."""
    environment = {**os.environ, "LC_ALL": "C"}
    text = subprocess.check_output(["readelf", "-dVW", library], text=True, env=environment)
    newest = {}
    for family, minor in re.findall(r"Name: (GLIBC_2|GLIBCXX_3\.4|CXXABI_1\.3)(?:\.(\d+))?", text):
        newest[family] = max(newest.get(family, 0), int(minor or 0))
    return newest, re.findall(r"\(NEEDED\).*\[(.+)\]", text)


def platform_of(library):
    newest, needed = asked_for(library)
    for name in (name for name in needed if name.startswith("libweir.so")):
        more, others = asked_for(os.path.join(os.path.dirname(library), name))
        newest = {family: max(newest.get(family, 0), more.get(family, 0)) for family in newest | more}
        needed = needed + others
    machine = platform.machine()
    strange = [name for name in needed if not of_every_platform.fullmatch(name) and not name.startswith("libweir.so")]
    wanted = [newest.get(family, 0) for family in ("GLIBC_2", "GLIBCXX_3.4", "CXXABI_1.3")]
    for glibc, (cxx, abi) in sorted(platforms.items()):
        if not strange and all(w <= has for w, has in zip(wanted, (glibc, cxx, abi))):
            return f"manylinux_2_{glibc}_{machine}"
    return f"linux_{machine}"


def files(library, work):
    """Pairs of a name in the wheel and a file."""
    for folder, inner, names in sorted(os.walk(package)):
        inner[:] = sorted(d for d in inner if d != "__pycache__")
        for name in sorted(names):
            if name.endswith((".py", ".cpp", ".h")):
                path = os.path.join(folder, name)
                yield os.path.relpath(path, os.path.dirname(package)), path
    beside = [name for name in asked_for(library)[1] if name.startswith("libweir.so")]  # the library finds it there
    for name in ["libweir_torch.so", *beside]:
        stripped = os.path.join(work, name)
        shutil.copyfile(os.path.join(os.path.dirname(library), name) if name in beside else library, stripped)
        if shutil.which("strip"):
            subprocess.run(["strip", stripped], check=True)
        yield "weir/" + name, stripped


def build(library, folder):
    sys.path.insert(0, os.path.dirname(package))
    from weir import __version__ as version

    where = platform_of(library)
    info = f"weir-{version}.dist-info"
    texts = {
        # Python runs such a file at the start of each process: WEIR_TORCH=1 puts PyTorch on weir there.
        "weir-torch.pth": "import os; os.environ.get('WEIR_TORCH') == '1' and __import__('weir._startup')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: weir\nVersion: {version}\nRequires-Python: >=3.9\n"
                            "Summary: One pool of GPU memory for PyTorch, CuPy and C++ in a process\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: weir\nRoot-Is-Purelib: false\nTag: py3-none-{where}\n",
    }
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"weir-{version}-py3-none-{where}.whl")
    records = []
    with tempfile.TemporaryDirectory() as work, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        def put(name, data, mode=0o644):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same files make the same wheel
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(data)}\n")

        for name, source in files(library, work):
            with open(source, "rb") as file:
                put(name, file.read(), 0o755 if ".so" in name else 0o644)
        for name, text in texts.items():
            put(name, text.encode())
        records.append(f"{info}/RECORD,,\n")
        entry = zipfile.ZipInfo(f"{info}/RECORD", (1980, 1, 1, 0, 0, 0))
        entry.external_attr = 0o100644 << 16
        wheel.writestr(entry, "".join(records))
    return path


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(build(sys.argv[1], sys.argv[2]))
