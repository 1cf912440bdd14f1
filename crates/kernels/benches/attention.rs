//! One step's attention of a layer over half an hour of audio, against what memory can bring: `cargo bench -p wnw-kernels`.
//!
//! Keys and values lie in pages of 64 rows, as in the store. Each figure is the best of several rounds; the bandwidth is
//! that of `products`. `RAYON_NUM_THREADS` sets the threads, of which each takes heads.

use std::time::Instant;

use half::bf16;
use rayon::prelude::*;
use wnw_kernels::elementwise::{exp_sub_sum, max, scale};
use wnw_kernels::vector::{MIX_LANES, encode_row, fold_mix, mix_rows, score_rows};
use wnw_kernels::{Int4, Int8, KvRow};

const ROWS: usize = 22_500;
const PAGE: usize = 64;
const ROUNDS: usize = 12;

struct Head<T> {
    pages: Vec<Vec<T>>, // keys, then values
    weights: Vec<f32>,
    mixed: Vec<f32>,
    out: Vec<f32>,
}

fn run<T: KvRow>(name: &str, heads: usize, head_dim: usize, group: usize) {
    let len = T::row_len(head_dim);
    let n = ROWS / PAGE * PAGE;
    let mut all: Vec<Head<T>> = (0..heads)
        .map(|h| {
            let page = |p: usize| {
                let mut page = vec![T::STALE; 2 * PAGE * len];
                for (r, row) in page.chunks_exact_mut(len).enumerate() {
                    let x: Vec<f32> =
                        (0..head_dim).map(|d| ((h + p * 31 + r * 7 + d * 3) as f32 * 0.37).sin()).collect();
                    encode_row(&x, row);
                }
                page
            };
            Head {
                pages: (0..n / PAGE).map(page).collect(),
                weights: vec![0.0; group * n],
                mixed: vec![0.0; group * MIX_LANES * head_dim],
                out: vec![0.0; group * head_dim],
            }
        })
        .collect();
    let q: Vec<f32> = (0..group * head_dim).map(|i| (i as f32 * 0.11).cos()).collect();
    let mut best = [f64::INFINITY; 4];
    for _ in 0..ROUNDS {
        let clock = Instant::now();
        let parts: Vec<[f64; 3]> = all
            .par_iter_mut()
            .map(|head| {
                let clock = Instant::now();
                for (p, page) in head.pages.iter().enumerate() {
                    let keys = &page[..PAGE * len];
                    let next = head.pages.get(p + 1).map_or(&[][..], |next| &next[..PAGE * len]);
                    score_rows(&q, keys, next, head_dim, 0.1, &mut head.weights, n, p * PAGE);
                }
                let scored = clock.elapsed().as_secs_f64();
                for weights in head.weights.chunks_exact_mut(n) {
                    let top = max(weights);
                    let sum = exp_sub_sum(weights, top);
                    scale(weights, 1.0 / sum);
                }
                let softmaxed = clock.elapsed().as_secs_f64();
                head.mixed.fill(0.0);
                for (p, page) in head.pages.iter().enumerate() {
                    let next = head.pages.get(p + 1).map_or(&[][..], |next| &next[PAGE * len..]);
                    mix_rows(
                        &head.weights,
                        n,
                        p * PAGE,
                        &page[PAGE * len..],
                        next,
                        head_dim,
                        &mut head.mixed,
                    );
                }
                fold_mix(&head.mixed, head_dim, &mut head.out);
                [scored, softmaxed - scored, clock.elapsed().as_secs_f64() - softmaxed]
            })
            .collect();
        best[0] = best[0].min(clock.elapsed().as_secs_f64());
        for part in 0..3 {
            best[part + 1] = best[part + 1].min(parts.iter().map(|p| p[part]).sum());
        }
    }
    let bytes = (2 * n * heads * T::row_bytes(head_dim)) as f64;
    println!(
        "{name:<5} {heads:>2} heads × {head_dim:>3}, group {group}: {:7.2} ms {:5.1} GB/s; threads' time: scores {:.2}, \
         softmax {:.2}, mix {:.2} ms",
        best[0] * 1e3,
        bytes / best[0] / 1e9,
        best[1] * 1e3,
        best[2] * 1e3,
        best[3] * 1e3,
    );
}

fn main() {
    println!("{} threads, {ROWS} rows", rayon::current_num_threads());
    run::<bf16>("bf16", 8, 128, 4);
    run::<Int8>("int8", 8, 128, 4);
    run::<Int4>("int4", 8, 128, 4);
    run::<bf16>("bf16", 4, 32, 2);
    run::<Int4>("int4", 4, 32, 2);
}
