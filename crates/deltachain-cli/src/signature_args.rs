//! Options of signed chains (SPEC-signatures.md), and the commands `key` and `sign`.
#![expect(clippy::doc_markdown, reason = "help texts are for terminals, not for browsers")]

use std::path::PathBuf;

use clap::{Args, Subcommand};
use deltachain::tensor::Digest;

use crate::chain_args::ChainArgs;
use crate::shared_args::{SIGNATURES, parse_digest, parse_seconds};

/// Who signs.
#[derive(Debug, Args)]
#[expect(clippy::struct_field_names, reason = "the options have these names")]
pub(crate) struct SignArgs {
    /// Sign with the secret key in this file, which `deltachain key new` made; repeatable [default: the content of
    /// DELTACHAIN_SIGNING_KEY, if it is set]
    #[arg(long, value_name = "FILE", help_heading = SIGNATURES)]
    pub(crate) sign_key: Vec<PathBuf>,
    /// Let this shell command sign, for the one public key among --sign-key: it gets the bytes to sign on standard
    /// input, and prints the Ed25519 signature of 64 bytes in base64
    #[arg(long, value_name = "COMMAND", requires = "sign_key", help_heading = SIGNATURES)]
    pub(crate) sign_command: Option<String>,
    /// Kill the command of --sign-command after this time; nothing is published then
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, requires = "sign_command", value_parser = parse_seconds, help_heading = SIGNATURES)]
    pub(crate) sign_timeout: f64,
}

/// Whose signatures count.
#[derive(Debug, Args)]
pub(crate) struct TrustArgs {
    /// Trust the signatures of this key: a public key, or a file with one on each line; # begins a comment; repeatable
    #[arg(long, value_name = "KEY|FILE", help_heading = SIGNATURES)]
    pub(crate) trust: Vec<String>,
    /// How many of the keys of --trust have to sign a version [default: 1]
    #[arg(long, value_name = "N", requires = "trust", help_heading = SIGNATURES)]
    pub(crate) quorum: Option<usize>,
}

/// How a publisher signs, and whose versions it follows.
#[derive(Debug, Args)]
pub(crate) struct PublisherSignatureArgs {
    #[command(flatten)]
    pub(crate) sign: SignArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Publish after the head with this commit, once, although it is not signed. Look at it before: who signs a version
    /// vouches for all below it
    #[arg(long, value_name = "COMMIT", value_parser = parse_digest, help_heading = SIGNATURES)]
    pub(crate) vouch: Option<Digest>,
}

/// Whose versions a follower takes.
#[derive(Debug, Args)]
pub(crate) struct FollowerTrustArgs {
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Forget that DIR was followed with --trust, and what was seen then
    #[arg(long, help_heading = SIGNATURES)]
    pub(crate) forget_trust: bool,
}

/// Make or show a key that signs versions
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain key new trainer.example/run7 -o run7.key    a secret file; prints the public key
  deltachain key show run7.key > run7.pub                the public key again, to give to followers")]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    New(NewKeyArgs),
    Show(ShowKeyArgs),
}

/// Make a secret key, and print its public key
#[derive(Debug, Args)]
pub(crate) struct NewKeyArgs {
    /// Name of the key, for people: such as the owner's domain and a purpose; no spaces, no +
    pub(crate) name: String,
    /// File for the secret key, which only you may read; it must not exist
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// Print the public keys in a file
#[derive(Debug, Args)]
pub(crate) struct ShowKeyArgs {
    /// A file with a secret key or with public keys; - is standard input
    pub(crate) file: PathBuf,
}

/// Sign a version that has been published
///
/// For a chain that begins to be signed, or as one of several who have to sign. It vouches for the version and all below
/// it, so look at it before (`log`, `show`), and give the digest of its commit.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain sign s3://models/run7 --commit COMMIT --sign-key run7.key
  deltachain sign s3://models/run7 --version 7 --commit COMMIT --sign-key run7.pub --sign-command ./ask-kms")]
pub(crate) struct SignVersionArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    /// The version [default: the one with the commit]
    #[arg(long, value_name = "N")]
    pub(crate) version: Option<u64>,
    /// Digest of its commit, as `log --json` and `show` print it
    #[arg(long, value_name = "COMMIT", value_parser = parse_digest)]
    pub(crate) commit: Option<Digest>,
    #[command(flatten)]
    pub(crate) sign: SignArgs,
}
