// Functions of vectors in terms of a Simd: exponentials, tanh, the activations, and partial loads.
#pragma once

#include "common.h"

namespace ramet {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// 2^x, within 2 units in the last place; 0 below 2^-126, infinity from 2^128. Source: the polynomial of Cephes' exp2f.
template <class S>
typename S::Reg exp2(typename S::Reg x) {
    // x comes second: of an unordered pair, the instructions return the second, and a NaN stays one.
    const auto bounded = S::min(S::set1(128.0f), S::max(S::set1(-200.0f), x));
    const auto n = S::round(bounded);
    const auto r = S::sub(bounded, n);
    auto p = S::set1(1.535336188319500e-4f);
    p = S::fma(p, r, S::set1(1.339887440266574e-3f));
    p = S::fma(p, r, S::set1(9.618437357674640e-3f));
    p = S::fma(p, r, S::set1(5.550332471162809e-2f));
    p = S::fma(p, r, S::set1(2.402264791363012e-1f));
    p = S::fma(p, r, S::set1(6.931472028550421e-1f));
    p = S::fma(p, r, S::set1(1.0f));
    return S::scale_by_power(p, n);
}

// 2^x for x <= 0 within 2^-17, far below the rounding of a bfloat16; 0 below 2^-126 and for -infinity.
template <class S>
typename S::Reg exp2_near(typename S::Reg x) {
    const auto r = S::fraction(x);
    auto p = S::set1(1.3426785357e-2f);
    p = S::fma(p, r, S::set1(5.2242312580e-2f));
    p = S::fma(p, r, S::set1(2.4128028750e-1f));
    p = S::fma(p, r, S::set1(6.9304484129e-1f));
    p = S::fma(p, r, S::set1(1.0f));
    return S::scale_by_floor(p, x);
}

template <class S>
typename S::Reg tanh(typename S::Reg x) {
    const auto e = exp2<S>(S::mul(x, S::set1(2.0f * kLog2E)));
    const auto one = S::set1(1.0f);
    return S::sub(one, S::div(S::set1(2.0f), S::add(e, one)));
}

template <class S>
typename S::Reg silu(typename S::Reg x) {
    const auto e = exp2<S>(S::mul(x, S::set1(-kLog2E)));
    return S::mul(x, S::reciprocal(S::add(S::set1(1.0f), e)));
}

// 0.5 (1 + tanh y) is 1 / (1 + exp(-2 y)), which keeps its digits where y is far below zero.
// Source: Hendrycks and Gimpel 2016, the tanh form.
template <class S>
typename S::Reg gelu_tanh(typename S::Reg x) {
    const auto cube = S::mul(S::mul(x, x), x);
    const auto y = S::mul(S::fma(cube, S::set1(0.044715f), x), S::set1(0.7978845608028654f));
    const auto e = exp2<S>(S::mul(y, S::set1(-2.0f * kLog2E)));
    return S::mul(x, S::reciprocal(S::add(S::set1(1.0f), e)));
}

template <class S>
typename S::Reg activate(Activation activation, typename S::Reg x) {
    return activation == Activation::silu ? silu<S>(x) : gelu_tanh<S>(x);
}

// The first `count` elements, zeros after them; count < S::W.
template <class S, class T>
typename S::Reg load_first(const T* p, int count) {
    float lanes[S::W] = {};
    for (int i = 0; i < count; ++i) lanes[i] = to_float(p[i]);
    return S::load(lanes);
}

template <class S, class T>
void store_first(T* p, typename S::Reg a, int count) {
    T lanes[S::W];
    S::store(lanes, a);
    for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

template <class S, class T>
typename S::Reg load_upto(const T* p, int count) {
    return count >= S::W ? S::load(p) : load_first<S>(p, count);
}

template <class S, class T>
void store_upto(T* p, typename S::Reg a, int count) {
    if (count >= S::W) {
        S::store(p, a);
    } else {
        store_first<S>(p, a, count);
    }
}

// Rounded to T and back.
template <class S, class T>
typename S::Reg rounded(typename S::Reg a) {
    return sizeof(T) == sizeof(float) ? a : S::rounded_to_bf16(a);
}

}  // namespace
}  // namespace ramet
