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

/// Keys that sign.
#[derive(Debug, Args)]
#[expect(clippy::struct_field_names, reason = "the options have these names")]
pub(crate) struct SignArgs {
    /// Sign with the secret key in this file; repeatable
    ///
    /// `deltachain key new` makes keys.
    /// [default: the content of DELTACHAIN_SIGNING_KEY, if it is set]
    #[arg(long, value_name = "FILE", help_heading = SIGNATURES)]
    pub(crate) sign_key: Vec<PathBuf>,
    /// Let this shell command sign, for the public key of --sign-key
    ///
    /// The one public key among --sign-key. The command gets the bytes to sign on standard input,
    /// and prints the Ed25519 signature of 64 bytes in base64.
    #[arg(long, value_name = "COMMAND", requires = "sign_key", help_heading = SIGNATURES)]
    pub(crate) sign_command: Option<String>,
    /// Kill that command after this time; nothing is published then
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "60",
        requires = "sign_command"
    )]
    #[arg(value_parser = parse_seconds, help_heading = SIGNATURES)]
    pub(crate) sign_timeout: Duration,
}

/// Whose signatures count.
#[derive(Debug, Args)]
pub(crate) struct TrustArgs {
    /// Take only versions that this key has signed; repeatable
    ///
    /// A public key, alone for all chains or followed by the digests of those that it is for, or a
    /// file with one on each line; # begins a comment. none: of a directory, forget that it was
    /// followed with --trust, and what was seen then.
    #[arg(long, value_name = "KEY|FILE", help_heading = SIGNATURES)]
    pub(crate) trust: Vec<String>,
    /// How many keys of --trust have to sign a version [default: 1]
    #[arg(long, value_name = "N", requires = "trust", help_heading = SIGNATURES)]
    pub(crate) quorum: Option<usize>,
}

/// Keys with which a publisher signs, and keys that it trusts.
#[derive(Debug, Args)]
pub(crate) struct PublisherSignatureArgs {
    #[command(flatten)]
    pub(crate) sign: SignArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Publish after the head with this commit, although it is not signed
    ///
    /// Once; or although later versions were lost for good. Look at it before: who signs a version
    /// vouches for all below it.
    #[arg(long, value_name = "COMMIT", value_parser = parse_digest, help_heading = SIGNATURES)]
    pub(crate) vouch: Option<Digest>,
    /// Publish without a signature, although the head has one
    ///
    /// Followers with --trust take no more versions then. Without it, a missing key is an error if
    /// the head is signed.
    #[arg(long, conflicts_with = "sign_key", help_heading = SIGNATURES)]
    pub(crate) unsigned: bool,
}
