//! Options of signed chains (spec/signatures.md), for the commands that publish and follow.
#![expect(
    clippy::doc_markdown,
    reason = "help texts are for terminals, not for browsers"
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use deltachain::tensor::Digest;

use crate::shared_args::{SIGNATURES, parse_digest, parse_seconds};

/// Keys to sign with.
#[derive(Debug, Args)]
#[expect(clippy::struct_field_names, reason = "the options have these names")]
pub(crate) struct SignArgs {
    /// Sign with the secret key in this file; repeatable
    ///
    /// `deltachain key new` makes keys.
    /// [default: the content of DELTACHAIN_SIGNING_KEY, if it is set]
    #[arg(long, value_name = "FILE", help_heading = SIGNATURES)]
    pub(crate) sign_key: Vec<PathBuf>,
    /// Sign with this shell command, for the public key of --sign-key
    ///
    /// --sign-key must then give exactly one public key. The command reads the bytes to sign from
    /// standard input, and prints the Ed25519 signature of 64 bytes in base64.
    #[arg(long, value_name = "COMMAND", requires = "sign_key", help_heading = SIGNATURES)]
    pub(crate) sign_command: Option<String>,
    /// Kill the command of --sign-command after this time; then nothing is published
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "60",
        requires = "sign_command"
    )]
    #[arg(value_parser = parse_seconds, help_heading = SIGNATURES)]
    pub(crate) sign_timeout: Duration,
}

/// Keys to trust.
#[derive(Debug, Args)]
pub(crate) struct TrustArgs {
    /// Accept only versions that this key has signed; repeatable
    ///
    /// A public key for all chains, a public key followed by the digests of the chains that it is
    /// for, or a file with one of these on each line, where # begins a comment. none: forget that
    /// the directory was followed with --trust, and which versions were seen then.
    #[arg(long, value_name = "KEY|FILE", help_heading = SIGNATURES)]
    pub(crate) trust: Vec<String>,
    /// Number of keys of --trust that must sign a version [default: 1]
    #[arg(long, value_name = "N", requires = "trust", help_heading = SIGNATURES)]
    pub(crate) quorum: Option<usize>,
}

/// Keys that a publisher signs with, and keys that it trusts.
#[derive(Debug, Args)]
pub(crate) struct PublisherSignatureArgs {
    #[command(flatten)]
    pub(crate) sign: SignArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Publish after the head with this commit, although it is not signed
    ///
    /// Applies once. Also for a chain whose later versions were lost for good. Check the head
    /// before: a signature vouches for the version and all below it.
    #[arg(long, value_name = "COMMIT", value_parser = parse_digest, help_heading = SIGNATURES)]
    pub(crate) vouch: Option<Digest>,
    /// Publish without a signature, although the head has one
    ///
    /// Followers with --trust then accept no more versions. Without --unsigned, a missing key is an
    /// error if the head is signed.
    #[arg(long, conflicts_with = "sign_key", help_heading = SIGNATURES)]
    pub(crate) unsigned: bool,
}
