//! The tensors of a checkpoint: found under any of their spellings, checked, and left where they lie.
//!
//! A Hugging Face directory holds `model.safetensors`, or shards listed in `model.safetensors.index.json`; Mistral's own
//! layout is one `consolidated.safetensors`. Files are mapped into memory and tensors handed out as views. Whatever
//! the spelling, which a family knows, the rest of the crate sees `audio_tower.…`, `multi_modal_projector.…` and
//! `language_model.…`, as in Voxtral's release.

mod mismatch;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use safetensors::{Dtype, SafeTensors};
use thiserror::Error;

use mismatch::{Canonical, Comparison};

use crate::files::{check_lfs, explain, is_there, read_regular};
use crate::values::{WeightError, to_f32};

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
    /// A shard that the index names.
    #[error(
        "{path}: no such file, but {index} names it as the place of {tensors} tensors: fetch it again, from the release that the index is of"
    )]
    MissingShard {
        /// The shard.
        path: PathBuf,
        /// The index's file name.
        index: String,
        /// Tensors that should be in it.
        tensors: usize,
    },
    /// One tensor under two spellings, or in two files.
    #[error(
        "one tensor is there twice, as {} in {first} and as {} in {second}: remove one of them, or fetch the weights of one release into an empty directory",
        .names.0, .names.1
    )]
    Twice {
        /// Its two names.
        names: (String, String),
        /// The file of the first.
        first: PathBuf,
        /// The file of the second.
        second: PathBuf,
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
        /// The file.
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

/// A tensor's name as messages show it: names longer than any that a model uses without their middle.
pub(crate) fn shortened(name: &str) -> Cow<'_, str> {
    const SHOWN: usize = 60; // at each end
    let ends = |skip: usize| name.char_indices().nth(skip).map(|(at, _)| at);
    let count = name.chars().count();
    match (ends(SHOWN), ends(count.saturating_sub(SHOWN))) {
        (Some(head), Some(tail)) if count > 2 * SHOWN + 20 => {
            format!("{}… ({} characters) …{}", &name[..head], count - 2 * SHOWN, &name[tail..]).into()
        }
        _ => name.into(),
    }
}

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
    /// The file, for messages.
    pub(crate) file: Arc<Path>,
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
    /// Where the tensor is, for messages: its file and its name there, shortened if need be.
    pub(crate) fn place(&self) -> (PathBuf, String) {
        (self.file.to_path_buf(), shortened(&self.name).into_owned())
    }

    /// The `len` bytes from `first` on; the shape stays that of the whole.
    pub(crate) fn part(&self, first: usize, len: usize) -> Self {
        Self { start: self.start + first, len, ..self.clone() }
    }

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

/// The same names without the tables of rotary frequencies, which old versions of transformers wrote although they follow from
/// the configuration.
fn without_buffers<'a>(names: Names<'a>) -> impl for<'n> Fn(Naming, &'n str) -> Option<Cow<'n, str>> + 'a {
    move |naming, name| if name.ends_with(".rotary_emb.inv_freq") { None } else { names(naming, name) }
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
        let names = &without_buffers(names);
        let [index, single, consolidated] =
            ["model.safetensors.index.json", "model.safetensors", "consolidated.safetensors"]
                .map(|name| dir.join(name));
        // A link that points nowhere is passed over only for something that can be read.
        for exists in [|path: &Path| path.exists(), is_there] {
            if exists(&index) {
                return Self::open_sharded(dir, &index, names);
            } else if exists(&single) {
                return Self::from_files(dir, Naming::HuggingFace, &[single], names);
            } else if exists(&consolidated) {
                return Self::from_files(dir, Naming::Mistral, &[consolidated], names);
            }
        }
        Err(CheckpointError::NoWeights(dir.into()))
    }

    /// Uses a `model.safetensors` that is compiled into the program; `name` is for messages.
    pub fn from_static(name: &str, bytes: &'static [u8], names: Names<'_>) -> Result<Self, CheckpointError> {
        let mut tensors = BTreeMap::new();
        let path = PathBuf::from(name);
        let names = without_buffers(names);
        read_file(&path, Bytes::Static(bytes), Naming::HuggingFace, &names, &mut tensors)?;
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
        if let Some(name) = shards
            .iter()
            .find(|s| Path::new(s).components().count() != 1 || s.starts_with('.') || s.len() > 255)
        {
            return Err(bad(format!("shard '{}' is not a file name", shortened(name))));
        }
        let files: Vec<PathBuf> = shards.iter().map(|s| dir.join(s)).collect();
        if let Some((shard, path)) = shards.iter().zip(&files).find(|(_, path)| !is_there(path)) {
            let tensors = weight_map.iter().filter(|(name, s)| s == shard && wanted(name)).count();
            let index = index.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(CheckpointError::MissingShard { path: path.clone(), index, tensors });
        }
        let checkpoint = Self::from_files(dir, Naming::HuggingFace, &files, names)?;
        let absent = |name: &str| {
            names(Naming::HuggingFace, name).is_some_and(|name| !checkpoint.tensors.contains_key(&*name))
        };
        if let Some(name) = weight_map.keys().find(|name| absent(name)) {
            return Err(bad(format!(
                "tensor {} is in none of the shards: fetch the index and the shards of one release",
                shortened(name)
            )));
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
            let io = |source| CheckpointError::Io { path: path.clone(), source: explain(path, source) };
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
        self.check_as(expected, &|_, name| Some(name.into()))
    }

    /// As [`Checkpoint::check`], for a checkpoint that was opened with `names`: what is missing is reported in its spelling.
    pub fn check_as(
        &self,
        expected: &[(String, Vec<usize>)],
        names: Names<'_>,
    ) -> Result<(), CheckpointError> {
        let canonical: Canonical<'_> = &|name| names(self.naming, name);
        if let Some(report) = Comparison::new(&self.tensors, expected, canonical).report() {
            return Err(CheckpointError::Mismatch { path: self.path.clone(), report });
        }
        match self.tensors.values().find(|v| !matches!(v.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16)) {
            Some(view) => {
                let ((path, name), dtype) = (view.place(), format!("{:?}", view.dtype));
                Err(CheckpointError::Dtype { path, name, dtype })
            }
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
    check_lfs(slice).map_err(|source| CheckpointError::Io { path: path.into(), source })?;
    // Validates that the header is JSON, that the stretches are contiguous, fit the element types and end with the file.
    let (header, metadata) =
        SafeTensors::read_metadata(slice).map_err(|e| malformed(shortened(&e.to_string()).into()))?;
    let file: Arc<Path> = path.into();
    let mut found: Vec<_> = metadata.tensors().into_iter().collect();
    found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b)); // so that the same one is always complained of
    for (name, info) in found {
        let Some(canonical) = names(naming, &name) else { continue };
        let (from, to) = info.data_offsets;
        let view = TensorView {
            file: Arc::clone(&file),
            name: name.clone(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes: bytes.clone(),
            start: 8 + header + from,
            len: to - from,
        };
        let canonical = canonical.into_owned();
        if let Some(other) = tensors.get(&canonical) {
            let ((first, a), (second, b)) = (other.place(), view.place());
            return Err(CheckpointError::Twice { names: (a, b), first, second });
        }
        tensors.insert(canonical, view);
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
            (
                r#"{"weight_map":{"a":"gone.safetensors"}}"#,
                "gone.safetensors: no such file, but model.safetensors.index.json names it as the place of 1 tensors: fetch it again",
            ),
            (r#"{"weight_map":{"b":"model.safetensors"}}"#, "in none of the shards"),
            ("[]", "not a safetensors index"),
        ] {
            std::fs::write(&index, json).unwrap();
            assert!(open().contains(says), "{}", open());
        }
    }

    fn write(dir: &Path, file: &str, names: &[&str]) {
        let zeros = || safetensors::tensor::TensorView::new(Dtype::F32, vec![2], &[0; 8]).unwrap();
        let bytes = safetensors::serialize(names.iter().map(|name| (*name, zeros())), None).unwrap();
        std::fs::write(dir.join(file), bytes).unwrap();
    }

    #[test]
    fn a_tensor_that_is_there_twice_is_named_with_both_places() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let opened = Checkpoint::open_as(dir.path(), &|_, name| Some(thinker_name(name)));
            opened.err().map(|e| e.to_string()).unwrap_or_default()
        };
        let layers: Vec<String> = (0..20).map(|l| format!("model.layers.{l}.w")).collect();
        let spellings: Vec<String> = layers.iter().map(|name| format!("thinker.{name}")).collect();
        let names: Vec<&str> = layers.iter().chain(&spellings).map(String::as_str).collect();
        write(dir.path(), "model.safetensors", &names);
        for _ in 0..20 {
            let error = open();
            assert!(error.contains("twice, as model.layers.0.w in "), "{error}");
            assert!(error.contains(" and as thinker.model.layers.0.w in "), "{error}");
            assert!(
                error.contains("model.safetensors: remove one") && !error.contains("complete"),
                "{error}"
            );
        }
        std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
        write(dir.path(), "a.safetensors", &["x", "y"]);
        write(dir.path(), "b.safetensors", &["x"]);
        let index = r#"{"weight_map":{"x":"b.safetensors","y":"a.safetensors"}}"#;
        std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        let error = open();
        assert!(error.contains("a.safetensors and as x in ") && error.contains("b.safetensors:"), "{error}");
    }

    #[test]
    fn tables_of_rotary_frequencies_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let stray = ["thinker.model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"];
        write(dir.path(), "model.safetensors", &["x", stray[0], stray[1]]);
        let open = || Checkpoint::open_as(dir.path(), &|_, name| Some(thinker_name(name)));
        assert_eq!(open().unwrap().tensors().map(|(name, _)| name.to_owned()).collect::<Vec<_>>(), ["x"]);
        // Nor does a shard with nothing else need to be there.
        let map =
            format!(r#"{{"weight_map":{{"x":"model.safetensors","{}":"gone.safetensors"}}}}"#, stray[1]);
        std::fs::write(dir.path().join("model.safetensors.index.json"), map).unwrap();
        assert_eq!(open().unwrap().tensors().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_that_point_nowhere_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("model.safetensors");
        std::os::unix::fs::symlink("../../blobs/0123", &link).unwrap();
        let error = Checkpoint::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("model.safetensors: a symbolic link to ../../blobs/0123"), "{error}");
        write(dir.path(), "consolidated.safetensors", &["x"]);
        assert_eq!(Checkpoint::open(dir.path()).unwrap().naming(), Naming::Mistral);
    }
}
