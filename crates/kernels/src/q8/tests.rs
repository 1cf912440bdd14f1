use super::*;
use crate::tiles::for_each_tile;
use proptest::prelude::*;

const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed | 1;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((s >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 3.0
        })
        .collect()
}

fn matrix(n: usize, k: usize, w: &[f32]) -> Q8Matrix {
    let mut matrix = Q8Matrix::zeros(n, k);
    matrix.pieces_mut().zip(w.par_chunks(TILE * k)).for_each(|(mut piece, rows)| piece.set(rows));
    matrix
}

fn product(x: &[f32], w: &Q8Matrix, with: impl Fn(&Q8Rows, &Q8Matrix, &mut Tile<'_>) + Sync) -> Vec<f32> {
    let (n, k) = w.shape();
    let (mut rows, m) = (Q8Rows::default(), x.len() / k);
    rows.set(x, k);
    let mut out = vec![f32::NAN; m * n];
    for_each_tile([(&mut out, n)], m, false, |_, mut tile| with(&rows, w, &mut tile));
    out
}

/// A block as GGML defines it, in f64 where nothing rounds.
fn block(x: &[f32]) -> (f64, Vec<i64>) {
    let top = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    let scale = top / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    (f16::from_f32(scale).to_f64(), x.iter().map(|x| (x * inverse).round() as i64).collect())
}

/// The product of rounded rows, exactly, and the sum of the magnitudes of what is added up.
fn exact(x: &[f32], w: &[f32]) -> (f64, f64) {
    x.chunks(Q8_BLOCK).zip(w.chunks(Q8_BLOCK)).fold((0.0, 0.0), |(sum, size), (x, w)| {
        let ((dx, x), (dw, w)) = (block(x), block(w));
        let products = x.iter().zip(&w).map(|(x, w)| (x * w) as f64 * dx * dw);
        (sum + products.clone().sum::<f64>(), size + products.map(f64::abs).sum::<f64>())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn products_are_those_of_the_rounded_numbers(m in 1usize..20, n in 1usize..150, blocks in 1usize..6, seed: u64) {
        let k = blocks * Q8_BLOCK;
        let (x, w) = (noise(m * k, seed), noise(n * k, seed ^ 1 << 40));
        let matrix = matrix(n, k, &w);
        for isa in ALL {
            for out in [product(&x, &matrix, |x, w, tile| q8_step_with(isa, x, w, tile)),
                product(&x, &matrix, |x, w, tile| q8_many_with(isa, x, w, tile))]
            {
                for i in 0..m {
                    for j in 0..n {
                        let (sum, size) = exact(&x[i * k..(i + 1) * k], &w[j * k..(j + 1) * k]);
                        prop_assert!((f64::from(out[i * n + j]) - sum).abs() <= 1e-6 * size, "{isa:?} ({i}, {j})");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_a_step_have_the_bits_that_they_have_alone(m in 2usize..20, n in 1usize..70, blocks in 1usize..6, seed: u64) {
        let k = blocks * Q8_BLOCK;
        let x = noise(m * k, seed);
        let matrix = matrix(n, k, &noise(n * k, seed ^ 1 << 40));
        for isa in ALL {
            let all = product(&x, &matrix, |x, w, tile| q8_step_with(isa, x, w, tile));
            for (x, out) in x.chunks(k).zip(all.chunks(n)) {
                prop_assert_eq!(&product(x, &matrix, |x, w, tile| q8_step_with(isa, x, w, tile)), out);
            }
        }
        // AVX2 and VNNI do the same sums.
        if crate::isa() != Isa::Portable {
            let of = |isa| product(&x, &matrix, move |x: &Q8Rows, w: &Q8Matrix, tile: &mut Tile<'_>| q8_step_with(isa, x, w, tile));
            prop_assert_eq!(of(Isa::Avx2), of(Isa::Avx512));
            let of = |isa| product(&x, &matrix, move |x: &Q8Rows, w: &Q8Matrix, tile: &mut Tile<'_>| q8_many_with(isa, x, w, tile));
            prop_assert_eq!(of(Isa::Avx2), of(Isa::Avx512));
        }
    }
}

#[test]
fn weights_widen_to_their_rounded_values() {
    let (n, k) = (37, 96);
    let mut w = noise(n * k, 5);
    w[3 * k..3 * k + Q8_BLOCK].fill(0.0);
    let matrix = matrix(n, k, &w);
    assert_eq!(matrix.bytes(), 48 * k / 32 * 34);
    let mut wide = vec![f32::NAN; 30 * k];
    matrix.rows_to_f32(7, &mut wide);
    for (wide, w) in wide.chunks(Q8_BLOCK).zip(w[7 * k..].chunks(Q8_BLOCK)) {
        let (scale, codes) = block(w);
        for (wide, code) in wide.iter().zip(codes) {
            assert_eq!(*wide, scale as f32 * code as f32);
        }
    }
    matrix.rows_to_f32(3, &mut wide[..k]);
    assert!(wide[..Q8_BLOCK].iter().all(|x| *x == 0.0));
}

#[test]
fn activations_of_every_instruction_set_round_alike() {
    let mut x = noise(4 * Q8_BLOCK, 9);
    x[5] = 0.5;
    x[..Q8_BLOCK].iter_mut().skip(6).for_each(|x| *x = 0.0); // 127 and halves
    x[Q8_BLOCK..2 * Q8_BLOCK].fill(-0.0);
    let run = |isa| {
        let (mut codes, mut scales) = (vec![0i8; x.len()], vec![0f32; 4]);
        let (mut quads, mut blocks) = (vec![0; x.len() / 4], vec![0; 4]);
        quantize_with(isa, &x, &mut codes, &mut scales, &mut quads, &mut blocks);
        (codes, scales, quads, blocks)
    };
    let (codes, scales, quads, blocks) = run(Isa::Portable);
    for isa in ALL {
        assert_eq!(run(isa), (codes.clone(), scales.clone(), quads.clone(), blocks.clone()), "{isa:?}");
    }
    for (b, x) in x.chunks(Q8_BLOCK).enumerate() {
        let (scale, want) = block(x);
        let codes: Vec<i64> = codes[b * Q8_BLOCK..][..Q8_BLOCK].iter().map(|c| i64::from(*c)).collect();
        assert_eq!((f64::from(scales[b]), &codes), (scale, &want));
        assert_eq!(i64::from(blocks[b]), -128 * want.iter().sum::<i64>());
        for (quad, want) in quads[b * QUADS..].iter().zip(want.chunks(QUAD)) {
            assert_eq!(i64::from(*quad), -128 * want.iter().sum::<i64>());
        }
    }
}
