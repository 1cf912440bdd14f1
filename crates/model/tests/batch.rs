//! Sessions that step together have the numbers that they have alone, bit for bit, whoever joins and leaves.

use std::ops::ControlFlow;

use wnw_kv::policies::Full;
use wnw_kv::{Arena, KvDtype, KvStore, PAGE_ROWS, PromptLayout, StoreOptions};
use wnw_model::shapes::ModelShape;
use wnw_model::{Decoder, ModelError, StepSession, WeightDtype};

/// A session after a prefill of `n` positions.
fn session(decoder: &Decoder, n: usize, device: Option<u64>) -> KvStore {
    let layout = PromptLayout::around(4, n - 8);
    let options =
        StoreOptions { dtype: KvDtype::Bf16, device: Arena::new(device), ..StoreOptions::default() };
    let mut store = KvStore::new(decoder.kv_shape(), layout, &options);
    let x: Vec<f32> = (0..n * decoder.hidden_size()).map(|i| (i as f32 * 0.7 + n as f32).sin()).collect();
    decoder.prefill(x, 1, &mut store, &mut Full, &mut |_| ControlFlow::Continue(())).unwrap();
    store
}

const LENGTHS: [usize; 6] = [20, 333, 70, 71, 1200, 9];

/// Token that session `s` feeds in its step `i`.
fn token(s: usize, i: usize) -> u32 {
    ((s * 131 + i * 17) % 800) as u32
}

fn check(shape: &str, dtype: WeightDtype) {
    let mut shape = ModelShape::find(shape).unwrap();
    shape.decoder.n_layers = 2;
    if shape.name != "tiny" {
        // Large enough that products are shared out among threads, and quick.
        (shape.decoder.hidden_size, shape.decoder.intermediate_size) = (512, 1536);
        shape.decoder.vocab_size = 4096;
    }
    let decoder = Decoder::random(&shape.decoder, dtype, 5, |_, _| {}).unwrap();
    let steps = 6;
    let alone: Vec<Vec<Vec<f32>>> = LENGTHS
        .iter()
        .enumerate()
        .map(|(s, n)| {
            let (mut store, mut buffers) = (session(&decoder, *n, None), decoder.step_buffers());
            let step = |i| decoder.step(token(s, i), n + i, &mut store, &mut buffers).unwrap().to_vec();
            (0..steps).map(step).collect()
        })
        .collect();
    let mut stores: Vec<KvStore> = LENGTHS.iter().map(|n| session(&decoder, *n, None)).collect();
    let mut buffers = decoder.step_buffers();
    let mut taken = [0; LENGTHS.len()];
    // Session s joins in round s / 2 and leaves after its last step: batches of 2, 4, 6, and fewer again.
    for round in 0..steps + LENGTHS.len() / 2 {
        let here: Vec<usize> = (0..LENGTHS.len()).filter(|s| s / 2 <= round && taken[*s] < steps).collect();
        let mut batch: Vec<StepSession<'_>> = stores
            .iter_mut()
            .enumerate()
            .filter(|(s, _)| here.contains(s))
            .map(|(s, store)| StepSession::new(token(s, taken[s]), LENGTHS[s] + taken[s], store))
            .collect();
        if batch.is_empty() {
            continue;
        }
        let logits = decoder.step_batch(&mut batch, &mut buffers);
        assert!(batch.iter().all(|session| session.failed.is_none()));
        for (s, logits) in here.iter().zip(logits.chunks_exact(shape.decoder.vocab_size)) {
            assert!(logits == alone[*s][taken[*s]], "{} {dtype}: session {s}, round {round}", shape.name);
            taken[*s] += 1;
        }
    }
    assert_eq!(taken, [steps; LENGTHS.len()]);
}

#[test]
fn logits_do_not_depend_on_who_steps_along() {
    for dtype in [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16, WeightDtype::Q8_0] {
        check("tiny", dtype);
        check("voxtral-mini-3b", dtype);
        check("qwen2.5-omni-3b", dtype);
    }
    check("voxtral-mini-3b", WeightDtype::Q6k);
}

#[test]
fn a_session_that_fails_leaves_the_others_alone() {
    let shape = ModelShape::find("tiny").unwrap();
    let decoder = Decoder::random(&shape.decoder, WeightDtype::Q8_0, 5, |_, _| {}).unwrap();
    let mut buffers = decoder.step_buffers();
    let mut good = session(&decoder, 20, None);
    let want = decoder.step(7, 20, &mut good, &mut buffers).unwrap().to_vec();
    let mut good = session(&decoder, 20, None);
    // Exactly full: a whole page of each head, and no room for another.
    let bytes = PAGE_ROWS as u64 * decoder.kv_shape().bytes_per_position(KvDtype::Bf16);
    let mut full = session(&decoder, PAGE_ROWS, Some(bytes));
    let (mut far, mut unknown) = (session(&decoder, 20, None), session(&decoder, 20, None));
    let mut batch = [
        StepSession::new(7, PAGE_ROWS, &mut full),
        StepSession::new(7, 20, &mut good),
        StepSession::new(7, shape.decoder.max_positions, &mut far),
        StepSession::new(1 << 20, 20, &mut unknown),
    ];
    let logits = decoder.step_batch(&mut batch, &mut buffers);
    assert!(matches!(batch[0].failed, Some(ModelError::Store(_))), "{:?}", batch[0].failed);
    assert!(batch[1].failed.is_none());
    assert!(matches!(batch[2].failed, Some(ModelError::TooLong { .. })));
    assert!(matches!(batch[3].failed, Some(ModelError::Input(_))));
    assert!(logits[800..1600] == want[..]);
}
