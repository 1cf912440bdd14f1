//! How one row of keys or values of a KV head is stored: as floats, or quantised with its scales beside the codes.

use half::f16;

use crate::KvElement;
use crate::registers::Registers;

pub use crate::dispatch::LANES;

/// Elements of an `int4` row that share a scale and a minimum.
pub const INT4_GROUP: usize = 32;

/// A storage unit of KV rows: a row of `head_dim` elements takes [`KvRow::row_len`] units, whose meaning is the type's.
/// All arithmetic is done in f32 on the values that [`KvRow::lanes`] and [`KvRow::element`] give; these are the same
/// bits on every processor.
pub trait KvRow: bytemuck::Pod + Send + Sync {
    /// What memory is filled with before it is written: rows of it read as NaN, so that a stale read shows.
    const STALE: Self;

    /// Units of a row.
    fn row_len(head_dim: usize) -> usize;

    /// Stores `x`, `(head_dim)`, in `row`, `(row_len)`.
    fn encode(x: &[f32], row: &mut [Self]);

    /// Elements from `d` on, a register of them.
    ///
    /// # Safety
    /// `row` is that of a row of `head_dim` elements, `d` is a multiple of `M::WIDTH`, and elements `d .. d + M::WIDTH`
    /// lie in the same [`LANES`] (from a multiple of [`LANES`] on), all of which exist.
    unsafe fn lanes<M: Registers>(m: M, row: *const Self, head_dim: usize, d: usize) -> M::V;

    /// Element `d` of a row.
    fn element(row: &[Self], head_dim: usize, d: usize) -> f32;

    /// Bytes of a row.
    fn row_bytes(head_dim: usize) -> usize {
        Self::row_len(head_dim) * size_of::<Self>()
    }
}

impl<T: KvElement> KvRow for T {
    const STALE: Self = T::NAN;

    #[inline(always)]
    fn row_len(head_dim: usize) -> usize {
        head_dim
    }

    #[inline(always)]
    fn encode(x: &[f32], row: &mut [Self]) {
        for (row, x) in row.iter_mut().zip(x) {
            *row = T::narrow(*x);
        }
    }

    #[inline(always)]
    unsafe fn lanes<M: Registers>(m: M, row: *const Self, _: usize, d: usize) -> M::V {
        // SAFETY: elements `d .. d + WIDTH` exist.
        unsafe { T::load(m, row.add(d)) }
    }

    #[inline(always)]
    fn element(row: &[Self], _: usize, d: usize) -> f32 {
        row[d].widen()
    }
}

/// A byte of an `int8` row: the row's scale as f32 (4 bytes, little endian), then one signed code per element.
///
/// `scale = max|x| / 127`, a code is `x / scale` rounded to the nearest even integer, and the value is `scale · code`:
/// off by at most half a scale, and zero stays zero. A row whose scale would not be a normal number (`max|x|` below
/// about 1.5e-36) is stored as zeros; a row with a NaN or an infinity reads as NaN in every element. (Within one rounding
/// of f32's largest number a value may read as infinity.)
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int8(pub u8);

// SAFETY: a transparent wrapper of `u8`: all zeros is a value.
unsafe impl bytemuck::Zeroable for Int8 {}
// SAFETY: a transparent wrapper of `u8`: no padding, and every bit pattern is a value.
unsafe impl bytemuck::Pod for Int8 {}

/// Bytes of an `int8` row before its codes.
const INT8_HEAD: usize = 4;

impl Int8 {
    #[inline(always)]
    fn scale(row: &[Self]) -> f32 {
        f32::from_le_bytes([row[0].0, row[1].0, row[2].0, row[3].0])
    }
}

impl KvRow for Int8 {
    const STALE: Self = Self(0xff);

    #[inline(always)]
    fn row_len(head_dim: usize) -> usize {
        INT8_HEAD + head_dim
    }

    #[inline(always)]
    fn encode(x: &[f32], row: &mut [Self]) {
        // Magnitudes compare as integers, and what is not finite is above all that is.
        let top = x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
        let top = f32::from_bits(top);
        let scale = match top / 127.0 {
            _ if !top.is_finite() => f32::NAN,
            scale if scale.is_normal() => scale,
            _ => 0.0,
        };
        let (head, codes) = row.split_at_mut(INT8_HEAD);
        for (head, byte) in head.iter_mut().zip(scale.to_le_bytes()) {
            *head = Self(byte);
        }
        for (code, x) in codes.iter_mut().zip(x) {
            *code = Self(if scale > 0.0 { (x / scale).round_ties_even() as i8 as u8 } else { 0 });
        }
    }

    #[inline(always)]
    unsafe fn lanes<M: Registers>(m: M, row: *const Self, _: usize, d: usize) -> M::V {
        // SAFETY: a row has its scale, and the codes of elements `d .. d + WIDTH` exist.
        unsafe {
            let scale = f32::from_le_bytes(row.cast::<[u8; INT8_HEAD]>().read());
            m.mul(m.splat(scale), m.load_i8(row.add(INT8_HEAD + d).cast()))
        }
    }

    #[inline(always)]
    fn element(row: &[Self], _: usize, d: usize) -> f32 {
        Self::scale(row) * f32::from(row[INT8_HEAD + d].0 as i8)
    }
}

/// A byte of an `int4` row: group after group of [`INT4_GROUP`] elements (the last may have fewer), each its scale and
/// its minimum as f16 (2 bytes each, little endian), then two codes a byte: of `n` elements, byte `i` has element `i`
/// in its low half and element `i + ⌈n/2⌉` in its high half, which is 0 where there is no such element.
///
/// The minimum is rounded down and `scale = (max − minimum) / 15` up, so that the 16 values cover the group; a code is
/// `(x − minimum) / scale` rounded to the nearest even integer, and the value is `minimum + scale · code`: off by at
/// most half a scale. A group of zeros stays zero. A group with a NaN or an infinity, or whose minimum or scale is
/// outside the range of f16, reads as NaN in every element.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int4(pub u8);

// SAFETY: a transparent wrapper of `u8`: all zeros is a value.
unsafe impl bytemuck::Zeroable for Int4 {}
// SAFETY: a transparent wrapper of `u8`: no padding, and every bit pattern is a value.
unsafe impl bytemuck::Pod for Int4 {}

/// Bytes of an `int4` group before its codes.
const INT4_HEAD: usize = 4;
/// Bytes of a whole group.
const INT4_BYTES: usize = INT4_HEAD + INT4_GROUP / 2;

impl Int4 {
    /// Bytes of a group of `n` elements.
    #[inline(always)]
    fn group_len(n: usize) -> usize {
        if n == 0 { 0 } else { INT4_HEAD + n.div_ceil(2) }
    }

    /// Scale and minimum of a group.
    #[inline(always)]
    fn head(group: &[Self]) -> (f32, f32) {
        let halves = [[group[0].0, group[1].0], [group[2].0, group[3].0]].map(u16::from_le_bytes);
        let [scale, min] = halves.map(|bits| f16::from_bits(bits).widen());
        (scale, min)
    }

    /// Scale and minimum that cover `x`; NaN where f16 cannot.
    #[inline(always)]
    fn range(x: &[f32]) -> (f16, f16) {
        let finite = x.iter().fold(true, |all, x| all & x.is_finite());
        let least = x.iter().fold(f32::INFINITY, |m, x| if *x < m { *x } else { m });
        let most = x.iter().fold(f32::NEG_INFINITY, |m, x| if *x > m { *x } else { m });
        let mut min = f16::from_f32(least);
        if min.widen() > least {
            min = below(min);
        }
        let wanted = (most - min.widen()) / 15.0;
        let mut scale = f16::from_f32(wanted);
        if scale.widen() < wanted {
            scale = f16::from_bits(scale.to_bits() + 1); // not negative
        }
        if finite && min.is_finite() && scale.is_finite() { (scale, min) } else { (f16::NAN, f16::NAN) }
    }
}

/// The next f16 below a number that is not -∞.
#[inline(always)]
fn below(x: f16) -> f16 {
    let bits = x.to_bits();
    f16::from_bits(match bits {
        0x0000 | 0x8000 => 0x8001,
        _ if bits & 0x8000 == 0 => bits - 1,
        _ => bits + 1,
    })
}

impl KvRow for Int4 {
    const STALE: Self = Self(0xff);

    #[inline(always)]
    fn row_len(head_dim: usize) -> usize {
        head_dim / INT4_GROUP * INT4_BYTES + Self::group_len(head_dim % INT4_GROUP)
    }

    #[inline(always)]
    fn encode(x: &[f32], row: &mut [Self]) {
        for (x, group) in x.chunks(INT4_GROUP).zip(row.chunks_mut(INT4_BYTES)) {
            let (scale, min) = Self::range(x);
            let (head, codes) = group.split_at_mut(INT4_HEAD);
            for (head, byte) in head.iter_mut().zip(scale.to_le_bytes().into_iter().chain(min.to_le_bytes()))
            {
                *head = Self(byte);
            }
            let (scale, min) = (scale.widen(), min.widen());
            let code =
                |x: f32| if scale > 0.0 { ((x - min) / scale).round_ties_even().min(15.0) as u8 } else { 0 };
            let (low, high) = x.split_at(x.len().div_ceil(2));
            for (byte, x) in codes.iter_mut().zip(low) {
                *byte = Self(code(*x));
            }
            for (byte, x) in codes.iter_mut().zip(high) {
                byte.0 |= code(*x) << 4;
            }
        }
    }

    #[inline(always)]
    unsafe fn lanes<M: Registers>(m: M, row: *const Self, head_dim: usize, d: usize) -> M::V {
        let (group, first) = (d / INT4_GROUP, d % INT4_GROUP);
        if (group + 1) * INT4_GROUP > head_dim {
            // SAFETY: the row is as long as that of `head_dim` elements.
            let row = unsafe { std::slice::from_raw_parts(row, Self::row_len(head_dim)) };
            let wide: [f32; LANES] =
                std::array::from_fn(|i| if i < M::WIDTH { Self::element(row, head_dim, d + i) } else { 0.0 });
            // SAFETY: there are sixteen numbers.
            return unsafe { m.load(wide.as_ptr()) };
        }
        // SAFETY: the group is whole. Lanes 0 to 15 are the low halves of its bytes, the others the high halves.
        unsafe {
            let group = row.add(group * INT4_BYTES).cast::<u8>();
            let head = group.cast::<[u8; INT4_HEAD]>().read();
            let halves = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_le_bytes);
            m.load_halves(group.add(INT4_HEAD + first % LANES), first >= LANES, halves)
        }
    }

    #[inline(always)]
    fn element(row: &[Self], head_dim: usize, d: usize) -> f32 {
        let (group, first) = (d / INT4_GROUP, d % INT4_GROUP);
        let n = INT4_GROUP.min(head_dim - group * INT4_GROUP);
        let group = &row[group * INT4_BYTES..];
        let (scale, min) = Self::head(group);
        let half = n.div_ceil(2);
        let code = if first < half {
            group[INT4_HEAD + first].0 & 15
        } else {
            group[INT4_HEAD + first - half].0 >> 4
        };
        min + scale * f32::from(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored<T: KvRow>(x: &[f32]) -> Vec<T> {
        let mut row = vec![T::STALE; T::row_len(x.len())];
        T::encode(x, &mut row);
        row
    }

    fn through<T: KvRow>(x: &[f32]) -> Vec<f32> {
        let row = stored::<T>(x);
        (0..x.len()).map(|d| T::element(&row, x.len(), d)).collect()
    }

    #[test]
    fn rows_have_the_bytes_that_the_format_says() {
        assert_eq!([1, 32, 33, 128].map(Int8::row_bytes), [5, 36, 37, 132]);
        assert_eq!([1, 2, 3, 32, 33, 63, 64, 128].map(Int4::row_bytes), [5, 5, 6, 20, 25, 40, 40, 80]);
        assert_eq!((f32::row_bytes(7), half::bf16::row_bytes(7), f16::row_bytes(7)), (28, 14, 14));
    }

    #[test]
    fn codes_lie_where_the_format_says() {
        // Scale 1/127 · 127 = 1.
        let row: Vec<u8> = stored::<Int8>(&[127.0, -127.0, 0.5, 1.5, -2.5]).iter().map(|b| b.0).collect();
        assert_eq!(
            row,
            [&1f32.to_le_bytes()[..], &[127, 129, 0, 2, 254]].concat(),
            "halves go to the even code"
        );
        // Minimum -1, scale 1.
        let row: Vec<u8> = stored::<Int4>(&[-1.0, 14.0, 3.0, 3.5, 4.5]).iter().map(|b| b.0).collect();
        let head = [f16::from_f32(1.0).to_le_bytes(), f16::from_f32(-1.0).to_le_bytes()].concat();
        assert_eq!(row, [&head[..], &[0x40, 0x6f, 0x04]].concat(), "4.5 is code 5.5 → 6, 3.5 is 4.5 → 4");
        let x: Vec<f32> = (0..40).map(|i| (i % 16) as f32).collect();
        let row = stored::<Int4>(&x);
        assert_eq!(
            row[4..20].iter().map(|b| b.0).collect::<Vec<_>>(),
            (0..16).map(|i| i * 17).collect::<Vec<u8>>()
        );
        assert_eq!(row.len(), 28);
        let y = through::<Int4>(&x);
        assert_eq!(y[..32], x[..32]);
        // The second group has 0 to 7 in 15 steps.
        assert!(y[32..].iter().zip(&x[32..]).all(|(y, x)| (y - x).abs() <= 7.01 / 30.0), "{y:?}");
    }

    #[test]
    fn zeros_and_constant_rows() {
        for n in [1, 5, 31, 32, 33, 128] {
            assert!(
                through::<Int8>(&vec![0.0; n])
                    .iter()
                    .chain(&through::<Int4>(&vec![-0.0; n]))
                    .all(|x| *x == 0.0)
            );
            for x in [1.0f32, -1.0, 0.1, -3.7, 1234.5, 1e-3] {
                // Half a code of f32 rounding; for int4, what one f16 step of the minimum leaves, in 15 parts.
                assert!(through::<Int8>(&vec![x; n]).iter().all(|y| (x - y).abs() <= x.abs() * 3e-7), "{x}");
                assert!(through::<Int4>(&vec![x; n]).iter().all(|y| (x - y).abs() <= x.abs() * 1e-4), "{x}");
            }
        }
        let row = through::<Int8>(&[0.0, 5.0, -0.0, -3.3]);
        assert_eq!((row[0], row[2]), (0.0, 0.0));
    }

    #[test]
    fn tiny_values_become_zero_and_large_ones_are_kept_or_nan() {
        assert_eq!(through::<Int8>(&[1e-40, -1e-37, 0.0]), [0.0; 3]);
        assert!(through::<Int8>(&[1e-35, 0.0])[0] > 0.99e-35);
        assert_eq!(through::<Int8>(&[f32::MAX, -f32::MAX, 0.0])[2], 0.0);
        assert!((through::<Int8>(&[3e38])[0] / 3e38 - 1.0).abs() < 1e-6);
        // The least step of f16 is 2^-24.
        let y = through::<Int4>(&[1e-40, -1e-40, 3e-8]);
        assert!(y.iter().zip([1e-40, -1e-40, 3e-8]).all(|(y, x)| (y - x).abs() <= 2f32.powi(-25)), "{y:?}");
        assert!((through::<Int4>(&[-65504.0, 65504.0])[1] / 65504.0 - 1.0).abs() < 1e-3);
        assert!((through::<Int4>(&[70000.0, 65504.0])[0] / 70000.0 - 1.0).abs() < 1e-2);
        assert!(through::<Int4>(&[-65505.0, 0.0]).iter().all(|y| y.is_nan()));
    }

    #[test]
    fn what_is_not_finite_shows_in_the_whole_row_or_group() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 31, 39] {
                let mut x = vec![1.0f32; 40];
                x[at] = bad;
                assert!(through::<Int8>(&x).iter().all(|y| y.is_nan()), "{bad} at {at}");
                let y = through::<Int4>(&x);
                let group = if at < 32 { 0..32 } else { 32..40 };
                assert!(y.iter().enumerate().all(|(i, y)| y.is_nan() == group.contains(&i)), "{bad} at {at}");
            }
        }
        assert!((0..5).all(|d| Int8::element(&[Int8::STALE; 9], 5, d).is_nan()));
        assert!((0..5).all(|d| Int4::element(&[Int4::STALE; 7], 5, d).is_nan()));
    }

    #[test]
    fn f16_steps_down() {
        for bits in (0..=0x7bffu16).chain(0x8000..=0xfbff) {
            let x = f16::from_bits(bits);
            assert!(below(x).widen() < x.widen(), "{bits:#06x}");
        }
        assert_eq!(below(f16::INFINITY), f16::MAX);
    }

    proptest! {
        #[test]
        fn values_are_off_by_half_a_scale_at_most(n in 1usize..140, size in -20f32..12.0, shift in -3f32..3.0, seed: u64) {
            let mut state = seed | 1;
            let x: Vec<f32> = (0..n).map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (((state >> 40) as f32 / (1u64 << 23) as f32) - 1.0 + shift) * size.exp2()
            }).collect();
            let top = x.iter().fold(0f64, |m, x| m.max(f64::from(x.abs())));
            for (x, y) in x.iter().zip(through::<Int8>(&x)) {
                prop_assert!((f64::from(*x) - f64::from(y)).abs() <= top / 127.0 * 0.5001);
            }
            for (x, y) in x.chunks(INT4_GROUP).zip(through::<Int4>(&x).chunks(INT4_GROUP)) {
                let (least, most) = x.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(f64::from(*x)), b.max(f64::from(*x))));
                // The minimum is up to one step of f16 lower, the scale up to one step larger.
                let step = |x: f64| (x.abs() / 1024.0).max(2f64.powi(-24));
                let scale = (most - least + step(least)) / 15.0;
                for (x, y) in x.iter().zip(y) {
                    let error = (f64::from(*x) - f64::from(*y)).abs();
                    prop_assert!(error <= (scale + step(scale)) * 0.5001 + most.abs().max(least.abs()) * 1e-7, "{x} {y}");
                }
            }
        }
    }
}
