//! The command line: arguments and their help.
#![expect(
    clippy::doc_markdown,
    reason = "help texts are for terminals, not for browsers"
)]

use std::mem::discriminant;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use deltachain::{Error, Profile, Result};
use deltachain_cli::program::{
    Choices, Global, LimitArgs, PROFILES, StoreArgs, one_of, parse_note,
};
use deltachain_exchange::slime::Checksum;
use deltachain_exchange::{Reader, Writer, arc2, pulsept1, slime, trl};

/// The layouts, each with its reader and its default encoding.
const LAYOUTS: &Choices<(Reader, Writer)> = &[
    (
        "arc2",
        "ARC of Fireworks, versions 1 and 2",
        (Reader::Arc2, Writer::Arc2(arc2::Version::V2)),
    ),
    (
        "slime",
        "Directories of slime, miles, SGLang, Stitch and ModelExpress",
        (Reader::Slime, XOR),
    ),
    (
        "pulsept1",
        "PULSEPT1 of basilica, versions 1 to 3",
        (Reader::Pulsept1, V1),
    ),
    (
        "trl",
        "Patches of TRL",
        (Reader::Trl, Writer::Trl(trl::Encoding::GapDelta)),
    ),
];

const XOR: Writer = Writer::Slime(slime::Encoding::Xor, Checksum::Xxh3);
const V1: Writer = Writer::Pulsept1(pulsept1::Version::V1);

const ENCODINGS: &Choices<Writer> = &[
    (
        "zstd",
        "ARC 2 [the default of arc2]",
        Writer::Arc2(arc2::Version::V2),
    ),
    ("zlib", "ARC 1", Writer::Arc2(arc2::Version::V1)),
    (
        "xor",
        "slime: the exclusive or of all bytes [the default of slime]",
        XOR,
    ),
    (
        "overwrite",
        "slime: positions and new bytes",
        Writer::Slime(slime::Encoding::Overwrite, Checksum::Xxh3),
    ),
    (
        "v1",
        "PULSEPT1 version 1, which all of its readers know [the default of pulsept1]",
        V1,
    ),
    (
        "v2",
        "PULSEPT1 version 2",
        Writer::Pulsept1(pulsept1::Version::V2),
    ),
    (
        "v3",
        "PULSEPT1 version 3, the smallest",
        Writer::Pulsept1(pulsept1::Version::V3),
    ),
    (
        "gap-delta",
        "TRL: distances [the default of trl]",
        Writer::Trl(trl::Encoding::GapDelta),
    ),
    ("raw", "TRL: positions", Writer::Trl(trl::Encoding::Raw)),
];

const CHECKSUMS: &Choices<Checksum> = &[
    ("xxh3-128", "XXH3-128, as slime by default", Checksum::Xxh3),
    ("blake3", "BLAKE3", Checksum::Blake3),
    (
        "adler32",
        "Adler-32, which ModelExpress asks for",
        Checksum::Adler32,
    ),
];

/// Converts between links and the weight deltas of other systems.
///
/// Links are checked against digests of base and target. docs/exchange.md of deltachain describes
/// what each layout can carry.
///
/// Exit codes: 0 success, 1 refused or failed, 2 usage error, 130 interrupted.
#[derive(Debug, Parser)]
#[command(name = "deltachain-exchange", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Import(ImportArgs),
    Export(ExportArgs),
}

/// Make links from the deltas of another system
///
/// Each delta is applied to the previous state, the result is compared with all checksums of the
/// delta, and a link to it is made. Remarks say what the layout cannot prove.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain-exchange import --from slime --base step6/ weight_v000007/ -o 7.dcf
  deltachain-exchange import --from pulsept1 --base step0/ 1.pulse 2.pulse 3.pulse -o links/    links/000001.dcf and so on
  deltachain-exchange import --from arc2 --base step0/ step_*.safetensors --chain s3://models/run7")]
#[command(group = ArgGroup::new("result").required(true).args(["output", "chain"]))]
pub(crate) struct ImportArgs {
    /// The deltas, in order: each starts from the result of the previous one
    #[arg(required = true, value_name = "FOREIGN")]
    pub(crate) deltas: Vec<PathBuf>,
    /// Layout of the deltas
    #[arg(long, value_parser = one_of(LAYOUTS), value_name = "LAYOUT")]
    pub(crate) from: (Reader, Writer),
    /// The state that the first delta starts from
    #[arg(long, value_name = "STATE")]
    pub(crate) base: PathBuf,
    /// The link to make; for several deltas, a new directory for the links
    #[arg(long, short, value_name = "LINK")]
    pub(crate) output: Option<PathBuf>,
    /// The chain that gets a version for each delta, instead of links
    ///
    /// Its head must be the base. An empty chain gets the base as its first version.
    #[arg(long, value_name = "URL")]
    pub(crate) chain: Option<String>,
    /// Add versions without a signature, although the head of the chain has one
    ///
    /// Followers with --trust do not accept these versions until `deltachain sign` has signed the
    /// last one.
    #[arg(long, requires = "chain")]
    pub(crate) unsigned: bool,
    /// Profile of the links
    #[arg(long, value_parser = one_of(PROFILES), default_value = "compact")]
    pub(crate) profile: Profile,
    /// Note for people and tools, stored in each link or commit; repeatable
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = parse_note)]
    pub(crate) notes: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Write links as the deltas of another system
///
/// The layout must support all links, which is checked before anything is written. slime gets
/// directories weight_vNNNNNN/; TRL gets files deltas/step_NNNNNN.safetensors; PULSEPT1 gets files
/// step_NNNNNN.pulse; ARC gets files step_NNNNNN.safetensors, or directories step_NNNNNN/ if the
/// base is a directory.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain-exchange export --to slime --base step6/ 7.dcf -o deltas/ --first 7
  deltachain-exchange export --to pulsept1 --encoding v3 --base step0/ 1.dcf 2.dcf -o patches/")]
pub(crate) struct ExportArgs {
    /// The links, in order
    #[arg(required = true, value_name = "LINK")]
    pub(crate) links: Vec<PathBuf>,
    /// Layout to write
    #[arg(long, value_parser = one_of(LAYOUTS), value_name = "LAYOUT")]
    to: (Reader, Writer),
    /// Encoding within the layout
    #[arg(long, value_parser = one_of(ENCODINGS))]
    encoding: Option<Writer>,
    /// Checksum for slime's directories [default: xxh3-128]
    #[arg(long, value_parser = one_of(CHECKSUMS))]
    checksum: Option<Checksum>,
    /// The state that the first link starts from
    #[arg(long, value_name = "STATE")]
    pub(crate) base: PathBuf,
    /// Directory to write into; created if missing
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Number of the first step; the base is the previous step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) first: u64,
    /// Name of the model, for PULSEPT1
    #[arg(long, value_name = "NAME", default_value = "model")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

impl ExportArgs {
    /// Returns the layout with the chosen options.
    pub(crate) fn writer(&self) -> Result<Writer> {
        let (_, default) = self.to;
        let writer = self.encoding.unwrap_or(default);
        match (writer, self.checksum) {
            (_, Some(_)) if !matches!(default, Writer::Slime(..)) => {
                Err(Error::usage("--checksum is for --to slime"))
            }
            _ if discriminant(&writer) != discriminant(&default) => Err(Error::usage(
                "this --encoding belongs to another layout; see export --help",
            )),
            (Writer::Slime(encoding, _), Some(checksum)) => Ok(Writer::Slime(encoding, checksum)),
            _ => Ok(writer),
        }
    }
}
