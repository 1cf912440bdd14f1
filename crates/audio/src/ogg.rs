//! Ogg pages (RFC 3533): finding them, checking them, and the packets inside.

use crate::error::Fault;
use crate::input::Input;

/// Longest page: header, 255 segment lengths, 255 × 255 bytes.
pub(crate) const MAX_PAGE: usize = 27 + 255 + 255 * 255;

/// Longest packet that is put together; real audio packets and headers are far shorter.
const MAX_PACKET: usize = 1 << 20;

/// One page.
#[derive(Debug, Clone, Default)]
pub(crate) struct Page {
    pub serial: u32,
    /// Samples up to the end of the last packet that ends here; `None` when none ends.
    pub granule: Option<i64>,
    sequence: u32,
    continued: bool,
    /// First page of a logical stream.
    pub first: bool,
    /// Last page of a logical stream.
    pub last: bool,
    segments: Vec<u8>,
    body: Vec<u8>,
}

impl Page {
    /// The page at the start of `bytes`, and its length. `None` when there is no sound page.
    fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let (head, rest) = bytes.split_first_chunk::<27>()?;
        let count = usize::from(head[26]);
        let segments = rest.get(..count)?;
        let len = segments.iter().map(|s| usize::from(*s)).sum::<usize>();
        let body = rest.get(count..count + len)?;
        let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let mut blank = *head;
        blank[22..26].fill(0);
        let crc = [&blank[..], segments, body].into_iter().fold(0, crc);
        if !head.starts_with(b"OggS\0") || crc != word(22) {
            return None;
        }
        let granule = i64::from(word(6)) | i64::from(word(10)) << 32;
        let page = Self {
            serial: word(14),
            granule: (granule >= 0).then_some(granule),
            sequence: word(18),
            continued: head[5] & 1 != 0,
            first: head[5] & 2 != 0,
            last: head[5] & 4 != 0,
            segments: segments.to_vec(),
            body: body.to_vec(),
        };
        Some((page, 27 + count + len))
    }

    /// The next sound page, and whether anything else had to be passed to find it. `None` at the end.
    pub fn next(input: &mut Input) -> Result<(Option<Self>, bool), Fault> {
        let mut passed = false;
        loop {
            let bytes = input.peek(MAX_PAGE)?;
            if let Some((page, len)) = Self::parse(bytes) {
                input.skip(len as u64)?;
                return Ok((Some(page), passed));
            }
            if bytes.is_empty() {
                return Ok((None, passed));
            }
            passed = true;
            let next = bytes[1..].windows(4).position(|w| w == b"OggS").map(|i| i + 1);
            let whole = bytes.len() < MAX_PAGE;
            let junk = next.unwrap_or(if whole { bytes.len() } else { bytes.len() - 3 });
            input.skip(junk as u64)?;
        }
    }

    /// The last position that a page of stream `serial` states in `tail`, the end of a file.
    pub fn last_granule(tail: &[u8], serial: u32) -> Option<i64> {
        let starts = (0..tail.len().saturating_sub(26)).rev().filter(|&i| tail[i..].starts_with(b"OggS"));
        starts
            .filter_map(|i| Self::parse(&tail[i..]))
            .find(|(page, _)| page.serial == serial && page.granule.is_some())
            .and_then(|(page, _)| page.granule)
    }
}

/// Ogg's CRC: polynomial 0x04C11DB7, most significant bit first, no inversion.
fn crc(start: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut x = (i as u32) << 24;
            let mut bit = 0;
            while bit < 8 {
                x = if x >> 31 == 1 { x << 1 ^ 0x04C1_1DB7 } else { x << 1 };
                bit += 1;
            }
            table[i] = x;
            i += 1;
        }
        table
    };
    bytes.iter().fold(start, |x, b| x << 8 ^ TABLE[usize::from((x >> 24) as u8 ^ b)])
}

/// Puts the packets of one logical stream together.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    partial: Vec<u8>,
    open: bool,
    sequence: Option<u32>,
}

impl Packets {
    /// The packets that end in `page`, and whether pages or parts of packets are missing before it.
    pub fn take(&mut self, page: &Page) -> (Vec<Vec<u8>>, bool) {
        let mut hole = self.sequence.is_some_and(|s| s.wrapping_add(1) != page.sequence);
        self.sequence = Some(page.sequence);
        // A packet whose start is missing is passed over.
        let mut orphan = page.continued && (!self.open || hole);
        if hole || !page.continued {
            hole |= self.open && !page.continued;
            self.partial.clear();
        }
        hole |= orphan;
        let mut packets = Vec::new();
        let mut at = 0;
        for segment in &page.segments {
            let len = usize::from(*segment);
            if self.partial.len() + len <= MAX_PACKET {
                self.partial.extend_from_slice(&page.body[at..at + len]);
            }
            at += len;
            self.open = len == 255;
            if !self.open {
                let packet = std::mem::take(&mut self.partial);
                if !std::mem::take(&mut orphan) {
                    packets.push(packet);
                }
            }
        }
        (packets, hole)
    }
}
