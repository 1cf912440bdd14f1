//! Vector registers: what the attention kernels are written in, once for all instruction sets.
//!
//! A kernel keeps sums in [`LANES`] lanes whatever the register's width: where a register has fewer, it goes through the
//! row once for each part. So every instruction set adds in the same order.

use half::{bf16, f16};

use crate::KvElement;
use crate::dispatch::{LANES, MulAdd, Separate};

/// Registers of one instruction set. Loads and stores do not check; everything else works on values.
pub trait Registers: MulAdd {
    /// A register of [`Registers::WIDTH`] lanes.
    type V: Copy;
    /// Lanes of a register, and accumulators that a kernel keeps at a time: 8 or 16, which divides [`LANES`].
    const WIDTH: usize;

    /// Every lane `x`.
    fn splat(self, x: f32) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded as [`MulAdd::mul_add`] does.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;

    /// # Safety
    /// `WIDTH` numbers can be read at `at`.
    unsafe fn load(self, at: *const f32) -> Self::V;
    /// # Safety
    /// `WIDTH` numbers can be written at `at`.
    unsafe fn store(self, at: *mut f32, x: Self::V);
    /// # Safety
    /// `WIDTH` numbers can be read at `at`.
    unsafe fn load_bf16(self, at: *const bf16) -> Self::V;
    /// # Safety
    /// `WIDTH` numbers can be read at `at`.
    unsafe fn load_f16(self, at: *const f16) -> Self::V;
    /// Signed bytes.
    ///
    /// # Safety
    /// `WIDTH` bytes can be read at `at`.
    unsafe fn load_i8(self, at: *const i8) -> Self::V;
    /// `minimum + scale · c` for the low or the high halves `c` of bytes; scale and minimum are f16. The product is exact,
    /// so that all ways to round give the same.
    ///
    /// # Safety
    /// `WIDTH` bytes can be read at `at`.
    unsafe fn load_halves(self, at: *const u8, high: bool, scale_and_minimum: [u16; 2]) -> Self::V;

    /// Lane `t` of the result is the sum of `row(t)`, in pairs: lanes i and i + WIDTH / 2, then i and i + WIDTH / 4, and so
    /// on: where the parts of [`LANES`] lanes were added before, this goes on with the same pairs.
    fn sums(self, row: impl Fn(usize) -> Self::V) -> Self::V;
}

/// Lanes of the portable registers.
const PLAIN: usize = 8;

/// Registers in plain Rust.
macro_rules! plain {
    ($name:ty, $lanes:expr) => {
        impl Registers for $name {
            type V = [f32; $lanes];
            const WIDTH: usize = $lanes;

            #[inline(always)]
            fn splat(self, x: f32) -> Self::V {
                [x; $lanes]
            }

            #[inline(always)]
            fn add(self, a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] + b[i])
            }

            #[inline(always)]
            fn mul(self, a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] * b[i])
            }

            #[inline(always)]
            fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                std::array::from_fn(|i| self.mul_add(a[i], b[i], c[i]))
            }

            #[inline(always)]
            unsafe fn load(self, at: *const f32) -> Self::V {
                // SAFETY: the caller's.
                unsafe { at.cast::<Self::V>().read_unaligned() }
            }

            #[inline(always)]
            unsafe fn store(self, at: *mut f32, x: Self::V) {
                // SAFETY: the caller's.
                unsafe { at.cast::<Self::V>().write_unaligned(x) }
            }

            #[inline(always)]
            unsafe fn load_bf16(self, at: *const bf16) -> Self::V {
                // SAFETY: the caller's.
                unsafe { at.cast::<[bf16; $lanes]>().read_unaligned() }.map(KvElement::widen)
            }

            #[inline(always)]
            unsafe fn load_f16(self, at: *const f16) -> Self::V {
                // SAFETY: the caller's.
                unsafe { at.cast::<[f16; $lanes]>().read_unaligned() }.map(KvElement::widen)
            }

            #[inline(always)]
            unsafe fn load_i8(self, at: *const i8) -> Self::V {
                // SAFETY: the caller's.
                unsafe { at.cast::<[i8; $lanes]>().read_unaligned() }.map(f32::from)
            }

            #[inline(always)]
            unsafe fn load_halves(self, at: *const u8, high: bool, scale_and_minimum: [u16; 2]) -> Self::V {
                let [scale, minimum] = scale_and_minimum.map(|bits| f16::from_bits(bits).widen());
                let shift = if high { 4 } else { 0 };
                // SAFETY: the caller's.
                let bytes = unsafe { at.cast::<[u8; $lanes]>().read_unaligned() };
                bytes.map(|byte| minimum + scale * f32::from((byte >> shift) & 15))
            }

            #[inline(always)]
            fn sums(self, row: impl Fn(usize) -> Self::V) -> Self::V {
                std::array::from_fn(|t| {
                    let mut lanes = row(t);
                    let mut n = $lanes / 2;
                    while n > 0 {
                        for i in 0..n {
                            lanes[i] += lanes[i + n];
                        }
                        n /= 2;
                    }
                    lanes[0]
                })
            }
        }
    };
}

plain!(Separate, PLAIN);

const _: () = assert!(LANES.is_multiple_of(PLAIN));

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use half::{bf16, f16};

    use super::Registers;
    use crate::dispatch::{Fused, Wide};

    /// Scale and minimum in the lowest two places.
    #[inline]
    #[target_feature(enable = "f16c")]
    fn widen_two([a, b]: [u16; 2]) -> __m128 {
        _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(a) | i32::from(b) << 16))
    }

    // In all of these: a value of `Fused` or `Wide` exists only where the processor has the instructions (AVX2, FMA and
    // F16C; those and AVX-512 F, BW, DQ and VL), and what can be read or written is for the caller to see to.

    impl Registers for Fused {
        type V = __m256;
        const WIDTH: usize = 8;

        #[inline(always)]
        fn splat(self, x: f32) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_set1_ps(x) }
        }

        #[inline(always)]
        fn add(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_add_ps(a, b) }
        }

        #[inline(always)]
        fn mul(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_mul_ps(a, b) }
        }

        #[inline(always)]
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn load(self, at: *const f32) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_loadu_ps(at) }
        }

        #[inline(always)]
        unsafe fn store(self, at: *mut f32, x: __m256) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_ps(at, x) }
        }

        #[inline(always)]
        unsafe fn load_bf16(self, at: *const bf16) -> __m256 {
            // SAFETY: see above.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }

        #[inline(always)]
        unsafe fn load_f16(self, at: *const f16) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
        }

        #[inline(always)]
        unsafe fn load_i8(self, at: *const i8) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
        }

        #[inline(always)]
        unsafe fn load_halves(self, at: *const u8, high: bool, scale_and_minimum: [u16; 2]) -> __m256 {
            // SAFETY: see above.
            unsafe {
                let two = widen_two(scale_and_minimum);
                let (scale, minimum) =
                    (_mm256_broadcastss_ps(two), _mm256_broadcastss_ps(_mm_movehdup_ps(two)));
                let bytes = _mm_loadl_epi64(at.cast());
                let shifted = if high { _mm_srli_epi16::<4>(bytes) } else { bytes };
                let codes = _mm256_cvtepu8_epi32(_mm_and_si128(shifted, _mm_set1_epi8(15)));
                _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(codes), minimum)
            }
        }

        #[inline(always)]
        fn sums(self, row: impl Fn(usize) -> __m256) -> __m256 {
            // SAFETY: see above.
            unsafe {
                // Four lanes of row t, then four of row 4 + t.
                let fours = |t: usize| {
                    let (a, b) = (row(t), row(4 + t));
                    _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
                };
                // Within each half, two lanes of one of the first's rows, then two of the second's.
                let twos = |x: __m256, y: __m256| {
                    let (x, y) = (_mm256_castps_pd(x), _mm256_castps_pd(y));
                    let (low, high) = (_mm256_unpacklo_pd(x, y), _mm256_unpackhi_pd(x, y));
                    _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high))
                };
                let (x, y) = (twos(fours(0), fours(1)), twos(fours(2), fours(3)));
                _mm256_add_ps(_mm256_shuffle_ps::<0x88>(x, y), _mm256_shuffle_ps::<0xdd>(x, y))
            }
        }
    }

    impl Registers for Wide {
        type V = __m512;
        const WIDTH: usize = 16;

        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        fn mul(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_mul_ps(a, b) }
        }

        #[inline(always)]
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn load(self, at: *const f32) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_loadu_ps(at) }
        }

        #[inline(always)]
        unsafe fn store(self, at: *mut f32, x: __m512) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(at, x) }
        }

        #[inline(always)]
        unsafe fn load_bf16(self, at: *const bf16) -> __m512 {
            // SAFETY: see above.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }

        #[inline(always)]
        unsafe fn load_f16(self, at: *const f16) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
        }

        #[inline(always)]
        unsafe fn load_i8(self, at: *const i8) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
        }

        #[inline(always)]
        unsafe fn load_halves(self, at: *const u8, high: bool, scale_and_minimum: [u16; 2]) -> __m512 {
            // SAFETY: see above.
            unsafe {
                let two = widen_two(scale_and_minimum);
                let (scale, minimum) =
                    (_mm512_broadcastss_ps(two), _mm512_broadcastss_ps(_mm_movehdup_ps(two)));
                let bytes = _mm_loadu_si128(at.cast());
                let shifted = if high { _mm_srli_epi16::<4>(bytes) } else { bytes };
                let codes = _mm512_cvtepu8_epi32(_mm_and_si128(shifted, _mm_set1_epi8(15)));
                _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(codes), minimum)
            }
        }

        #[inline(always)]
        fn sums(self, row: impl Fn(usize) -> __m512) -> __m512 {
            // SAFETY: see above.
            unsafe {
                // Eight lanes of row a, then eight of row b.
                let eights = |a: __m512, b: __m512| {
                    _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
                };
                // Four lanes each of rows t, 4 + t, 8 + t and 12 + t.
                let fours = |t: usize| {
                    let (x, y) = (eights(row(t), row(4 + t)), eights(row(8 + t), row(12 + t)));
                    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(x, y), _mm512_shuffle_f32x4::<0xdd>(x, y))
                };
                // Within each quarter, two lanes of one of the first's rows, then two of the second's.
                let twos = |x: __m512, y: __m512| {
                    let (x, y) = (_mm512_castps_pd(x), _mm512_castps_pd(y));
                    let (low, high) = (_mm512_unpacklo_pd(x, y), _mm512_unpackhi_pd(x, y));
                    _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
                };
                let (x, y) = (twos(fours(0), fours(1)), twos(fours(2), fours(3)));
                _mm512_add_ps(_mm512_shuffle_ps::<0x88>(x, y), _mm512_shuffle_ps::<0xdd>(x, y))
            }
        }
    }
}

/// Sixteen lanes with the rounding of a fused multiply-add: what AVX-512 computes, for tests on processors without it.
#[cfg(test)]
#[derive(Clone, Copy)]
pub struct Sixteen;

#[cfg(test)]
impl MulAdd for Sixteen {
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

#[cfg(test)]
plain!(Sixteen, 16);
