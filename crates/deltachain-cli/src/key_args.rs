//! Arguments of the commands `key` and `sign`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use deltachain::tensor::Digest;

use crate::chain_args::{ChainArgs, StoreArgs};
use crate::shared_args::parse_digest;
use crate::signature_args::SignArgs;

/// Commands for keys.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a secret key, and print its public key
    New {
        /// Name of the key, for people: such as the owner's domain and a purpose; no spaces, no +
        name: String,
        /// File for the secret key, which only you may read; it must not exist
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Print the public keys in a file
    Show {
        /// A file with a secret key or with public keys; - is standard input
        file: PathBuf,
        /// Print each as a line for --trust that trusts the key only for this chain, and for the
        /// chains that already stand beside the key
        #[arg(long, value_name = "URL")]
        chain: Option<String>,
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// Sign a version that has been published
///
/// To begin with signatures in a chain, or to add one of several required signatures. A signature
/// vouches for the version and all below it, so check the version before (`log`, `show`), and give
/// the digest of its commit.
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
