//! The tensors of a checkpoint: found under any of their spellings, checked, and left where they lie.
//!
//! A Hugging Face directory holds `model.safetensors`, or shards listed in `model.safetensors.index.json`; Mistral's own
//! layout is one `consolidated.safetensors`. Files are mapped into memory and tensors handed out as views. Whatever
//! the spelling, which a family knows, the rest of the crate sees `audio_tower.…`, `multi_modal_projector.…` and
//! `language_model.…`, as in Voxtral's release.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use safetensors::{Dtype, SafeTensors};
use thiserror::Error;

use crate::linear::{WeightError, to_f32};
use crate::model::read_regular;

/// Why the tensors of a checkpoint cannot be used.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A file is absent or unreadable.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No weights in the directory.
    #[error(
        "{0}: no weights here; a checkpoint directory holds model.safetensors, model.safetensors.index.json with its shards, or consolidated.safetensors with params.json"
    )]
    NoWeights(PathBuf),
    /// A broken or truncated safetensors file.
    #[error("{path}: not a complete safetensors file ({reason}); fetch it again")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        reason: String,
    },
    /// A broken index.
    #[error("{path}: not a safetensors index: {reason}")]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The set of tensors is not the one that the configuration asks for.
    #[error("{path}: the tensors do not fit the configuration:{0}", .report)]
    Mismatch {
        /// The checkpoint.
        path: PathBuf,
        /// Which tensors, and how, one line each.
        report: String,
    },
    /// An element type that is not a weight's.
    #[error("{path}: tensor {name} is stored as {dtype}; weights must be F32, BF16 or F16")]
    Dtype {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its element type.
        dtype: String,
    },
}

/// How tensors are named and how rotary pairs are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Hugging Face: either generation of names, half-split rotary pairs.
    HuggingFace,
    /// Mistral's consolidated file: own names, interleaved rotary pairs, no table of positions.
    Mistral,
}

/// A family's rule for the canonical name of a tensor; `None` for one that is not loaded.
type Names<'a> = &'a dyn for<'n> Fn(Naming, &'n str) -> Option<Cow<'n, str>>;

/// Bytes that outlive every view of them.
#[derive(Clone)]
pub(crate) enum Bytes {
    /// A mapped file.
    Mapped(Arc<Mmap>),
    /// A file compiled into the program.
    Static(&'static [u8]),
    /// Made in memory.
    Owned(Arc<Vec<u8>>),
}

impl Bytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A tensor of a checkpoint: element type, shape, and where its bytes are.
#[derive(Clone)]
pub struct TensorView {
    /// The name the file uses.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    pub(crate) bytes: Bytes,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl TensorView {
    /// The tensor's bytes, little endian, row major.
    pub fn data(&self) -> &[u8] {
        &self.bytes.as_slice()[self.start..self.start + self.len]
    }

    /// Rows of a query or key projection `(heads · head_dim, k)` reordered, in each head, from interleaved rotary pairs
    /// to half-split ones: row `j · head_dim/2 + i` of the result is row `2i + j` of this tensor, for j = 0, 1.
    pub(crate) fn pairs_to_halves(&self, head_dim: usize) -> Self {
        let row = self.len / self.shape[0];
        let mut out = Vec::with_capacity(self.len);
        for head in self.data().chunks_exact(head_dim * row) {
            for j in 0..2 {
                for i in 0..head_dim / 2 {
                    out.extend_from_slice(&head[(2 * i + j) * row..][..row]);
                }
            }
        }
        Self { bytes: Bytes::Owned(Arc::new(out)), start: 0, ..self.clone() }
    }

    /// The elements as f32, row major; one that is not finite is an error. For tensors that [`Checkpoint::check`] passed.
    pub fn to_f32(&self) -> Result<Vec<f32>, WeightError> {
        to_f32(self)
    }

    /// Gives the tensor's pages back to the system, for weights that have been copied in another type: they would count as
    /// this process's memory although nothing reads them again. If something does, they come back from the file.
    pub(crate) fn release_pages(&self) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = &self.bytes {
            // SAFETY: the map is shared with a file and read-only, so that its pages hold nothing but the file's bytes:
            // dropping them loses nothing, and the next read brings them back.
            let advised =
                unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, self.start, self.len) };
            // Advice that is not taken costs memory and nothing else.
            drop(advised);
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The tensors of one checkpoint under their canonical names.
pub struct Checkpoint {
    path: PathBuf,
    naming: Naming,
    tensors: BTreeMap<String, TensorView>,
}

impl Checkpoint {
    /// Maps the weights of a checkpoint directory whose tensors have their canonical names.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        Self::open_as(dir, &|_, name| Some(name.into()))
    }

    /// Maps the weights of a checkpoint directory, named by `names`. Hugging Face's layout is preferred when both are there.
    pub fn open_as(dir: &Path, names: Names<'_>) -> Result<Self, CheckpointError> {
        let index = dir.join("model.safetensors.index.json");
        let single = dir.join("model.safetensors");
        let consolidated = dir.join("consolidated.safetensors");
        if index.exists() {
            Self::open_sharded(dir, &index, names)
        } else if single.exists() {
            Self::from_files(dir, Naming::HuggingFace, &[single], names)
        } else if consolidated.exists() {
            Self::from_files(dir, Naming::Mistral, &[consolidated], names)
        } else {
            Err(CheckpointError::NoWeights(dir.into()))
        }
    }

    /// Uses a `model.safetensors` that is compiled into the program; `name` is for messages.
    pub fn from_static(name: &str, bytes: &'static [u8], names: Names<'_>) -> Result<Self, CheckpointError> {
        let mut tensors = BTreeMap::new();
        let path = PathBuf::from(name);
        read_file(&path, Bytes::Static(bytes), Naming::HuggingFace, names, &mut tensors)?;
        Ok(Self { path, naming: Naming::HuggingFace, tensors })
    }

    /// Tensors made in memory, in Hugging Face's layout.
    pub(crate) fn from_tensors(name: &str, tensors: BTreeMap<String, TensorView>) -> Self {
        Self { path: PathBuf::from(name), naming: Naming::HuggingFace, tensors }
    }

    fn open_sharded(dir: &Path, index: &Path, names: Names<'_>) -> Result<Self, CheckpointError> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let json = read_regular(index, 256 << 20)
            .map_err(|source| CheckpointError::Io { path: index.into(), source })?;
        let bad = |reason: String| CheckpointError::Index { path: index.into(), reason };
        let Index { weight_map } = serde_json::from_slice(&json).map_err(|e| bad(e.to_string()))?;
        // Shards with nothing but parts that are not loaded need not be there.
        let wanted = |name: &str| names(Naming::HuggingFace, name).is_some();
        let mut shards: Vec<&str> =
            weight_map.iter().filter(|(name, _)| wanted(name)).map(|(_, shard)| shard.as_str()).collect();
        shards.sort_unstable();
        shards.dedup();
        if let Some(name) =
            shards.iter().find(|s| Path::new(s).components().count() != 1 || s.starts_with('.'))
        {
            return Err(bad(format!("shard '{name}' is not a file name")));
        }
        let files: Vec<PathBuf> = shards.iter().map(|s| dir.join(s)).collect();
        let checkpoint = Self::from_files(dir, Naming::HuggingFace, &files, names)?;
        let absent = |name: &str| {
            names(Naming::HuggingFace, name).is_some_and(|name| !checkpoint.tensors.contains_key(&*name))
        };
        if let Some(name) = weight_map.keys().find(|name| absent(name)) {
            return Err(bad(format!("tensor {name} is in none of the shards")));
        }
        Ok(checkpoint)
    }

    fn from_files(
        dir: &Path,
        naming: Naming,
        files: &[PathBuf],
        names: Names<'_>,
    ) -> Result<Self, CheckpointError> {
        let mut tensors = BTreeMap::new();
        for path in files {
            let io = |source| CheckpointError::Io { path: path.clone(), source };
            if !std::fs::metadata(path).map_err(io)?.is_file() {
                return Err(io(std::io::Error::other("not a regular file")));
            }
            let file = File::open(path).map_err(io)?;
            // SAFETY: the map is read-only. As with every memory-mapped model, the file
            // must not be truncated while the program runs; the program itself never writes to checkpoints.
            let map = unsafe { Mmap::map(&file) }.map_err(io)?;
            read_file(path, Bytes::Mapped(Arc::new(map)), naming, names, &mut tensors)?;
        }
        Ok(Self { path: dir.into(), naming, tensors })
    }

    /// How the checkpoint spells its tensors.
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// All tensors with their canonical names, sorted.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorView)> {
        self.tensors.iter().map(|(name, view)| (name.as_str(), view))
    }

    /// Checks that the checkpoint holds exactly `expected` (canonical names and shapes), and that every element type is
    /// a weight's. After this, [`Checkpoint::get`] cannot fail for those names.
    pub fn check(&self, expected: &[(String, Vec<usize>)]) -> Result<(), CheckpointError> {
        const SHOWN: usize = 6;
        let known: BTreeSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
        let mut lines: Vec<String> = Vec::new();
        let mut hidden = 0;
        let mut add = |line: String| if lines.len() < SHOWN { lines.push(line) } else { hidden += 1 };
        for (name, shape) in expected {
            match self.tensors.get(name) {
                None => add(format!("missing: {name} {shape:?}")),
                Some(view) if view.shape != *shape => {
                    add(format!(
                        "misshapen: {} is {:?}, the configuration needs {shape:?}",
                        view.name, view.shape
                    ));
                }
                Some(_) => {}
            }
        }
        for (name, view) in &self.tensors {
            if !known.contains(name.as_str()) {
                add(format!("unexpected: {} {:?}", view.name, view.shape));
            }
        }
        if hidden > 0 {
            lines.push(format!("… and {hidden} more"));
        }
        if !lines.is_empty() {
            let report = lines.iter().map(|l| format!("\n  {l}")).collect();
            return Err(CheckpointError::Mismatch { path: self.path.clone(), report });
        }
        match self.tensors.values().find(|v| !matches!(v.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16)) {
            Some(view) => Err(CheckpointError::Dtype {
                path: self.path.clone(),
                name: view.name.clone(),
                dtype: format!("{:?}", view.dtype),
            }),
            None => Ok(()),
        }
    }

    /// The tensor of this canonical name.
    pub fn get(&self, name: &str) -> Result<&TensorView, CheckpointError> {
        self.tensors.get(name).ok_or_else(|| CheckpointError::Mismatch {
            path: self.path.clone(),
            report: format!("\n  missing: {name}"),
        })
    }

    /// The query or key projection of this canonical name with half-split rotary pairs, whatever the file's order.
    pub fn rotary(&self, name: &str, head_dim: usize) -> Result<Cow<'_, TensorView>, CheckpointError> {
        let view = self.get(name)?;
        Ok(match self.naming {
            Naming::HuggingFace => Cow::Borrowed(view),
            Naming::Mistral => Cow::Owned(view.pairs_to_halves(head_dim)),
        })
    }
}

fn read_file(
    path: &Path,
    bytes: Bytes,
    naming: Naming,
    names: Names<'_>,
    tensors: &mut BTreeMap<String, TensorView>,
) -> Result<(), CheckpointError> {
    let malformed = |reason: String| CheckpointError::Malformed { path: path.into(), reason };
    let slice = bytes.as_slice();
    if slice.starts_with(b"version https://git-lfs") {
        return Err(malformed("it is a Git LFS pointer; run 'git lfs pull' in the directory".into()));
    }
    // Validates that the header is JSON, that the stretches are contiguous, fit the element types and end with the file.
    let (header, metadata) = SafeTensors::read_metadata(slice).map_err(|e| malformed(e.to_string()))?;
    for (name, info) in metadata.tensors() {
        let Some(canonical) = names(naming, &name) else { continue };
        let (from, to) = info.data_offsets;
        let view = TensorView {
            name: name.clone(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes: bytes.clone(),
            start: 8 + header + from,
            len: to - from,
        };
        if tensors.insert(canonical.into_owned(), view).is_some() {
            return Err(malformed(format!("tensor {name} is there twice, under this or another spelling")));
        }
    }
    Ok(())
}

/// The canonical name of a tensor of Qwen's thinkers, in any generation: the releases have `thinker.audio_tower.…`,
/// `thinker.model.…` and `thinker.lm_head.weight`, a thinker alone the same without `thinker.`, and transformers 5
/// `model.audio_tower.…`, `model.language_model.…` and `lm_head.weight`.
pub(crate) fn thinker_name(name: &str) -> Cow<'_, str> {
    let name = name.strip_prefix("thinker.").unwrap_or(name);
    if name == "lm_head.weight" {
        return "language_model.lm_head.weight".into();
    }
    let Some(inner) = name.strip_prefix("model.") else { return name.into() };
    if ["audio_tower.", "multi_modal_projector.", "visual."].iter().any(|part| inner.starts_with(part)) {
        return inner.into();
    }
    format!("language_model.model.{}", inner.strip_prefix("language_model.").unwrap_or(inner)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..3 << 16).map(|i| (i * 31 % 251) as u8).collect();
        let view = |name: &'static str, n: usize| {
            (name, safetensors::tensor::TensorView::new(Dtype::F32, vec![n], &bytes[..4 * n]).unwrap())
        };
        let file = safetensors::serialize([view("a", 5), view("b", 30_000)], None).unwrap();
        std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        for _ in 0..2 {
            for (name, n) in [("a", 5), ("b", 30_000)] {
                let view = checkpoint.get(name).unwrap();
                assert!(view.data() == &bytes[..4 * n], "{name}");
                view.release_pages();
            }
        }
    }

    #[test]
    fn broken_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Checkpoint::open(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(open().contains("no weights here"));
        let weights = dir.path().join("model.safetensors");
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
        std::fs::write(&weights, pointer).unwrap();
        assert!(open().contains("git lfs pull"), "{}", open());
        for bytes in [&b""[..], b"\x08", b"\xff\xff\xff\xff\xff\xff\xff\xff{}", b"\x02\0\0\0\0\0\0\0{]"] {
            std::fs::write(&weights, bytes).unwrap();
            assert!(open().contains("model.safetensors"), "{bytes:?}: {}", open());
        }
        let good = safetensors::tensor::TensorView::new(Dtype::F32, vec![2], &[0; 8]).unwrap();
        let bytes = safetensors::serialize([("a", good)], None).unwrap();
        std::fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
        assert!(open().contains("not a complete safetensors file"), "{}", open());
        std::fs::write(&weights, &bytes).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let wanted = [("a".to_owned(), vec![3]), ("b".to_owned(), vec![1])];
        let report = checkpoint.check(&wanted).unwrap_err().to_string();
        assert!(report.contains("misshapen: a is [2]") && report.contains("missing: b"), "{report}");
        assert!(checkpoint.check(&[]).unwrap_err().to_string().contains("unexpected: a"));

        let index = dir.path().join("model.safetensors.index.json");
        for (json, says) in [
            (r#"{"weight_map":{"a":"../x.safetensors"}}"#, "not a file name"),
            (r#"{"weight_map":{"a":"gone.safetensors"}}"#, "gone.safetensors"),
            (r#"{"weight_map":{"b":"model.safetensors"}}"#, "in none of the shards"),
            ("[]", "not a safetensors index"),
        ] {
            std::fs::write(&index, json).unwrap();
            assert!(open().contains(says), "{}", open());
        }
    }
}
