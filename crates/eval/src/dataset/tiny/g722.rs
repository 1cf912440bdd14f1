//! Decoding of G.722 at 64 kbit/s, after ITU-T Recommendation G.722 (09/2012), sections 4 and 6.2. Integer arithmetic, so the
//! same samples on every machine. Names of quantities are the recommendation's.

/// 6-bit inverse quantiser of the lower band.
const QM6: [i32; 64] = [
    -136, -136, -136, -136, -24808, -21904, -19008, -16704, -14984, -13512, -12280, -11192, -10232, -9360,
    -8576, -7856, -7192, -6576, -6000, -5456, -4944, -4464, -4008, -3576, -3168, -2776, -2400, -2032, -1688,
    -1360, -1040, -728, 24808, 21904, 19008, 16704, 14984, 13512, 12280, 11192, 10232, 9360, 8576, 7856,
    7192, 6576, 6000, 5456, 4944, 4464, 4008, 3576, 3168, 2776, 2400, 2032, 1688, 1360, 1040, 728, 432, 136,
    -432, -136,
];
/// 4-bit inverse quantiser of the lower band, for adaptation.
const QM4: [i32; 16] =
    [0, -20456, -12896, -8968, -6288, -4240, -2584, -1200, 20456, 12896, 8968, 6288, 4240, 2584, 1200, 0];
/// 2-bit inverse quantiser of the higher band.
const QM2: [i32; 4] = [-7408, -1616, 7408, 1616];
/// Steps of the lower band's logarithmic scale, by code.
const WL: [i32; 16] = [-60, 3042, 1198, 538, 334, 172, 58, -30, 3042, 1198, 538, 334, 172, 58, -30, -60];
/// Steps of the higher band's, by code.
const WH: [i32; 4] = [798, -214, 798, -214];
/// 2^11 · 2^(i/32).
const ILB: [i32; 32] = [
    2048, 2093, 2139, 2186, 2233, 2282, 2332, 2383, 2435, 2489, 2543, 2599, 2656, 2714, 2774, 2834, 2896,
    2960, 3025, 3091, 3158, 3228, 3298, 3371, 3444, 3520, 3597, 3676, 3756, 3838, 3922, 4008,
];
/// Every second coefficient of the quadrature mirror filter; the others are these in reverse.
const QMF: [i32; 12] = [3, -11, 12, 32, -210, 951, 3876, -805, 362, -156, 53, -11];

fn sat(x: i32) -> i32 {
    x.clamp(-32768, 32767)
}

/// One sub-band's adaptive predictor and quantiser scale.
struct Band {
    /// Logarithmic scale, and the scale itself.
    nb: i32,
    det: i32,
    /// Signal estimate, and its zero part.
    s: i32,
    sz: i32,
    /// Last differences, reconstructed signals, partial reconstructions; the newest first.
    d: [i32; 7],
    r: [i32; 2],
    p: [i32; 2],
    /// Coefficients of the pole and of the zero predictor.
    a: [i32; 2],
    b: [i32; 6],
}

impl Band {
    fn new(det: i32) -> Self {
        Self { nb: 0, det, s: 0, sz: 0, d: [0; 7], r: [0; 2], p: [0; 2], a: [0; 2], b: [0; 6] }
    }

    /// Adapts the scale to a code's step (LOGSCL, SCALEL and their like for the higher band).
    fn rescale(&mut self, step: i32, limit: i32, shift: i32) {
        self.nb = (((self.nb * 127) >> 7) + step).clamp(0, limit);
        let mantissa = ILB[(self.nb >> 6) as usize & 31];
        let shift = shift - (self.nb >> 11);
        self.det = if shift < 0 { mantissa << -shift } else { mantissa >> shift } << 2;
    }

    /// Adapts the predictor to a quantised difference and predicts the next sample (block 4).
    fn adapt(&mut self, d: i32) {
        let r = sat(self.s + d);
        let p = sat(self.sz + d);
        let same = |x: i32, y: i32| (x < 0) == (y < 0);
        let twice = sat(self.a[0] << 2);
        let lean = if same(p, self.p[0]) { -twice } else { twice }.min(32767);
        let second = (lean >> 7) + if same(p, self.p[1]) { 128 } else { -128 } + ((self.a[1] * 32512) >> 15);
        let second = second.clamp(-12288, 12288);
        let first = sat(if same(p, self.p[0]) { 192 } else { -192 } + ((self.a[0] * 32640) >> 15));
        let limit = sat(15360 - second);
        self.a = [first.clamp(-limit, limit), second];
        let step = if d == 0 { 0 } else { 128 };
        for (b, old) in self.b.iter_mut().zip(&self.d) {
            *b = sat(if same(*old, d) { step } else { -step } + ((*b * 32640) >> 15));
        }
        self.d.rotate_right(1);
        self.d[0] = d;
        self.r = [r, self.r[0]];
        self.p = [p, self.p[0]];
        let poles = self.a.iter().zip(&self.r).map(|(a, r)| (a * sat(r + r)) >> 15).sum();
        self.sz = sat(self.b.iter().zip(&self.d).map(|(b, d)| (b * sat(d + d)) >> 15).sum());
        self.s = sat(sat(poles) + self.sz);
    }
}

/// Two samples at 16 kHz for every byte.
pub(super) fn decode(bytes: &[u8]) -> Vec<i16> {
    let (mut low, mut high) = (Band::new(32), Band::new(8));
    let mut x = [0_i32; 24];
    let mut out = Vec::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let (il, ih) = (usize::from(byte & 63), usize::from(byte >> 6));
        let rl = (low.s + ((low.det * QM6[il]) >> 15)).clamp(-16384, 16383);
        let dl = (low.det * QM4[il >> 2]) >> 15;
        low.rescale(WL[il >> 2], 18432, 8);
        low.adapt(dl);
        let dh = (high.det * QM2[ih]) >> 15;
        let rh = (high.s + dh).clamp(-16384, 16383);
        high.rescale(WH[ih], 22528, 10);
        high.adapt(dh);
        x.copy_within(2.., 0);
        (x[22], x[23]) = (rl + rh, rl - rh);
        let sum = |first: usize, order: &dyn Fn(usize) -> usize| -> i16 {
            let sum: i32 = (0..12).map(|i| x[2 * i + first] * QMF[order(i)]).sum();
            sat(sum >> 11) as i16
        };
        out.push(sum(1, &|i| 11 - i));
        out.push(sum(0, &|i| i));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loud chirp with noise, silence and a clipped square wave, coded and decoded by FFmpeg 5.1
    /// (`tools/goldens/g722.py`).
    #[test]
    fn the_same_samples_as_ffmpeg() {
        let expected: Vec<i16> = include_bytes!("../../../tests/goldens/chirp.s16")
            .chunks_exact(2)
            .map(|pair| i16::from_le_bytes([pair[0], pair[1]]))
            .collect();
        assert_eq!(decode(include_bytes!("../../../tests/goldens/chirp.g722")), expected);
        assert!(decode(&[]).is_empty());
    }
}
