// Which instruction sets this process may use.
#pragma once

namespace ramet {

// In rising order: a machine that has one has all below it.
enum class Isa : int { portable = 0, avx2 = 1, avx512 = 2, avx512_bf16 = 3, amx = 4 };

// The highest instruction set of the processor that the operating system lets this process use. Asks
// Linux for permission to use tiles, once per process.
Isa best_isa();

// The one that computes soonest: the highest, unless that is avx512_bf16 on a processor whose dot products of
// bfloat16 pairs take longer than the multiply-adds that they stand for.
Isa fastest_isa();

// Dot products of bytes: of Cascade Lake and Ice Lake, not of Skylake, and of all that have avx512_bf16.
bool has_avx512_vnni();

}  // namespace ramet
