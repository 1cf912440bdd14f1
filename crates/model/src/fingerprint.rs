//! A short name for a checkpoint's content.

use ring::digest::{Context, SHA256};

use crate::checkpoint::Checkpoint;

/// Bytes read at each end of a tensor: enough that any training step changes them, little enough that nothing needs to
/// be paged in.
const SAMPLE: usize = 64;

/// The first 16 hexadecimal digits of a SHA-256 over the tensors' canonical names, types, shapes, and both ends of their
/// bytes. The same weights under another file layout of the same naming have the same fingerprint.
pub(crate) fn fingerprint(checkpoint: &Checkpoint) -> String {
    let mut tensors: Vec<_> = checkpoint.tensors().collect();
    tensors.sort_unstable_by_key(|(name, _)| *name);
    let mut hash = Context::new(&SHA256);
    for (name, view) in tensors {
        hash.update(format!("{name} {:?} {:?}\n", view.dtype, view.shape).as_bytes());
        let data = view.data();
        hash.update(&data[..SAMPLE.min(data.len())]);
        hash.update(&data[data.len().saturating_sub(SAMPLE)..]);
    }
    hash.finish().as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
