"""The native CPU kernels as an optional extension: without a C++ compiler the rest installs all the same.

Everything else about the package is in pyproject.toml. Build in place with
`python setup.py build_ext --inplace`.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from pybind11 import get_include
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("kernels/cpu/src")
COMMON_FLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-Wall",
    "-Wextra",
    # GCC 12 takes the undefined operands in its own AVX-512 header for a mistake.
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-fvisibility=hidden",
    # A contracted product would make a bit depend on how the compiler arranged a loop.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-pthread",
]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]
# Only these files may hold such instructions; which of them runs is decided by the processor.
ISA_FLAGS = {
    "isa_avx2.cpp": _AVX2,
    "isa_avx512.cpp": _AVX512,
    "isa_avx512_vnni.cpp": [*_AVX512, "-mavx512vnni"],
    "isa_avx512_bf16.cpp": [*_AVX512, "-mavx512bf16", "-mavx512vnni"],
    "isa_amx.cpp": [
        *_AVX512,
        "-mavx512bf16",
        "-mavx512vnni",
        "-mamx-tile",
        "-mamx-bf16",
        "-mamx-int8",
    ],
}


class BuildNative(build_ext):
    """Compiles each file with the flags of its instruction set, unchanged files not again."""

    def build_extension(self, ext: Extension) -> None:
        objects = []
        for source in ext.sources:
            flags = ISA_FLAGS.get(Path(source).name, []) if is_x86() else []
            objects += self._compile(ext, source, flags)
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(ext.name),
            extra_postargs=["-pthread"],
            build_temp=self.build_temp,
            target_lang="c++",
        )

    def _compile(self, ext: Extension, source: str, flags: list[str]) -> list[str]:
        objects = self.compiler.object_filenames([source], output_dir=self.build_temp)
        newest = max(Path(path).stat().st_mtime for path in [source, *ext.depends])
        if all(Path(path).exists() and Path(path).stat().st_mtime > newest for path in objects):
            return objects
        return self.compiler.compile(
            [source],
            output_dir=self.build_temp,
            include_dirs=ext.include_dirs,
            extra_postargs=[*COMMON_FLAGS, *flags],
            depends=[source],
        )


def is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def extensions() -> list[Extension]:
    if sys.platform == "win32":
        return []
    return [
        Extension(
            "ramet.kernels.cpu._native",
            sources=sorted(str(path) for path in SOURCE.glob("*.cpp")),
            depends=sorted(str(path) for path in SOURCE.glob("*.h")),
            include_dirs=[get_include()],
            language="c++",
            optional=True,
        )
    ]


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildNative})
