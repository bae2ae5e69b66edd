// Which instruction sets this process may use.
#pragma once

namespace ramet {

// In rising order: a machine that has one has all below it.
enum class Isa : int { portable = 0, avx2 = 1, avx512 = 2, avx512_bf16 = 3, amx = 4 };

// The best instruction set of the processor that the operating system lets this process use. Asks
// Linux for permission to use tiles, once per process.
Isa best_isa();

// Dot products of bytes: of Cascade Lake and Ice Lake, not of Skylake, and of all that have avx512_bf16.
bool has_avx512_vnni();

}  // namespace ramet
