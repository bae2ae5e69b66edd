#include "features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <cstdint>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace ramet {

#if defined(__x86_64__)
namespace {

struct Leaf {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
    Leaf result;
    __get_cpuid_count(leaf, subleaf, &result.a, &result.b, &result.c, &result.d);
    return result;
}

bool bit(unsigned word, int index) { return (word >> index) & 1u; }

std::uint64_t enabled_state() {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
}

bool may_use_tiles() {
#if defined(__linux__)
    constexpr long kRequestPermission = 0x1023;
    constexpr long kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

Isa detect() {
    const Leaf basic = cpuid(1, 0);
    if (!bit(basic.c, 27)) return Isa::portable;  // OSXSAVE
    const std::uint64_t state = enabled_state();
    const Leaf extended = cpuid(7, 0);
    const Leaf more = cpuid(7, 1);
    // FMA, F16C, AVX2.
    const bool avx2 = (state & 0x6) == 0x6 && bit(basic.c, 12) && bit(basic.c, 29) &&
                      bit(extended.b, 5);
    if (!avx2) return Isa::portable;
    // F, DQ, BW, VL, with opmask and zmm state enabled.
    const bool avx512 = (state & 0xe6) == 0xe6 && bit(extended.b, 16) && bit(extended.b, 17) &&
                        bit(extended.b, 30) && bit(extended.b, 31);
    if (!avx512) return Isa::avx2;
    // BF16, VNNI.
    if (!bit(more.a, 5) || !bit(extended.c, 11)) return Isa::avx512;
    // Tiles, of bfloat16, of bytes.
    const bool tiles = (state & 0x60000) == 0x60000 && bit(extended.d, 24) && bit(extended.d, 22) &&
                       bit(extended.d, 25);
    return tiles && may_use_tiles() ? Isa::amx : Isa::avx512_bf16;
}

// Intel's cores since Golden Cove (those with half-precision arithmetic) start one vdpbf16ps in four times the
// cycles of a vfmadd231ps, of which two do the same work: 1.4 against 5.6 of them in a nanosecond, measured
// on Emerald Rapids. There tiles are what multiplies bfloat16; a virtual machine may hide them.
bool has_slow_pair_products() {
    const Leaf vendor = cpuid(0, 0);
    const bool intel = vendor.b == 0x756e6547 && vendor.d == 0x49656e69 && vendor.c == 0x6c65746e;
    return intel && bit(cpuid(7, 0).d, 23);
}

}  // namespace

Isa best_isa() {
    static const Isa isa = detect();
    return isa;
}

Isa fastest_isa() {
    const Isa isa = best_isa();
    return isa == Isa::avx512_bf16 && has_slow_pair_products() ? Isa::avx512 : isa;
}

bool has_avx512_vnni() { return best_isa() >= Isa::avx512 && bit(cpuid(7, 0).c, 11); }

#else

Isa best_isa() { return Isa::portable; }

Isa fastest_isa() { return Isa::portable; }

bool has_avx512_vnni() { return false; }

#endif

}  // namespace ramet
