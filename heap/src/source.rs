//! The bytes of a snapshot file, decompressed on the way if it begins like a zstd frame (the name
//! does not matter), as one bounded stream.
//!
//! Three things keep a hostile file from costing more than it weighs:
//!
//! * the stream ends with an error after `MOST_BYTES`, and, if compressed, as soon as it has
//!   grown to more than `MOST_GROWTH` times the bytes read so far;
//! * a frame's window, the one number of the file that the decoder takes at its word, is checked
//!   before the decoder sees it;
//! * nothing is sized by the content size that a frame claims.
//!
//! Errors travel as [`io::Error`]s around a [`Fault`], through serde_json and back.

use std::io::{self, BufReader, Chain, Cursor, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::bad_input::Fault;

/// The largest snapshot that is read, in decompressed bytes.
const MOST_BYTES: u64 = 4 << 30;
/// The most that compressed bytes may grow. Heaps of real programs grow 8 to 12 times.
const MOST_GROWTH: u64 = 256;
/// Growth is not judged before this many bytes: a frame's first block may be one repeated byte.
const GROWTH_FREE: u64 = 1 << 20;
/// The largest window of a frame, as for the `zstd` command without `--long`.
const MOST_WINDOW: u64 = 128 << 20;

const FRAME: u32 = 0xFD2F_B528;
const SKIPPABLE_FRAMES: std::ops::RangeInclusive<u32> = 0x184D_2A50..=0x184D_2A5F;

type Raw = Counted<Chain<Cursor<Vec<u8>>, BufReader<Box<dyn Read>>>>;

/// The content of a snapshot file: JSON comes out.
pub struct Source {
    stream: Stream,
    given: u64,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("given", &self.given).finish_non_exhaustive()
    }
}

enum Stream {
    Plain(Raw),
    Zstd(Box<Frames>),
}

impl Source {
    /// The snapshot that `reader` gives the bytes of.
    ///
    /// # Errors
    ///
    /// A fault, if there is no first byte.
    pub fn new(reader: Box<dyn Read>) -> Result<Self, Fault> {
        let mut reader = BufReader::with_capacity(1 << 16, reader);
        let mut magic = Vec::with_capacity(4);
        (&mut reader)
            .take(4)
            .read_to_end(&mut magic)
            .map_err(|e| Fault::new("byte 0", e.to_string()))?;
        let number = <[u8; 4]>::try_from(magic.as_slice()).map(u32::from_le_bytes);
        let compressed = number.is_ok_and(|n| n == FRAME || SKIPPABLE_FRAMES.contains(&n));
        if magic.is_empty() {
            return Err(Fault::new("byte 0", "the file is empty"));
        }
        let raw = Counted { inner: Cursor::new(magic).chain(reader), taken: 0, ended: false };
        let stream =
            if compressed { Stream::Zstd(Box::new(Frames::new(raw))) } else { Stream::Plain(raw) };
        Ok(Self { stream, given: 0 })
    }
}

impl Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let (count, growth_limit) = match &mut self.stream {
            Stream::Plain(raw) => (raw.read(buf)?, MOST_BYTES),
            Stream::Zstd(frames) => {
                let count = frames.read(buf)?;
                (count, GROWTH_FREE + MOST_GROWTH * frames.raw.taken)
            }
        };
        self.given += count as u64;
        if self.given > MOST_BYTES {
            let reason = format!("more than {MOST_BYTES} bytes of JSON, the most that is read");
            return Err(io::Error::other(Fault::new(format!("byte {MOST_BYTES}"), reason)));
        }
        if self.given > growth_limit {
            let reason = format!("decompresses to more than {MOST_GROWTH} times its size");
            return Err(io::Error::other(Fault::new(
                format!("decompressed byte {}", self.given),
                reason,
            )));
        }
        Ok(count)
    }
}

/// A reader that knows how far it came.
struct Counted<R> {
    inner: R,
    taken: u64,
    ended: bool,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buf)?;
        self.taken += count as u64;
        self.ended |= count == 0 && !buf.is_empty();
        Ok(count)
    }
}

/// The content of zstd frames, one after the other.
struct Frames {
    raw: Raw,
    frame: Option<FrameDecoder>,
}

impl Frames {
    fn new(raw: Raw) -> Self {
        Self { raw, frame: None }
    }

    fn fault(&self, reason: impl Into<String>) -> io::Error {
        io::Error::other(Fault::new(format!("compressed byte {}", self.raw.taken), reason))
    }

    /// An error of the decoder, or of reading a part of a frame.
    fn broken(&self, error: impl std::fmt::Display) -> io::Error {
        if self.raw.ended {
            self.fault("cut: the zstd frame is not finished")
        } else {
            self.fault(format!("corrupt zstd data: {error}"))
        }
    }

    fn take<const N: usize>(&mut self, header: &mut Vec<u8>) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.raw.read_exact(&mut bytes).map_err(|error| self.broken(error))?;
        header.extend(bytes);
        Ok(bytes)
    }

    /// Reads the header of the next frame and checks its window; `None` at the end of the file.
    ///
    /// The header (RFC 8878, 3.1.1.1) is: magic, descriptor, window descriptor unless the frame is
    /// a single segment, dictionary id, content size; the descriptor says which are there.
    fn next_frame(&mut self) -> io::Result<Option<FrameDecoder>> {
        loop {
            let mut magic = Vec::with_capacity(4);
            (&mut self.raw).take(4).read_to_end(&mut magic)?;
            if magic.is_empty() {
                return Ok(None);
            }
            let Ok(number) = <[u8; 4]>::try_from(magic.as_slice()).map(u32::from_le_bytes) else {
                return Err(self.broken("half a magic number"));
            };
            let mut header = magic;
            if SKIPPABLE_FRAMES.contains(&number) {
                let size = u64::from(u32::from_le_bytes(self.take(&mut header)?));
                if io::copy(&mut (&mut self.raw).take(size), &mut io::sink())? != size {
                    return Err(self.broken("half a skippable frame"));
                }
                continue;
            }
            if number != FRAME {
                return Err(self.fault("neither a zstd frame nor the end of the file"));
            }

            let [descriptor] = self.take(&mut header)?;
            let single_segment = descriptor & 0x20 != 0;
            let mut window = 0;
            if !single_segment {
                let [byte] = self.take(&mut header)?;
                let base = 1u64 << (10 + (byte >> 3));
                window = base + base / 8 * u64::from(byte & 7);
            }
            match descriptor & 3 {
                0 => {}
                1 => drop(self.take::<1>(&mut header)?),
                2 => drop(self.take::<2>(&mut header)?),
                _ => drop(self.take::<4>(&mut header)?),
            }
            let content = match descriptor >> 6 {
                0 if single_segment => u64::from(self.take::<1>(&mut header)?[0]),
                0 => 0,
                1 => u64::from(u16::from_le_bytes(self.take(&mut header)?)) + 256,
                2 => u64::from(u32::from_le_bytes(self.take(&mut header)?)),
                _ => u64::from_le_bytes(self.take(&mut header)?),
            };
            let window = if single_segment { content } else { window };
            if window > MOST_WINDOW {
                return Err(
                    self.fault(format!("a zstd window of {window} bytes, more than {MOST_WINDOW}"))
                );
            }
            let mut frame = FrameDecoder::new();
            frame
                .init(header.as_slice())
                .map_err(|error| self.fault(format!("bad zstd frame: {error}")))?;
            return Ok(Some(frame));
        }
    }
}

impl Read for Frames {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(frame) = &mut self.frame else {
                match self.next_frame()? {
                    Some(frame) => self.frame = Some(frame),
                    None => return Ok(0),
                }
                continue;
            };
            if frame.can_collect() > 0 {
                return frame.read(buf);
            }
            if !frame.is_finished() {
                let decoded =
                    frame.decode_blocks(&mut self.raw, BlockDecodingStrategy::UptoBlocks(1));
                decoded.map_err(|error| self.broken(error))?;
                continue;
            }
            let stored = frame.get_checksum_from_data();
            if stored.is_some() && stored != frame.get_calculated_checksum() {
                return Err(self.fault("corrupt zstd data: the checksum does not match"));
            }
            self.frame = None;
        }
    }
}

/// The fault inside an error that came through a [`Source`].
pub(crate) fn fault_of(error: io::Error) -> Fault {
    let text = error.to_string();
    match error.into_inner().map(|inner| inner.downcast::<Fault>()) {
        Some(Ok(fault)) => *fault,
        _ => Fault::new("read", text),
    }
}
