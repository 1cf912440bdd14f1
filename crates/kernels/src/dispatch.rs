//! Choice of instruction set at run time.

use std::sync::OnceLock;

use crate::KvElement;

/// Instruction sets that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What the compilation target guarantees (SSE2 on x86-64, NEON on aarch64).
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

/// The best instruction set of this processor; read once per process.
pub fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    })
}

/// Whether [`Isa::Avx512`] includes VNNI (sums of four products of bytes).
pub(crate) fn vnni() -> bool {
    static VNNI: OnceLock<bool> = OnceLock::new();
    *VNNI.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        return isa() == Isa::Avx512 && is_x86_feature_detected!("avx512vnni");
        #[cfg(not(target_arch = "x86_64"))]
        false
    })
}

/// Whether [`Isa::Avx512`] includes BF16 (sums of two products of bf16).
pub(crate) fn bf16() -> bool {
    static BF16: OnceLock<bool> = OnceLock::new();
    *BF16.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        return isa() == Isa::Avx512 && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        false
    })
}

/// Defines a kernel from a generic body `fn name<const FMA: bool>(…)` in module `body`: the public function
/// picks the instruction set, and a hidden `*_with` twin takes it as an argument so that tests can compare all three.
macro_rules! kernel {
    ($(#[$doc:meta])* $vis:vis fn $name:ident / $with:ident $(<$g:ident: $bound:path>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$doc])*
        #[inline]
        $vis fn $name $(<$g: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
            $with($crate::isa(), $($arg),*)
        }

        /// The same kernel with the instruction set given (one that the processor lacks falls back to the portable one).
        #[inline]
        pub(crate) fn $with $(<$g: $bound>)? (isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512 $(<$g: $bound>)? ($($arg: $ty),*) $(-> $ret)? { $body(crate::dispatch::Wide::here(), $($arg),*) }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2 $(<$g: $bound>)? ($($arg: $ty),*) $(-> $ret)? { $body(crate::dispatch::Fused::here(), $($arg),*) }
                if isa == $crate::Isa::Avx512 && $crate::isa() == $crate::Isa::Avx512 {
                    // SAFETY: `isa()` found every feature that `avx512` enables.
                    return unsafe { avx512($($arg),*) };
                }
                if isa != $crate::Isa::Portable && $crate::isa() != $crate::Isa::Portable {
                    // SAFETY: every processor for which `isa()` answers Avx2 or Avx512 has the features of `avx2`.
                    return unsafe { avx2($($arg),*) };
                }
            }
            let _ = isa;
            $body(crate::dispatch::Separate, $($arg),*)
        }
    };
}
pub(crate) use kernel;

/// Lanes of the sums that kernels keep.
pub const LANES: usize = 16;

/// How a kernel body does what instruction sets do differently; all but the rounding of a multiply-add is the same to the
/// last bit.
pub trait MulAdd: Copy {
    /// `a * b + c`.
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32;

    /// `minimum + scale · c` for the low or the high halves `c` of sixteen bytes; scale and minimum are f16. The product is
    /// exact, so that all ways to round give the same.
    #[inline(always)]
    fn widen_halves(self, bytes: &[u8; LANES], high: bool, scale_and_minimum: [u16; 2]) -> [f32; LANES] {
        let [scale, minimum] = scale_and_minimum.map(|bits| half::f16::from_bits(bits).widen());
        let shift = if high { 4 } else { 0 };
        bytes.map(|byte| minimum + scale * f32::from((byte >> shift) & 15))
    }

    /// Sums of the lanes of sixteen accumulators, each in pairs: i and i + 8, then i and i + 4, and so on.
    #[inline(always)]
    fn sums(self, acc: &[[f32; LANES]; LANES]) -> [f32; LANES] {
        let mut out = [0f32; LANES];
        for (out, acc) in out.iter_mut().zip(acc) {
            *out = pairwise_sum(acc);
        }
        out
    }

    /// Products of `G` queries, `head_dim` apart, with four rows, `(4, blocks)` of lanes, summed lane by lane from 0:
    /// query `j` and row `t` into `acc[j][first + t]`.
    #[inline(always)]
    fn products<const G: usize>(
        self,
        q: &[f32],
        head_dim: usize,
        rows: &[[f32; LANES]],
        acc: &mut [[[f32; LANES]; LANES]; G],
        first: usize,
    ) {
        let blocks = rows.len() / 4;
        for (j, acc) in acc.iter_mut().enumerate() {
            for (t, acc) in acc[first..first + 4].iter_mut().enumerate() {
                *acc = [0.0; LANES];
                for (b, row) in rows[t * blocks..(t + 1) * blocks].iter().enumerate() {
                    let q = &q[j * head_dim + b * LANES..j * head_dim + (b + 1) * LANES];
                    for lane in 0..LANES {
                        acc[lane] = self.mul_add(q[lane], row[lane], acc[lane]);
                    }
                }
            }
        }
    }

    /// Adds rows times the weights that each of `G` queries gives them to its four partial sums: row `i` to number
    /// `(phase + i) % 4`, in order.
    #[inline(always)]
    fn mix<const G: usize>(
        self,
        weights: [&[f32]; G],
        phase: usize,
        rows: &[[f32; LANES]],
        acc: &mut [[[f32; LANES]; 4]; G],
    ) {
        for (i, row) in rows.iter().enumerate() {
            for (acc, weights) in acc.iter_mut().zip(weights) {
                let acc = &mut acc[(phase + i) % 4];
                for lane in 0..LANES {
                    acc[lane] = self.mul_add(weights[i], row[lane], acc[lane]);
                }
            }
        }
    }
}

/// Pairwise sum of the lanes: a fixed order, so that the result does not depend on the instruction set's width.
#[inline(always)]
pub fn pairwise_sum(acc: &[f32; LANES]) -> f32 {
    let mut a = *acc;
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            a[i] += a[i + n];
        }
        n /= 2;
    }
    a[0]
}

/// Two roundings.
#[derive(Clone, Copy)]
pub struct Separate;

impl MulAdd for Separate {
    #[inline(always)]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Fused, Wide};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, MulAdd};

    /// One rounding, one instruction: a value of this exists only where the processor has AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub struct Fused(());

    impl Fused {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        pub fn here() -> Self {
            Self(())
        }
    }

    impl MulAdd for Fused {
        #[inline(always)]
        fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }

        #[inline(always)]
        fn widen_halves(self, bytes: &[u8; LANES], high: bool, scale_and_minimum: [u16; 2]) -> [f32; LANES] {
            // SAFETY: `here` can be called, but for `unsafe`, only where the processor has AVX2, FMA and F16C.
            unsafe { widen_halves_avx2(bytes, high, scale_and_minimum) }
        }
    }

    /// The same with AVX-512, which the processor has where a value of this exists.
    #[derive(Clone, Copy)]
    pub struct Wide(());

    impl Wide {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        pub fn here() -> Self {
            Self(())
        }
    }

    impl MulAdd for Wide {
        #[inline(always)]
        fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }

        #[inline(always)]
        fn widen_halves(self, bytes: &[u8; LANES], high: bool, scale_and_minimum: [u16; 2]) -> [f32; LANES] {
            // SAFETY: `here` can be called, but for `unsafe`, only where the processor has AVX-512 and F16C.
            unsafe { widen_halves_avx512(bytes, high, scale_and_minimum) }
        }

        #[inline(always)]
        fn sums(self, acc: &[[f32; LANES]; LANES]) -> [f32; LANES] {
            // SAFETY: `here` can be called, but for `unsafe`, only where the processor has AVX-512.
            unsafe { sums(acc) }
        }

        #[inline(always)]
        fn products<const G: usize>(
            self,
            q: &[f32],
            head_dim: usize,
            rows: &[[f32; LANES]],
            acc: &mut [[[f32; LANES]; LANES]; G],
            first: usize,
        ) {
            let blocks = rows.len() / 4;
            assert!(first + 4 <= LANES && blocks * LANES <= head_dim && G * head_dim <= q.len());
            // SAFETY: as above; all queries, rows and sums are there, as asserted.
            unsafe { products(q, head_dim, rows, acc, first) }
        }

        #[inline(always)]
        fn mix<const G: usize>(
            self,
            weights: [&[f32]; G],
            phase: usize,
            rows: &[[f32; LANES]],
            acc: &mut [[[f32; LANES]; 4]; G],
        ) {
            assert!(weights.iter().all(|w| w.len() >= rows.len()));
            // SAFETY: as above; every query has a weight for each row, as asserted.
            unsafe { mix(weights, phase, rows, acc) }
        }
    }

    /// Scale and minimum in the lowest two places.
    #[inline]
    #[target_feature(enable = "f16c")]
    fn widen_two([a, b]: [u16; 2]) -> __m128 {
        _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(a) | i32::from(b) << 16))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn widen_halves_avx2(bytes: &[u8; LANES], high: bool, scale_and_minimum: [u16; 2]) -> [f32; LANES] {
        let two = widen_two(scale_and_minimum);
        let (scale, minimum) = (_mm256_broadcastss_ps(two), _mm256_broadcastss_ps(_mm_movehdup_ps(two)));
        // SAFETY: sixteen bytes.
        let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        let shifted = if high { _mm_srli_epi16::<4>(bytes) } else { bytes };
        let codes = _mm_and_si128(shifted, _mm_set1_epi8(15));
        let wide = |codes| _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)), minimum);
        let mut out = [0f32; LANES];
        // SAFETY: twice eight of sixteen numbers.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), wide(codes));
            _mm256_storeu_ps(out.as_mut_ptr().add(8), wide(_mm_srli_si128::<8>(codes)));
        }
        out
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx2,f16c")]
    fn widen_halves_avx512(bytes: &[u8; LANES], high: bool, scale_and_minimum: [u16; 2]) -> [f32; LANES] {
        let two = widen_two(scale_and_minimum);
        let (scale, minimum) = (_mm512_broadcastss_ps(two), _mm512_broadcastss_ps(_mm_movehdup_ps(two)));
        // SAFETY: sixteen bytes.
        let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        let shifted = if high { _mm_srli_epi16::<4>(bytes) } else { bytes };
        let codes = _mm512_cvtepu8_epi32(_mm_and_si128(shifted, _mm_set1_epi8(15)));
        let mut out = [0f32; LANES];
        // SAFETY: sixteen numbers.
        unsafe {
            _mm512_storeu_ps(out.as_mut_ptr(), _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(codes), minimum));
        }
        out
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn sums(acc: &[[f32; LANES]; LANES]) -> [f32; LANES] {
        let mut out = [0f32; LANES];
        // SAFETY: sixteen numbers each.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum_rows(|r| _mm512_loadu_ps(acc[r].as_ptr()))) };
        out
    }

    /// Four rounds, each of which adds the halves of two registers into one: lane `r` of the result is the sum of the lanes of `row(r)`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn sum_rows(row: impl Fn(usize) -> __m512) -> __m512 {
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

    /// # Safety
    /// There are `G` queries, `head_dim` apart, of as many lanes as the rows, and `first + 4 <= 16`.
    #[inline]
    #[target_feature(enable = "avx512f,fma")]
    #[allow(clippy::needless_range_loop)] // The indices are those of registers.
    unsafe fn products<const G: usize>(
        q: &[f32],
        head_dim: usize,
        rows: &[[f32; LANES]],
        sums: &mut [[[f32; LANES]; LANES]; G],
        first: usize,
    ) {
        let blocks = rows.len() / 4;
        let mut acc = [[_mm512_setzero_ps(); 4]; G];
        for b in 0..blocks {
            // SAFETY: block `b` of each of four rows and of each query exists.
            unsafe {
                let mut row = [_mm512_setzero_ps(); 4];
                for t in 0..4 {
                    row[t] = _mm512_loadu_ps(rows.as_ptr().add(t * blocks + b).cast());
                }
                for j in 0..G {
                    let q = _mm512_loadu_ps(q.as_ptr().add(j * head_dim + b * LANES));
                    for t in 0..4 {
                        acc[j][t] = _mm512_fmadd_ps(q, row[t], acc[j][t]);
                    }
                }
            }
        }
        for j in 0..G {
            for t in 0..4 {
                // SAFETY: sixteen numbers.
                unsafe { _mm512_storeu_ps(sums[j][first + t].as_mut_ptr(), acc[j][t]) };
            }
        }
    }

    /// # Safety
    /// Every query has a weight for each row.
    #[inline]
    #[target_feature(enable = "avx512f,fma")]
    #[allow(clippy::needless_range_loop)] // The indices are those of registers.
    unsafe fn mix<const G: usize>(
        weights: [&[f32]; G],
        phase: usize,
        rows: &[[f32; LANES]],
        sums: &mut [[[f32; LANES]; 4]; G],
    ) {
        // So that row `i` of the loop over fours belongs to the first of these, sums are turned by the phase.
        let turn = |part: usize| (phase + part) % 4;
        let mut acc = [[_mm512_setzero_ps(); 4]; G];
        for j in 0..G {
            for part in 0..4 {
                // SAFETY: sixteen numbers.
                acc[j][part] = unsafe { _mm512_loadu_ps(sums[j][turn(part)].as_ptr()) };
            }
        }
        let fours = rows.len() / 4;
        for i in 0..fours {
            for part in 0..4 {
                // SAFETY: the row exists, and every query has a weight for it.
                unsafe {
                    let row = _mm512_loadu_ps(rows.as_ptr().add(4 * i + part).cast());
                    for j in 0..G {
                        let weight = _mm512_set1_ps(*weights[j].get_unchecked(4 * i + part));
                        acc[j][part] = _mm512_fmadd_ps(weight, row, acc[j][part]);
                    }
                }
            }
        }
        for part in 0..3 {
            let i = 4 * fours + part;
            if i < rows.len() {
                // SAFETY: as above.
                unsafe {
                    let row = _mm512_loadu_ps(rows.as_ptr().add(i).cast());
                    for j in 0..G {
                        let weight = _mm512_set1_ps(*weights[j].get_unchecked(i));
                        acc[j][part] = _mm512_fmadd_ps(weight, row, acc[j][part]);
                    }
                }
            }
        }
        for j in 0..G {
            for part in 0..4 {
                // SAFETY: sixteen numbers.
                unsafe { _mm512_storeu_ps(sums[j][turn(part)].as_mut_ptr(), acc[j][part]) };
            }
        }
    }
}
