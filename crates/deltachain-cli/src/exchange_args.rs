//! The command line of what reads and writes the deltas of other systems.
#![expect(clippy::doc_markdown, reason = "help texts are for terminals, not for browsers")]

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use deltachain::{Error, Result};
use deltachain_exchange::{Reader, Writer, arc2, pulsept1, slime, trl};

use crate::chain_args::StoreArgs;
use crate::shared_args::{LimitArgs, ProfileArg, parse_note};

/// The layouts of other systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Foreign {
    /// ARC of Fireworks, versions 1 and 2
    Arc2,
    /// The directories of slime, miles, SGLang, Stitch and ModelExpress
    Slime,
    /// PULSEPT1 of basilica, versions 1 to 3
    Pulsept1,
    /// The patches of TRL
    Trl,
}

impl Foreign {
    pub(crate) fn reader(self) -> Reader {
        match self {
            Self::Arc2 => Reader::Arc2,
            Self::Slime => Reader::Slime,
            Self::Pulsept1 => Reader::Pulsept1,
            Self::Trl => Reader::Trl,
        }
    }
}

/// What is written into a foreign delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EncodingArg {
    /// ARC 2 [the default of arc2]
    Zstd,
    /// ARC 1
    Zlib,
    /// slime: the exclusive or of all bytes [the default of slime]
    Xor,
    /// slime: positions and new bytes
    Overwrite,
    /// PULSEPT1 version 1, which all of its readers know [the default of pulsept1]
    V1,
    /// PULSEPT1 version 2
    V2,
    /// PULSEPT1 version 3, the smallest
    V3,
    /// TRL: distances [the default of trl]
    GapDelta,
    /// TRL: positions
    Raw,
}

/// The checksum of tensors in slime's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChecksumArg {
    /// XXH3-128, as slime by default
    #[value(name = "xxh3-128")]
    Xxh3,
    /// BLAKE3
    Blake3,
    /// Adler-32, which ModelExpress asks for
    Adler32,
}

/// Make links from the deltas of another system
///
/// Each delta is applied to the previous state, the result is compared with all checksums of the delta, and a link to
/// it is made. What the layout cannot prove is reported.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain import --from slime --base step6/ weight_v000007/ -o 7.dcf
  deltachain import --from pulsept1 --base step0/ 1.pulse 2.pulse 3.pulse -o links/    links/000001.dcf and so on
  deltachain import --from arc2 --base step0/ step_*.safetensors --chain s3://models/run7")]
#[command(group = ArgGroup::new("result").required(true).args(["output", "chain"]))]
pub(crate) struct ImportArgs {
    /// The deltas, in order: each belongs to the result of the one before
    #[arg(required = true, value_name = "FOREIGN")]
    pub(crate) deltas: Vec<PathBuf>,
    /// Layout of the deltas
    #[arg(long, value_enum, value_name = "LAYOUT")]
    pub(crate) from: Foreign,
    /// The state that the first delta belongs to
    #[arg(long, value_name = "STATE")]
    pub(crate) base: PathBuf,
    /// The link to make; for several deltas, a new directory for their links
    #[arg(long, short, value_name = "LINK")]
    pub(crate) output: Option<PathBuf>,
    /// The chain to add a version to for each delta, instead of making links
    ///
    /// Its head must be the base. An empty chain gets the base as its first version.
    #[arg(long, value_name = "URL")]
    pub(crate) chain: Option<String>,
    /// How values are coded
    #[arg(long, value_enum, default_value_t = ProfileArg::Compact)]
    pub(crate) profile: ProfileArg,
    /// Note for people and tools, stored in each link or commit; repeatable
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = parse_note)]
    pub(crate) notes: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Write links as the deltas of another system
///
/// Before anything is written, it is checked that the layout supports them all. A directory of slime gets
/// weight_vNNNNNN/, one of TRL deltas/step_NNNNNN.safetensors, one of PULSEPT1 step_NNNNNN.pulse, one of ARC
/// step_NNNNNN.safetensors, or a directory step_NNNNNN/ if the base is one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain export --to slime --base step6/ 7.dcf -o deltas/ --first 7
  deltachain export --to pulsept1 --encoding v3 --base step0/ 1.dcf 2.dcf -o patches/")]
pub(crate) struct ExportArgs {
    /// The links, in order
    #[arg(required = true, value_name = "LINK")]
    pub(crate) links: Vec<PathBuf>,
    /// Layout to write
    #[arg(long, value_enum, value_name = "LAYOUT")]
    pub(crate) to: Foreign,
    /// Encoding within the layout
    #[arg(long, value_enum)]
    pub(crate) encoding: Option<EncodingArg>,
    /// Checksum in slime's directories [default: xxh3-128]
    #[arg(long, value_enum)]
    pub(crate) checksum: Option<ChecksumArg>,
    /// The state that the first link belongs to
    #[arg(long, value_name = "STATE")]
    pub(crate) base: PathBuf,
    /// Directory to write into; created if missing
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Number of the first step; the base has the previous one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) first: u64,
    /// Name of the model, recorded by PULSEPT1
    #[arg(long, value_name = "NAME", default_value = "model")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

impl ExportArgs {
    /// The layout with all that was chosen about it.
    pub(crate) fn writer(&self) -> Result<Writer> {
        let checksum = match self.checksum {
            None | Some(ChecksumArg::Xxh3) => slime::Checksum::Xxh3,
            Some(ChecksumArg::Blake3) => slime::Checksum::Blake3,
            Some(ChecksumArg::Adler32) => slime::Checksum::Adler32,
        };
        if self.checksum.is_some() && self.to != Foreign::Slime {
            return Err(Error::usage("--checksum is for --to slime"));
        }
        match (self.to, self.encoding) {
            (Foreign::Arc2, None | Some(EncodingArg::Zstd)) => Ok(Writer::Arc2(arc2::Version::V2)),
            (Foreign::Arc2, Some(EncodingArg::Zlib)) => Ok(Writer::Arc2(arc2::Version::V1)),
            (Foreign::Slime, None | Some(EncodingArg::Xor)) => Ok(Writer::Slime(slime::Encoding::Xor, checksum)),
            (Foreign::Slime, Some(EncodingArg::Overwrite)) => Ok(Writer::Slime(slime::Encoding::Overwrite, checksum)),
            (Foreign::Pulsept1, None | Some(EncodingArg::V1)) => Ok(Writer::Pulsept1(pulsept1::Version::V1)),
            (Foreign::Pulsept1, Some(EncodingArg::V2)) => Ok(Writer::Pulsept1(pulsept1::Version::V2)),
            (Foreign::Pulsept1, Some(EncodingArg::V3)) => Ok(Writer::Pulsept1(pulsept1::Version::V3)),
            (Foreign::Trl, None | Some(EncodingArg::GapDelta)) => Ok(Writer::Trl(trl::Encoding::GapDelta)),
            (Foreign::Trl, Some(EncodingArg::Raw)) => Ok(Writer::Trl(trl::Encoding::Raw)),
            _ => Err(Error::usage("this --encoding belongs to another layout; see export --help")),
        }
    }
}
