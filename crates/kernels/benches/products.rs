//! Products at the shape of Voxtral-Mini's feed-forward layer, against what memory can bring: `cargo bench -p wnw-kernels`.
//!
//! Weights are rotated over copies that no cache holds. Each figure is the best of several rounds, since a machine is
//! seldom idle; the share is that of the bandwidth measured in the same run. `RAYON_NUM_THREADS` sets the threads.

use std::hint::black_box;
use std::time::Instant;

use half::bf16;
use rayon::prelude::*;
use wnw_kernels::bf16::{Bf16Rows, has_many, many};
use wnw_kernels::q8::{q8_many, q8_step};
use wnw_kernels::tiles::for_each_tile;
use wnw_kernels::vector::score_rows;
use wnw_kernels::vector::widen;
use wnw_kernels::{Q8Matrix, Q8Rows, TILE, half_step, tiled_linear};

/// Columns and rows of the weights.
const K: usize = 3072;
const N: usize = 8192;
/// Rounds, of which the best counts.
const ROUNDS: usize = 40;

fn best(mut run: impl FnMut(usize)) -> f64 {
    let time = |i| {
        let clock = Instant::now();
        run(i);
        clock.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(time).fold(f64::INFINITY, f64::min)
}

fn bandwidth() -> f64 {
    let words = vec![1u64; 64 << 20]; // 512 MiB
    let piece = words.len() / rayon::current_num_threads() / 4;
    let sum = |words: &[u64]| {
        let mut acc = [0u64; 32];
        for chunk in words.chunks_exact(32) {
            acc.iter_mut().zip(chunk).for_each(|(acc, word)| *acc = acc.wrapping_add(*word));
        }
        acc.iter().sum::<u64>()
    };
    let seconds = best(|_| {
        black_box(words.par_chunks(piece).map(sum).sum::<u64>());
    });
    size_of_val(&words[..]) as f64 / seconds
}

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| name.contains(only));
    let read = bandwidth();
    println!("{} threads; memory read {:.1} GB/s", rayon::current_num_threads(), read / 1e9);
    let x: Vec<f32> = (0..512 * K).map(|i| (i as f32 * 0.37).sin()).collect();
    let row: Vec<f32> = (0..N * K).map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 1001.0).collect();
    let mut out = vec![0f32; 512 * N];
    let tell_step = |name: &str, m: usize, bytes: usize, seconds: f64| {
        let rate = bytes as f64 / seconds;
        println!(
            "{name:<24} m {m:>3} {:8.3} ms {:6.1} GB/s {:5.1} % {:7.1} GFLOP/s",
            seconds * 1e3,
            rate / 1e9,
            100.0 * rate / read,
            2.0 * (m * N * K) as f64 / seconds / 1e9,
        );
    };

    let wide: Vec<Vec<bf16>> = (0..4).map(|_| row.iter().map(|x| bf16::from_f32(*x)).collect()).collect();
    for m in [1, 4, 8, 16] {
        if wanted("bf16 step") {
            let seconds = best(|i| {
                for_each_tile([(&mut out[..m * N], N)], m, true, |_, mut tile| {
                    half_step(&x[..m * K], &wide[i % 4], K, &mut tile);
                });
            });
            tell_step("bf16 step", m, 2 * N * K, seconds);
        }
    }
    for m in [64, 512] {
        if wanted("bf16 many") && has_many() {
            let seconds = best(|i| {
                let rows = Bf16Rows::new(&x[..m * K], K);
                for_each_tile([(&mut out[..m * N], N)], m, true, |_, mut tile| {
                    many(&rows, &wide[i % 4], &mut tile);
                });
            });
            tell_step("bf16 many", m, 2 * N * K, seconds);
        }
    }
    if wanted("bf16 plain") {
        let seconds = best(|i| {
            for_each_tile([(&mut out[..N], N)], 1, true, |_, mut tile| {
                let rows = tile.first() * K..(tile.first() + tile.columns()) * K;
                let n = tile.columns();
                score_rows(&x[..K], &wide[i % 4][rows], &[], K, 1.0, tile.row(0), n, 0);
            });
        });
        tell_step("bf16 plain", 1, 2 * N * K, seconds);
        let clock = Instant::now();
        let w = &wide[0];
        let widened = |first: usize, rows: &mut [f32]| widen(&w[first * K..first * K + rows.len()], rows);
        tiled_linear(&x, 512, N, K, &mut out, widened);
        tell_step("bf16 plain, widened", 512, 2 * N * K, clock.elapsed().as_secs_f64());
    }
    drop(wide);

    let q8: Vec<Q8Matrix> = (0..7)
        .map(|_| {
            let mut w = Q8Matrix::zeros(N, K);
            w.pieces_mut().zip(row.par_chunks(TILE * K)).for_each(|(mut piece, rows)| piece.set(rows));
            w
        })
        .collect();
    let bytes = q8[0].bytes();
    let mut rounded = Q8Rows::default();
    for m in [1, 2, 4, 8, 16] {
        if wanted("q8_0 step") {
            let seconds = best(|i| {
                rounded.set(&x[..m * K], K);
                for_each_tile([(&mut out[..m * N], N)], m, true, |_, mut tile| {
                    q8_step(&rounded, &q8[i % 7], &mut tile);
                });
            });
            tell_step("q8_0 step", m, bytes, seconds);
        }
    }
    for m in [64, 512] {
        if wanted("q8_0 many") {
            let seconds = best(|i| {
                rounded.set(&x[..m * K], K);
                for_each_tile([(&mut out[..m * N], N)], m, true, |_, mut tile| {
                    q8_many(&rounded, &q8[i % 7], &mut tile);
                });
            });
            tell_step("q8_0 many", m, bytes, seconds);
        }
    }
    if wanted("q8_0 widened") {
        let clock = Instant::now();
        let w = &q8[0];
        tiled_linear(&x, 512, N, K, &mut out, |first, wide| w.rows_to_f32(first, wide));
        tell_step("q8_0 widened, f32", 512, bytes, clock.elapsed().as_secs_f64());
    }
}
