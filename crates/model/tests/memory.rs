//! Loading quantises layer by layer: the peak is the result and one layer in f32, and the plan predicts the result.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use wnw_kv::KvDtype;
use wnw_model::{LoadOptions, MemoryPlan, ModelFiles, WeightDtype};

struct Counting;
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator unchanged; the counters are atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HIDDEN: usize = 512;
const INNER: usize = 2048;
const LAYERS: usize = 6;
/// The output layer is several times larger than a decoder layer, as in the real models.
const VOCAB: usize = 32_768;
const ENCODER: usize = 64;

/// A checkpoint of random bf16 weights; returns the elements of one decoder layer.
fn write_checkpoint(dir: &std::path::Path) -> usize {
    let mut tensors: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |name: &str, shape: &[usize]| tensors.push((name.into(), shape.to_vec()));
    add("audio_tower.conv1.weight", &[ENCODER, 128, 3]);
    add("audio_tower.conv1.bias", &[ENCODER]);
    add("audio_tower.conv2.weight", &[ENCODER, ENCODER, 3]);
    add("audio_tower.conv2.bias", &[ENCODER]);
    add("audio_tower.embed_positions.weight", &[1500, ENCODER]);
    for norm in ["layer_norm", "layers.0.self_attn_layer_norm", "layers.0.final_layer_norm"] {
        add(&format!("audio_tower.{norm}.weight"), &[ENCODER]);
        add(&format!("audio_tower.{norm}.bias"), &[ENCODER]);
    }
    for (name, n, k, bias) in [
        ("self_attn.q_proj", ENCODER, ENCODER, true),
        ("self_attn.k_proj", ENCODER, ENCODER, false),
        ("self_attn.v_proj", ENCODER, ENCODER, true),
        ("self_attn.out_proj", ENCODER, ENCODER, true),
        ("fc1", 4 * ENCODER, ENCODER, true),
        ("fc2", ENCODER, 4 * ENCODER, true),
    ] {
        add(&format!("audio_tower.layers.0.{name}.weight"), &[n, k]);
        if bias {
            add(&format!("audio_tower.layers.0.{name}.bias"), &[n]);
        }
    }
    add("multi_modal_projector.linear_1.weight", &[HIDDEN, 4 * ENCODER]);
    add("multi_modal_projector.linear_2.weight", &[HIDDEN, HIDDEN]);
    add("language_model.model.embed_tokens.weight", &[VOCAB, HIDDEN]);
    add("language_model.lm_head.weight", &[VOCAB, HIDDEN]);
    add("language_model.model.norm.weight", &[HIDDEN]);
    let mut layer = 0;
    for l in 0..LAYERS {
        for (name, n, k) in [
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", 128, HIDDEN),
            ("self_attn.v_proj", 128, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", INNER, HIDDEN),
            ("mlp.up_proj", INNER, HIDDEN),
            ("mlp.down_proj", HIDDEN, INNER),
        ] {
            add(&format!("language_model.model.layers.{l}.{name}.weight"), &[n, k]);
            layer += if l == 0 { n * k } else { 0 };
        }
        add(&format!("language_model.model.layers.{l}.input_layernorm.weight"), &[HIDDEN]);
        add(&format!("language_model.model.layers.{l}.post_attention_layernorm.weight"), &[HIDDEN]);
    }
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| {
            let n: usize = shape.iter().product();
            (0..n)
                .flat_map(|i| half::bf16::from_f32((i * 31 % 17) as f32 / 17.0 - 0.5).to_le_bytes())
                .collect()
        })
        .collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, shape), data)| (name, TensorView::new(Dtype::BF16, shape.clone(), data).unwrap()));
    std::fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let config = serde_json::json!({
        "model_type": "voxtral",
        "audio_config": {"hidden_size": ENCODER, "intermediate_size": 4 * ENCODER, "num_hidden_layers": 1, "num_attention_heads": 2},
        "text_config": {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
            "num_key_value_heads": 2, "head_dim": 64, "vocab_size": VOCAB, "rope_theta": 1e8, "rms_norm_eps": 1e-5},
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    layer
}

#[test]
fn quantising_needs_the_result_and_one_layer() {
    let dir = tempfile::tempdir().unwrap();
    let layer = write_checkpoint(dir.path());
    for dtype in [WeightDtype::Q8_0, WeightDtype::Q6k, WeightDtype::F16, WeightDtype::Bf16] {
        let before = NOW.load(Relaxed);
        PEAK.store(before, Relaxed);
        let files = ModelFiles::open(dir.path()).unwrap();
        let parts = files.load_parts(&LoadOptions { dtype: Some(dtype) }, |_, _| {}).unwrap();
        let logits = parts.1.logits(&[0.1; HIDDEN]);
        assert!(logits.iter().all(|x| x.is_finite()));
        drop(logits);
        let result = NOW.load(Relaxed) - before;
        let peak = PEAK.load(Relaxed) - before;
        let plan = MemoryPlan::new(files.family.as_ref(), dtype, KvDtype::Bf16, 30.0, 0);
        println!(
            "{dtype}: peak {peak}, result {result}, plan {}, one layer {}",
            plan.decoder_weights,
            4 * layer
        );
        assert!(peak <= result + 4 * layer, "{dtype}: {peak} > {result} + {}", 4 * layer);
        if dtype == WeightDtype::Bf16 {
            // A bf16 checkpoint is used where it lies.
            assert!(result < 1 << 20, "{result} bytes copied");
        } else {
            let share = result as f64 / plan.decoder_weights as f64;
            assert!(
                (0.95..1.06).contains(&share),
                "{dtype}: {result} against a plan of {}",
                plan.decoder_weights
            );
        }
        drop(parts);
    }
}
