//! Element types in which KV rows and weights are stored.

use half::{bf16, f16};

use crate::registers::Registers;

/// A storage type of KV rows and half-precision weights. All arithmetic is done in f32.
pub trait KvElement: bytemuck::Pod + Send + Sync {
    /// Widens to f32, exactly.
    fn widen(self) -> f32;
    /// Rounds to nearest even.
    fn narrow(x: f32) -> Self;
    /// The value that memory is filled with before it is written, so that a stale read shows.
    const NAN: Self;

    /// A register of widened numbers.
    ///
    /// # Safety
    /// `M::WIDTH` numbers can be read at `at`.
    unsafe fn load<M: Registers>(m: M, at: *const Self) -> M::V;
}

impl KvElement for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
    const NAN: Self = f32::NAN;

    #[inline(always)]
    unsafe fn load<M: Registers>(m: M, at: *const Self) -> M::V {
        // SAFETY: the caller's.
        unsafe { m.load(at) }
    }
}

impl KvElement for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        bf16::from_f32(x)
    }
    const NAN: Self = bf16::NAN;

    #[inline(always)]
    unsafe fn load<M: Registers>(m: M, at: *const Self) -> M::V {
        // SAFETY: the caller's.
        unsafe { m.load_bf16(at) }
    }
}

impl KvElement for f16 {
    /// Integer form of the conversion, which compilers vectorise on every target: shift the fields into place and
    /// rebias the exponent by an exact multiplication, which also normalises subnormals.
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000); // × 2^112
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | ((bits & 0x8000) << 16))
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        f16::from_f32(x)
    }
    const NAN: Self = f16::NAN;

    #[inline(always)]
    unsafe fn load<M: Registers>(m: M, at: *const Self) -> M::V {
        // SAFETY: the caller's.
        unsafe { m.load_f16(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let x = f16::from_bits(bits);
            let (ours, theirs) = (x.widen(), x.to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#06x}");
        }
    }

    #[test]
    fn every_bf16_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let x = bf16::from_bits(bits);
            assert!(x.widen().to_bits() == x.to_f32().to_bits() || x.is_nan());
        }
    }
}
