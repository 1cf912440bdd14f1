//! Choice of instruction set at run time.

use std::sync::OnceLock;

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
    use super::MulAdd;

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
    }
}
