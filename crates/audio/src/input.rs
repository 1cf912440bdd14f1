//! Bytes of a recording, wherever they come from: a file, memory, or a pipe that cannot be rewound.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;

use symphonia::core::io::MediaSource;

use crate::error::{AudioError, Fault, Position};

/// Where a recording comes from. Its content decides how it is read; names and MIME types are not looked at.
#[derive(Debug, Clone)]
pub enum Source {
    /// A file, device or named pipe.
    Path(PathBuf),
    /// Standard input.
    Stdin,
    /// A whole recording in memory.
    Bytes(Arc<[u8]>),
}

impl Source {
    /// The name used in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Stdin => "standard input".to_owned(),
            Self::Bytes(_) => "the recording".to_owned(),
        }
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

impl From<&std::path::Path> for Source {
    fn from(path: &std::path::Path) -> Self {
        Self::Path(path.to_owned())
    }
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

/// Bytes read at least when looking ahead.
const PEEK_BLOCK: usize = 16 * 1024;

enum Inner {
    File(File),
    Memory(Cursor<Arc<[u8]>>),
    Pipe(Box<dyn Read + Send + Sync>),
}

/// An opened source. Reading starts at `base`; `ahead` holds bytes that were looked at but not yet consumed.
pub(crate) struct Input {
    inner: Inner,
    ahead: Vec<u8>,
    taken: usize,
    /// First byte of the audio data in a seekable source; moves behind a leading tag.
    base: u64,
    /// Total bytes from offset 0 of a seekable source.
    len: Option<u64>,
    /// Bytes consumed through `Read` since `base`.
    consumed: u64,
    /// Where `consumed` has to stop.
    end: Option<u64>,
    /// A length to state to others instead of the real one.
    stated: Option<u64>,
    /// Whether to state that reading cannot go back.
    forward: bool,
}

impl Input {
    /// Opens `source`; nothing is read yet.
    pub fn open(source: &Source) -> Result<Self, AudioError> {
        let name = source.name();
        let io = |error: io::Error| Fault::Io(error).named(&name, Position::Header);
        match source {
            Source::Bytes(bytes) => Ok(Self::memory(bytes.clone())),
            Source::Stdin => Self::stdin().map_err(io),
            Source::Path(path) => {
                let file = File::open(path).map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => AudioError::NotFound { name: name.clone() },
                    _ => io(error),
                })?;
                let meta = file.metadata().map_err(io)?;
                if meta.is_dir() {
                    return Err(AudioError::Directory { name });
                }
                Ok(if meta.is_file() { Self::file(file, 0, meta.len()) } else { Self::pipe(Box::new(file)) })
            }
        }
    }

    fn memory(bytes: Arc<[u8]>) -> Self {
        let len = bytes.len() as u64;
        Self::new(Inner::Memory(Cursor::new(bytes)), 0, Some(len))
    }

    fn file(file: File, base: u64, len: u64) -> Self {
        Self::new(Inner::File(file), base, Some(len))
    }

    fn pipe(read: Box<dyn Read + Send + Sync>) -> Self {
        Self::new(Inner::Pipe(read), 0, None)
    }

    fn new(inner: Inner, base: u64, len: Option<u64>) -> Self {
        Self {
            inner,
            ahead: Vec::new(),
            taken: 0,
            base,
            len,
            consumed: 0,
            end: None,
            stated: None,
            forward: false,
        }
    }

    /// Standard input; when it is redirected from a file, that file, which can be rewound.
    fn stdin() -> io::Result<Self> {
        #[cfg(unix)]
        {
            use std::os::fd::AsFd;
            let mut file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
            let meta = file.metadata()?;
            if meta.is_file() {
                let base = file.stream_position()?;
                return Ok(Self::file(file, base, meta.len()));
            }
        }
        Ok(Self::pipe(Box::new(io::stdin())))
    }

    /// Whether reading can go back.
    pub fn is_seekable(&self) -> bool {
        self.len.is_some()
    }

    /// Bytes that are still to be read, where that is known.
    pub fn remaining(&self) -> Option<u64> {
        self.len.map(|len| len.saturating_sub(self.base + self.consumed))
    }

    /// Looks at up to `n` bytes without consuming them; fewer only at the end.
    pub fn peek(&mut self, n: usize) -> io::Result<&[u8]> {
        if self.ahead.len() - self.taken < n {
            self.ahead.drain(..self.taken);
            self.taken = 0;
        }
        while self.ahead.len() - self.taken < n {
            let start = self.ahead.len();
            self.ahead.resize(n.max(start + PEEK_BLOCK), 0);
            let got = read_inner(&mut self.inner, &mut self.ahead[start..]);
            self.ahead.truncate(start + got.as_ref().copied().unwrap_or(0));
            if got? == 0 {
                break;
            }
        }
        let held = &self.ahead[self.taken..];
        Ok(&held[..held.len().min(n).min(self.room())])
    }

    /// Bytes that may still be consumed.
    fn room(&self) -> usize {
        let room = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.consumed));
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Consumes `n` bytes, or all there are; returns how many.
    pub fn skip(&mut self, n: u64) -> io::Result<u64> {
        let held = (self.ahead.len() - self.taken) as u64;
        if n > held
            && let Some(left) = self.remaining()
        {
            let n = n.min(left);
            let forward = (n - held.min(n)) as i64;
            match &mut self.inner {
                Inner::File(f) => f.seek_relative(forward)?,
                Inner::Memory(m) => m.seek_relative(forward)?,
                Inner::Pipe(_) => {}
            }
            self.ahead.clear();
            self.taken = 0;
            self.consumed += n;
            return Ok(n);
        }
        io::copy(&mut self.take(n), &mut io::sink())
    }

    /// Makes the present place the start of the data, as after a leading tag.
    pub fn rebase(&mut self) {
        self.base += self.consumed;
        self.consumed = 0;
    }

    /// Goes back to the start of the data. Only for seekable inputs.
    pub fn rewind_to_base(&mut self) -> io::Result<()> {
        self.seek(SeekFrom::Start(0)).map(|_| ())
    }

    /// Fills `buf` as far as the data reaches; returns how many bytes.
    pub fn read_full(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.read(&mut buf[done..])? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    /// The same input, ending after `limit` more bytes.
    pub fn take_only(mut self, limit: Option<u64>) -> Self {
        if let (Some(limit), Some(len)) = (limit, self.len.as_mut()) {
            *len = (*len).min(self.base + self.consumed + limit);
        }
        self.end = limit.map(|limit| self.consumed + limit);
        self
    }

    /// States to users of [`Seek`] that there are so many bytes, of which the last are missing.
    pub fn state_length(&mut self, len: u64) {
        self.stated = Some(len);
    }

    /// A second input on the same seekable bytes, at their start, that states that it cannot go back.
    pub fn forward_twin(&mut self) -> io::Result<Option<Self>> {
        let inner = match &self.inner {
            Inner::File(f) => Inner::File(f.try_clone()?),
            Inner::Memory(m) => Inner::Memory(m.clone()),
            Inner::Pipe(_) => return Ok(None),
        };
        let mut twin = Self { forward: true, ..Self::new(inner, self.base, self.len) };
        twin.rewind_to_base()?;
        Ok(Some(twin))
    }

    /// A seekable input with the same bytes: itself, or an anonymous temporary file that the rest of a pipe is
    /// copied to, through a small buffer.
    pub fn into_seekable(mut self) -> io::Result<Self> {
        if self.is_seekable() {
            self.rewind_to_base()?;
            return Ok(self);
        }
        let mut file = tempfile::tempfile()?;
        let len = io::copy(&mut self, &mut file)?;
        file.flush()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self::file(file, 0, len))
    }
}

fn read_inner(inner: &mut Inner, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        let got = match inner {
            Inner::File(f) => f.read(buf),
            Inner::Memory(m) => m.read(buf),
            Inner::Pipe(p) => p.read(buf),
        };
        match got {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            got => return got,
        }
    }
}

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let buf_len = buf.len().min(self.room());
        let buf = &mut buf[..buf_len];
        let held = &self.ahead[self.taken..];
        let n = if buf.is_empty() {
            0
        } else if held.is_empty() {
            read_inner(&mut self.inner, buf)?
        } else {
            let n = held.len().min(buf.len());
            buf[..n].copy_from_slice(&held[..n]);
            self.taken += n;
            n
        };
        self.consumed += n as u64;
        Ok(n)
    }
}

/// Offsets count from `base`. Fails on pipes.
impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let Some(len) = self.len else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a pipe cannot be rewound"));
        };
        let target = match to {
            SeekFrom::Start(n) => Some(n),
            SeekFrom::Current(d) => self.consumed.checked_add_signed(d),
            SeekFrom::End(d) => self.stated.unwrap_or(len.saturating_sub(self.base)).checked_add_signed(d),
        };
        let target =
            target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "seek before the start"))?;
        let absolute = SeekFrom::Start(self.base.saturating_add(target));
        match &mut self.inner {
            Inner::File(f) => f.seek(absolute)?,
            Inner::Memory(m) => m.seek(absolute)?,
            Inner::Pipe(_) => 0,
        };
        self.ahead.clear();
        self.taken = 0;
        self.consumed = target;
        Ok(target)
    }
}

impl MediaSource for Input {
    fn is_seekable(&self) -> bool {
        Self::is_seekable(self) && !self.forward
    }

    fn byte_len(&self) -> Option<u64> {
        if self.forward {
            return None;
        }
        self.stated.or(self.len.map(|len| len.saturating_sub(self.base)))
    }
}
