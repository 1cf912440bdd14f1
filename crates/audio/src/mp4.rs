//! The few boxes of an MP4 or QuickTime file that symphonia does not report: what kind each track is, its sample
//! entry's four letters, and the edit list that says which part of the media is to be played.

use std::io::{Seek, SeekFrom};

use crate::error::Fault;
use crate::input::Input;

/// One track.
#[derive(Debug, Default, Clone)]
pub(crate) struct Track {
    pub id: u32,
    /// `soun`, `vide`, …
    pub handler: [u8; 4],
    /// `mp4a`, `Opus`, …
    pub entry: [u8; 4],
    timescale: u32,
    edits: Vec<(u64, i64)>,
}

/// The file as a whole.
#[derive(Debug, Default)]
pub(crate) struct Movie {
    pub tracks: Vec<Track>,
    pub has_moov: bool,
    /// Where the last outermost box ends, by its header.
    pub end: u64,
    timescale: u32,
}

/// The part of a track's media that is played, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Edit {
    /// Nothing is played for so long first.
    pub delay: f64,
    pub start: f64,
    pub length: Option<f64>,
}

impl Movie {
    /// Reads the boxes; the position in `input` is lost.
    pub fn read(input: &mut Input) -> Result<Self, Fault> {
        let mut movie = Self::default();
        input.rewind_to_base()?;
        let end = input.remaining().unwrap_or(0);
        boxes(input, 0, end, 0, &mut movie)?;
        Ok(movie)
    }

    /// The edit of the track with this id, when it is a single one.
    pub fn edit(&self, id: u32) -> Option<Edit> {
        let track = self.tracks.iter().find(|t| t.id == id)?;
        let first = track.edits.iter().position(|(_, start)| *start >= 0)?;
        let (empty, played) = track.edits.split_at(first);
        let [(length, start)] = *played else { return None };
        if track.timescale == 0 || self.timescale == 0 {
            return None;
        }
        let seconds = |n: u64| n as f64 / f64::from(self.timescale);
        Some(Edit {
            delay: empty.iter().map(|(length, _)| seconds(*length)).sum(),
            start: start as f64 / f64::from(track.timescale),
            length: Some(seconds(length)).filter(|l| *l > 0.0),
        })
    }
}

/// Most boxes that are looked at, so that a forged file ends soon.
const MAX_TRACKS: usize = 256;

fn boxes(input: &mut Input, mut at: u64, end: u64, depth: u8, movie: &mut Movie) -> Result<(), Fault> {
    while at + 8 <= end {
        input.seek(SeekFrom::Start(at))?;
        let mut head = [0; 16];
        let got = input.read_full(&mut head)?;
        if got < 8 {
            break;
        }
        let (mut size, mut body) = (u64::from(u32_at(&head, 0)), at + 8);
        match size {
            0 => size = end - at,
            1 if got == 16 => {
                size = u64::from(u32_at(&head, 8)) << 32 | u64::from(u32_at(&head, 12));
                body = at + 16;
            }
            _ => {}
        }
        let next = at.saturating_add(size);
        if next < body || next <= at {
            break;
        }
        let stop = next.min(end);
        if depth == 0 {
            movie.end = next;
        }
        match &head[4..8] {
            b"moov" => {
                movie.has_moov = next <= end;
                boxes(input, body, stop, depth + 1, movie)?;
            }
            b"trak" if depth > 0 && movie.tracks.len() < MAX_TRACKS => {
                movie.tracks.push(Track::default());
                boxes(input, body, stop, depth + 1, movie)?;
            }
            b"mdia" | b"minf" | b"stbl" | b"edts" if (1..8).contains(&depth) => {
                boxes(input, body, stop, depth + 1, movie)?;
            }
            name @ (b"mvhd" | b"tkhd" | b"mdhd" | b"hdlr" | b"stsd" | b"elst") if depth > 0 => {
                let name = [name[0], name[1], name[2], name[3]];
                let mut bytes = [0; 128];
                let want = bytes.len().min((stop - body) as usize);
                input.seek(SeekFrom::Start(body))?;
                let got = input.read_full(&mut bytes[..want])?;
                field(&name, &bytes[..got], movie);
            }
            _ => {}
        }
        at = next;
    }
    Ok(())
}

/// Takes what is wanted from one leaf box.
fn field(name: &[u8; 4], b: &[u8], movie: &mut Movie) {
    let long = b.first() == Some(&1);
    if name == b"mvhd" {
        movie.timescale = u32_at(b, if long { 20 } else { 12 });
        return;
    }
    let Some(track) = movie.tracks.last_mut() else { return };
    match name {
        b"tkhd" => track.id = u32_at(b, if long { 20 } else { 12 }),
        b"mdhd" => track.timescale = u32_at(b, if long { 20 } else { 12 }),
        // QuickTime has a second handler box, of the data; the media's comes first.
        b"hdlr" if track.handler == [0; 4] => track.handler = u32_at(b, 8).to_be_bytes(),
        b"stsd" => track.entry = u32_at(b, 12).to_be_bytes(),
        b"elst" => {
            let count = u32_at(b, 4).min(5) as usize;
            let width = if long { 20 } else { 12 };
            track.edits = b[b.len().min(8)..]
                .chunks_exact(width)
                .take(count)
                .map(|e| match long {
                    true => (u64_at(e, 0), u64_at(e, 8) as i64),
                    false => (u32_at(e, 0).into(), i64::from(u32_at(e, 4) as i32)),
                })
                .collect();
        }
        _ => {}
    }
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) << 32 | u64::from(u32_at(b, at + 4))
}
