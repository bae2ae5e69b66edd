"""Native CPU kernels: C++ in src/, built as `_native`; `kernels.CpuKernels` puts them behind `ops`."""
