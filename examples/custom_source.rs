//! Reads a link from a source that the library does not know: here a file in pieces, as an archive
//! may keep it. Only the parts that are needed are read.
//!
//! `cargo run --example custom_source -- PIECE [PIECE ...]`

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use deltachain::{Limits, LinkReader, Source};

/// A file that was cut into pieces.
struct Pieces(Vec<PathBuf>);

impl Pieces {
    /// Returns the pieces, each with the offset at which it begins.
    fn offsets(&self) -> io::Result<Vec<(u64, &PathBuf)>> {
        let mut offset = 0;
        let with_offset = |path| {
            let begin = offset;
            offset += fs::metadata(path)?.len();
            Ok((begin, path))
        };
        self.0.iter().map(with_offset).collect()
    }

    fn read(&self, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        for (begin, path) in self.offsets()? {
            let mut piece = File::open(path)?;
            if offset < begin || offset >= begin + piece.metadata()?.len() {
                continue;
            }
            piece.seek(SeekFrom::Start(offset - begin))?;
            while !out.is_empty() {
                let count = piece.read(out)?;
                if count == 0 {
                    break;
                }
                offset += count as u64;
                out = &mut out[count..];
            }
        }
        if out.is_empty() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

impl Source for Pieces {
    fn length(&self) -> deltachain::Result<u64> {
        let lengths = self
            .0
            .iter()
            .map(|path| Ok(fs::metadata(path)?.len()))
            .sum::<io::Result<u64>>();
        lengths.map_err(|error| deltachain::Error::io("looking for the pieces", error))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> deltachain::Result<()> {
        self.read(offset, out)
            .map_err(|error| deltachain::Error::io("reading the pieces", error))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let pieces: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    for line in changes(pieces)? {
        println!("{line}");
    }
    Ok(())
}

/// Returns the names of the tensors that a link changes.
///
/// # Errors
/// If the pieces cannot be read, or are not a link.
pub(crate) fn changes(pieces: Vec<PathBuf>) -> Result<Vec<String>, Box<dyn Error>> {
    let link = LinkReader::open(Pieces(pieces), &Limits::default())?; // reads header and index, but no data
    Ok(link
        .index()
        .tensors
        .iter()
        .map(|tensor| tensor.name().to_owned())
        .collect())
}
