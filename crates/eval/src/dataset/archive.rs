//! Files of a data set by their path in it, whether they lie in a directory, a tar or a compressed tar.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use flate2::read::MultiGzDecoder;

use super::{Audio, DatasetError, directory, text};

/// A tar is made of blocks of so many bytes.
const BLOCK: u64 = 512;

/// Files by their path below the root, written with `/`.
pub(super) struct Files {
    places: BTreeMap<String, Place>,
}

enum Place {
    Disk(PathBuf),
    /// A text of an archive, kept from going through it.
    Text(PathBuf, Vec<u8>),
    Part {
        file: PathBuf,
        offset: u64,
        length: u64,
    },
    Compressed {
        archive: Arc<Compressed>,
        offset: u64,
        length: u64,
    },
}

impl Files {
    /// Lists a directory, or goes through an archive once, keeping the contents of `.txt` files. `expected` is for
    /// messages.
    pub fn open(root: &Path, expected: &str) -> Result<Self, DatasetError> {
        if root.is_dir() {
            let files = directory::files(root, expected)?;
            return Ok(Self {
                places: files.into_iter().map(|(name, path)| (name, Place::Disk(path))).collect(),
            });
        }
        let mut file = File::open(root).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => {
                DatasetError::NotFound { path: root.to_owned(), expected: expected.to_owned() }
            }
            _ => DatasetError::Io { path: root.to_owned(), source },
        })?;
        let mut start = [0; 2];
        let got = file.read(&mut start).map_err(DatasetError::io(root))?;
        file.seek(SeekFrom::Start(0)).map_err(DatasetError::io(root))?;
        let places = match &start[..got] {
            [] => return Err(DatasetError::EmptyFile { place: root.display().to_string() }),
            [0x1f, 0x8b] => scan_compressed(root, file)?,
            _ => scan_plain(root, file)?,
        };
        Ok(Self { places })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// A text, without a byte order mark.
    pub fn text(&self, name: &str) -> Result<String, DatasetError> {
        match &self.places[name] {
            Place::Disk(path) => text::read(path),
            Place::Text(archive, bytes) => {
                text::decode(bytes.clone(), &format!("{}: {name}", archive.display()))
            }
            Place::Part { file: path, .. } => {
                Err(DatasetError::malformed(path, format!("{name} is no text")))
            }
            Place::Compressed { archive, .. } => {
                Err(DatasetError::malformed(archive.path(), format!("{name} is no text")))
            }
        }
    }

    pub fn audio(&self, name: &str) -> Result<Audio, DatasetError> {
        let empty = |path: &Path| DatasetError::EmptyFile { place: format!("{}: {name}", path.display()) };
        match &self.places[name] {
            Place::Disk(path) => Audio::file(path),
            Place::Part { file, length: 0, .. } => Err(empty(file)),
            Place::Compressed { archive, length: 0, .. } => Err(empty(archive.path())),
            Place::Part { file, offset, length } => Ok(Audio::Part {
                file: file.clone(),
                name: name.to_owned(),
                offset: *offset,
                length: *length,
            }),
            Place::Compressed { archive, offset, length } => Ok(Audio::Compressed {
                archive: archive.clone(),
                name: name.to_owned(),
                offset: *offset,
                length: *length,
            }),
            Place::Text(path, _) => Err(DatasetError::malformed(path, format!("{name} is no recording"))),
        }
    }
}

fn scan_plain(path: &Path, file: File) -> Result<BTreeMap<String, Place>, DatasetError> {
    let size = file.metadata().map_err(DatasetError::io(path))?.len();
    let mut archive = tar::Archive::new(file);
    let entries = archive.entries_with_seek().map_err(DatasetError::io(path))?;
    let (places, end) =
        scan(path, entries, |offset, length| Place::Part { file: path.to_owned(), offset, length })?;
    check_end(path, size, end)?;
    Ok(places)
}

fn scan_compressed(path: &Path, file: File) -> Result<BTreeMap<String, Place>, DatasetError> {
    let handle = Arc::new(Compressed { path: path.to_owned(), cursor: Mutex::new(None) });
    let count = Rc::new(Cell::new(0));
    let mut archive = tar::Archive::new(Counting {
        inner: MultiGzDecoder::new(BufReader::new(file)),
        count: count.clone(),
    });
    let entries = archive.entries().map_err(DatasetError::io(path))?;
    let (places, end) =
        scan(path, entries, |offset, length| Place::Compressed { archive: handle.clone(), offset, length })?;
    // To the end, where the compressed stream has its checksum.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(|error| broken(path, error))?;
    check_end(path, count.get(), end)?;
    Ok(places)
}

/// An archive ends with blocks of zeros; one that was cut off between two entries lacks them.
fn check_end(path: &Path, size: u64, end: u64) -> Result<(), DatasetError> {
    if size < end + BLOCK {
        let detail = format!("the archive has no end mark at byte {end}");
        return Err(DatasetError::Truncated { path: path.to_owned(), detail });
    }
    Ok(())
}

/// Reading an archive fails because it ends too early, or because it is none.
fn broken(path: &Path, error: io::Error) -> DatasetError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            DatasetError::Truncated { path: path.to_owned(), detail: error.to_string() }
        }
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other => {
            // The reader quotes the bytes that it could not read: up to them the message says enough.
            let plain = |c: &char| c.is_ascii_graphic() || *c == ' ';
            let detail: String = error.to_string().chars().take_while(plain).take(80).collect();
            DatasetError::malformed(
                path,
                format!(
                    "is not a whole .tar or .tar.gz archive ({detail}); fetch it again, or unpack it and give the directory"
                ),
            )
        }
        _ => DatasetError::Io { path: path.to_owned(), source: error },
    }
}

/// Goes through an archive; returns its files and the byte after the last.
fn scan<R: Read>(
    path: &Path,
    entries: tar::Entries<'_, R>,
    place: impl Fn(u64, u64) -> Place,
) -> Result<(BTreeMap<String, Place>, u64), DatasetError> {
    let mut places = BTreeMap::new();
    let mut end = 0;
    for entry in entries {
        let mut entry = entry.map_err(|error| broken(path, error))?;
        let (offset, length) = (entry.raw_file_position(), entry.size());
        end = offset.saturating_add(length).div_ceil(BLOCK).saturating_mul(BLOCK);
        let Some(name) = entry_name(path, &entry.path_bytes())? else { continue };
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            continue;
        }
        if !kind.is_file() {
            let reason =
                format!("{name} is not a regular file in the archive; unpack it and give the directory");
            return Err(DatasetError::malformed(path, reason));
        }
        let found = if name.ends_with(".txt") {
            let mut bytes = Vec::new();
            (&mut entry).take(text::MAX_TEXT).read_to_end(&mut bytes).map_err(|error| broken(path, error))?;
            if (bytes.len() as u64) < length {
                let detail = format!("{name} has {length} bytes, {} are there", bytes.len());
                return Err(DatasetError::Truncated { path: path.to_owned(), detail });
            }
            Place::Text(path.to_owned(), bytes)
        } else {
            place(offset, length)
        };
        if places.insert(name.clone(), found).is_some() {
            return Err(DatasetError::malformed(path, format!("holds {name} twice")));
        }
    }
    if places.is_empty() && end == 0 {
        return Err(DatasetError::malformed(
            path,
            "is neither a directory nor a .tar or .tar.gz archive with files in it",
        ));
    }
    Ok((places, end))
}

/// Unpacks a `.tar.gz` into a directory: regular files and nothing else, none outside it.
///
/// # Errors
/// [`DatasetError`]: damage, and names or links that no data set has. What was unpacked by then stays.
pub fn unpack(path: &Path, into: &Path) -> Result<(), DatasetError> {
    let file = File::open(path).map_err(DatasetError::io(path))?;
    let count = Rc::new(Cell::new(0));
    let mut archive = tar::Archive::new(Counting {
        inner: MultiGzDecoder::new(BufReader::new(file)),
        count: count.clone(),
    });
    let mut end = 0;
    for entry in archive.entries().map_err(|error| broken(path, error))? {
        let mut entry = entry.map_err(|error| broken(path, error))?;
        end = entry.raw_file_position().saturating_add(entry.size()).div_ceil(BLOCK).saturating_mul(BLOCK);
        let Some(name) = entry_name(path, &entry.path_bytes())? else { continue };
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            continue;
        }
        if !kind.is_file() {
            return Err(DatasetError::malformed(
                path,
                format!("{name} is not a regular file in the archive"),
            ));
        }
        let target = into.join(&name);
        let parent = target.parent().unwrap_or(into);
        std::fs::create_dir_all(parent).map_err(DatasetError::io(parent))?;
        let mut out = File::create_new(&target).map_err(DatasetError::io(&target))?;
        let length = entry.size();
        let copied = io::copy(&mut entry, &mut out).map_err(|error| broken(path, error))?;
        if copied < length {
            let detail = format!("{name} has {length} bytes, {copied} are there");
            return Err(DatasetError::Truncated { path: path.to_owned(), detail });
        }
    }
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(|error| broken(path, error))?;
    check_end(path, count.get(), end)
}

/// The name of an entry, cleaned of `./`; none for hidden files.
pub(super) fn entry_name(path: &Path, bytes: &[u8]) -> Result<Option<String>, DatasetError> {
    let shown = || String::from_utf8_lossy(bytes).into_owned();
    let unsafe_name = || DatasetError::UnsafeName { path: path.to_owned(), name: shown() };
    let Ok(name) = std::str::from_utf8(bytes) else {
        return Err(DatasetError::malformed(path, format!("the name '{}' is not UTF-8", shown())));
    };
    if name.starts_with('/') || name.contains(['\\', '\0']) {
        return Err(unsafe_name());
    }
    let parts: Vec<_> = name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") || parts.first().is_some_and(|part| part.ends_with(':')) {
        return Err(unsafe_name());
    }
    Ok(match parts.last() {
        Some(last) if !last.starts_with('.') => Some(parts.join("/")),
        _ => None,
    })
}

/// A compressed archive that is read entry by entry. Going forward continues where the last entry ended; going back starts
/// again.
pub struct Compressed {
    path: PathBuf,
    cursor: Mutex<Option<Cursor>>,
}

struct Cursor {
    reader: MultiGzDecoder<BufReader<File>>,
    position: u64,
}

impl fmt::Debug for Compressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Compressed").field(&self.path).finish()
    }
}

impl Compressed {
    /// The archive.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `length` bytes from `offset` of the decompressed archive.
    pub(super) fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, DatasetError> {
        // A panic elsewhere leaves at worst a cursor that is dropped below.
        let mut held = self.cursor.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut cursor = match held.take() {
            Some(cursor) if cursor.position <= offset => cursor,
            _ => {
                let file = File::open(&self.path).map_err(DatasetError::io(&self.path))?;
                Cursor { reader: MultiGzDecoder::new(BufReader::new(file)), position: 0 }
            }
        };
        let fail = |error| broken(&self.path, error);
        io::copy(&mut (&mut cursor.reader).take(offset - cursor.position), &mut io::sink()).map_err(fail)?;
        let mut bytes = Vec::new();
        (&mut cursor.reader).take(length).read_to_end(&mut bytes).map_err(fail)?;
        if (bytes.len() as u64) < length {
            let detail = format!("{length} bytes expected at {offset}, {} there", bytes.len());
            return Err(DatasetError::Truncated { path: self.path.clone(), detail });
        }
        cursor.position = offset + length;
        *held = Some(cursor);
        Ok(bytes)
    }
}

/// Counts what is read.
struct Counting<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.count.set(self.count.get() + n as u64);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        let name = |bytes: &[u8]| entry_name(Path::new("a.tar"), bytes);
        assert_eq!(name(b"./a//b/./c.txt").unwrap().as_deref(), Some("a/b/c.txt"));
        assert_eq!(name(b"a/._c.txt").unwrap(), None);
        assert_eq!(name(b"./").unwrap(), None);
        for bad in [&b"../x"[..], b"a/../../x", b"/etc/passwd", b"a\\..\\b", b"C:/x"] {
            assert!(matches!(name(bad), Err(DatasetError::UnsafeName { .. })), "{bad:?}");
        }
        assert!(matches!(name(b"caf\xe9"), Err(DatasetError::Malformed { .. })));
    }
}
