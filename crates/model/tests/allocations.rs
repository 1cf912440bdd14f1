//! A decoding step allocates nothing, but for the pages of its keys and values.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use wnw_kv::policies::Full;
use wnw_kv::{KvDtype, KvStore, PAGE_ROWS, PromptLayout, StoreOptions};
use wnw_model::shapes::ModelShape;
use wnw_model::{Decoder, WeightDtype};

struct Counting;
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator unchanged; the counter is atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test alone, since allocations are counted for the whole process.
#[test]
fn a_step_allocates_nothing() {
    // As the command line has it: the thread that drives the steps is one of the pool.
    rayon::ThreadPoolBuilder::new().num_threads(2).use_current_thread().build_global().unwrap();
    let mut shape = ModelShape::find("voxtral-mini-3b").unwrap();
    // Small, and large enough for several threads.
    (shape.decoder.n_layers, shape.decoder.vocab_size) = (2, 4096);
    (shape.decoder.hidden_size, shape.decoder.intermediate_size) = (512, 1536);
    let prompt = 2 * PAGE_ROWS + 3;
    for dtype in [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16, WeightDtype::Q8_0, WeightDtype::Q6k]
    {
        for kv_dtype in [KvDtype::Bf16, KvDtype::Int4] {
            let decoder = Decoder::random(&shape.decoder, dtype, 5, |_, _| {}).unwrap();
            let options = StoreOptions { dtype: kv_dtype, ..StoreOptions::default() };
            let layout = PromptLayout::around(4, prompt - 8);
            let mut store = KvStore::new(decoder.kv_shape(), layout, &options);
            let x = (0..prompt * decoder.hidden_size()).map(|i| (i as f32 * 0.7).sin()).collect();
            decoder.prefill(x, 1, &mut store, &mut Full, &mut |_| ControlFlow::Continue(())).unwrap();
            let mut buffers = decoder.step_buffers();
            let mut step =
                |i: usize| decoder.step(i as u32, prompt + i, &mut store, &mut buffers).map(|_| ());
            // The first steps size the buffers, and the threads theirs; the rest stay within a page.
            (0..4).for_each(|i| step(i).unwrap());
            let before = ALLOCATIONS.load(Relaxed);
            (4..PAGE_ROWS - 4).for_each(|i| step(i).unwrap());
            let allocations = ALLOCATIONS.load(Relaxed) - before;
            assert_eq!(allocations, 0, "{dtype} weights, {kv_dtype:?}");
            // The counter counts: a new page is an allocation.
            (PAGE_ROWS - 4..PAGE_ROWS).for_each(|i| step(i).unwrap());
            assert!(ALLOCATIONS.load(Relaxed) > before);
        }
    }
}
