#include "memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace ramet {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kRegion = std::size_t{64} << 20;
constexpr std::size_t kAlignment = 4096;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

std::shared_ptr<std::byte> map_region(std::size_t bytes) {
    const std::size_t mapped = bytes + kHugePage;
    void* base = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    auto* start = reinterpret_cast<std::byte*>(
        round_up(reinterpret_cast<std::uintptr_t>(base), kHugePage));
    advise_huge_pages(start, bytes);
    return {start, [base, mapped](std::byte*) { ::munmap(base, mapped); }};
}

}  // namespace

void advise_huge_pages(void* address, std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
    const auto start = round_up(reinterpret_cast<std::uintptr_t>(address), kAlignment);
    const auto end = (reinterpret_cast<std::uintptr_t>(address) + bytes) / kAlignment * kAlignment;
    if (end > start) ::madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);
#else
    (void)address, (void)bytes;
#endif
}

Arena::Piece Arena::allocate(std::size_t bytes) {
    bytes = round_up(bytes, kAlignment);
    if (!region_ || used_ + bytes > size_) {
        size_ = bytes > kRegion ? round_up(bytes, kHugePage) : kRegion;
        region_ = map_region(size_);
        used_ = 0;
    }
    Piece piece{region_, region_.get() + used_};
    used_ += bytes;
    return piece;
}

}  // namespace ramet
