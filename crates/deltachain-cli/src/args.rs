//! The command line: commands, options and their help.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use deltachain::{Error, Profile, without_secrets};

use crate::chain_args::{
    ChainArgs, CompactArgs, DoctorArgs, FleetArgs, FollowArgs, FsckArgs, LogArgs, MirrorArgs,
    PruneArgs, PublishArgs, PullArgs, ShowArgs, StatusArgs, StoreArgs,
};
use crate::failure;
use crate::key_args::{KeyCommand, SignVersionArgs};
use crate::shared_args::{Global, LimitArgs, PROFILES, help_flag, one_of, parse_note};

const EXAMPLES: &str = "\
Examples:
  deltachain demo                                        see it work on a small real model
  deltachain snapshot step0/ -o 0.dcf                    all of a model
  deltachain diff step0/ step1/ -o 1.dcf                 what changed between two versions
  deltachain apply 0.dcf 1.dcf -o restored/              a version from nothing but links
  deltachain apply --base step0/ 1.dcf -o step1-again/   a version from the one before
  deltachain inspect 1.dcf                               what a link holds

  deltachain init s3://models/run7                       a chain, in a bucket or a directory
  deltachain publish s3://models/run7 step1/             its next version
  deltachain follow s3://models/run7 /models/run7        keep a directory at the newest version

STATE, BASE and TARGET are a .safetensors file or a directory of them, with or without an index. \
The folders of a directory are included: tensors of vae/model.safetensors are called vae/NAME. \
Skipped are hidden files and folders, checkpoint-*, original, and chains.

Exit codes: 0 success, 1 refused or failed, 2 wrong arguments or inputs, 130 interrupted.";

const INIT_EXAMPLES: &str = "\
Examples:
  deltachain init /mnt/models/run7
  deltachain init s3://models/run7
  deltachain init s3://models/run7 --store endpoint=http://127.0.0.1:9000 --store region=us-east-1";

const KEY_EXAMPLES: &str = "\
Examples:
  deltachain key new trainer.example/run7 -o run7.key    a secret file; prints the public key
  deltachain key show run7.key > run7.pub                the public key again, to give to followers";

/// Lossless deltas between versions of a model's weights, in safetensors files.
///
/// A link is a file that turns one state (one version of all tensors) into another, bit for bit.
/// Links are checked against digests of base and target: a result is either exact or refused.
#[derive(Debug, Parser)]
#[command(name = "deltachain", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Diff(DiffArgs),
    Snapshot(SnapshotArgs),
    Apply(ApplyArgs),
    Inspect(InspectArgs),
    Verify(VerifyArgs),
    Digest(DigestArgs),
    Demo(DemoArgs),
    /// Begin a chain
    ///
    /// A chain holds the versions 0, 1, 2, ... of one model in a store. It starts empty.
    #[command(after_help = INIT_EXAMPLES)]
    Init(ChainArgs),
    Publish(PublishArgs),
    Log(LogArgs),
    Show(ShowArgs),
    Pull(PullArgs),
    Follow(FollowArgs),
    Status(StatusArgs),
    Fleet(FleetArgs),
    /// Make or show a key that signs versions
    #[command(subcommand, after_help = KEY_EXAMPLES)]
    Key(KeyCommand),
    Sign(SignVersionArgs),
    Mirror(MirrorArgs),
    Compact(CompactArgs),
    Prune(PruneArgs),
    Fsck(FsckArgs),
    Doctor(DoctorArgs),
    Explain(ExplainArgs),
}

/// Make a link from one state to another
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain diff step0.safetensors step1.safetensors -o 1.dcf
  deltachain diff step0/ step1/ -o 1.dcf --meta step=1 --meta run=\"first try\"
  deltachain diff step0/ step1/ -o 1.dcf --profile direct    for engines that patch memory")]
pub(crate) struct DiffArgs {
    /// The state that the link will be applied to
    pub(crate) base: PathBuf,
    /// The state that the link leads to
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) link: NewLink,
    /// How values are coded
    #[arg(long, value_parser = one_of(PROFILES), default_value = "compact")]
    pub(crate) profile: Profile,
}

/// Make a snapshot: a link that holds a whole state and needs no base
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  deltachain snapshot step0/ -o 0.dcf")]
pub(crate) struct SnapshotArgs {
    /// The state that the link leads to
    pub(crate) state: PathBuf,
    #[command(flatten)]
    pub(crate) link: NewLink,
}

/// Build a state from links
///
/// Several links are applied in the given order, each to the result of the previous one. Base and
/// links are checked before anything is written, and the result appears only if its digest matches.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain apply --base step0/ 1.dcf -o step1/
  deltachain apply --base step0/ 1.dcf 2.dcf 3.dcf -o step3/
  deltachain apply 0.dcf 1.dcf -o step1/                         0.dcf is a snapshot
  deltachain apply --base model/ 1.dcf -o model/ --force         replace the base")]
pub(crate) struct ApplyArgs {
    /// The links, in order
    #[arg(required = true, value_name = "LINK")]
    pub(crate) links: Vec<PathBuf>,
    /// The state that the first link belongs to [default: the empty state, for a snapshot]
    #[arg(long, value_name = "STATE")]
    pub(crate) base: Option<PathBuf>,
    /// File for the result, or directory if the state has several files
    #[arg(long, short, value_name = "STATE")]
    pub(crate) output: PathBuf,
    /// Replace an existing output
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Show what a link holds, or write a page about a link or a chain
///
/// The bytes of a segment are divided among its tensors by their coded lanes. A lane is an element,
/// or a byte of a packed type. A sparse coding holds lanes that change; a dense one holds every
/// lane.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain inspect 1.dcf
  deltachain inspect 1.dcf --html 1.html    one page that contains the link, to view and to send
  deltachain inspect s3://models/run7 --html run7.html    a page about a chain: its documents
  deltachain inspect 1.dcf --json | jq '.tensors[] | select(.operation == \"set\") | .name'")]
pub(crate) struct InspectArgs {
    /// The link; with --html also a chain, a directory or URL
    #[arg(value_name = "LINK|CHAIN")]
    pub(crate) path: PathBuf,
    /// Write a page for browsers with the link or the chain's documents, instead of a table
    ///
    /// They have at most 256 MiB together. The page needs no network. It can verify and apply a
    /// link if given its base, and shows the links of a chain if given its folder or address.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Replace the file of --html
    #[arg(long, requires = "html")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Check a link without writing anything
///
/// Without a base: checksums, structure and every coding. With a base, also that the link belongs
/// to it, and leads exactly to the target that it promises.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain verify 1.dcf
  deltachain verify 1.dcf --base step0/")]
pub(crate) struct VerifyArgs {
    /// The link
    pub(crate) link: PathBuf,
    /// The state that the link belongs to
    #[arg(long, value_name = "STATE")]
    pub(crate) base: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Print the digest of a state
///
/// It covers names, types, shapes and data of all tensors, and nothing else: equal states in
/// different files have equal digests.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain digest step1/
  deltachain digest step1/ --tensors --json")]
pub(crate) struct DigestArgs {
    /// The state
    pub(crate) state: PathBuf,
    /// Also print the digest of each tensor
    #[arg(long)]
    pub(crate) tensors: bool,
}

/// Show a small chain at work; needs no files and no network
///
/// Makes links between four consecutive checkpoints of a real model (excerpts, included in this
/// program), applies them, compares the results byte for byte, and tries a wrong base and a damaged
/// link. Then publishes them as the versions of a chain in a directory, with one follower from the
/// start and one that joins late.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the files in this directory, which must be new or empty
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

/// Explain errors: what a rule or a class means, what has usually caused it, and what to do
///
/// Without a name, all are listed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain explain R-CHN-13
  deltachain explain STATE_MISMATCH R-APP-04")]
pub(crate) struct ExplainArgs {
    /// Rules, such as R-CHN-13, or classes, such as CHAIN, in upper or lower case
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// A link to make.
#[derive(Debug, Args)]
pub(crate) struct NewLink {
    /// The link to make
    #[arg(long, short, value_name = "LINK")]
    pub(crate) output: PathBuf,
    /// Note for people and tools, stored in the link; repeatable
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = parse_note)]
    pub(crate) notes: Vec<(String, String)>,
    /// Replace the file at the output
    #[arg(long)]
    pub(crate) force: bool,
}

/// Parses the command line. `Err` is the exit code after help or an error has been printed.
pub(crate) fn parse<P: Parser>(arguments: &[OsString]) -> Result<P, u8> {
    let mut command = P::command().disable_help_flag(true).arg(help_flag());
    let matches = command.try_get_matches_from_mut(arguments);
    matches
        .and_then(|matches| refuse_home(&command, &matches).map(|()| matches))
        .and_then(|mut matches| P::from_arg_matches_mut(&mut matches))
        .map_err(|error| {
            // With --json, the error is JSON even if the rest of the command line is invalid.
            let json = error.use_stderr() && arguments.iter().any(|argument| argument == "--json");
            if json {
                failure::report_as_json(&usage_error(&error));
            } else {
                // It is not a failure if help cannot be written because its reader has exited.
                let _ = if error.use_stderr() {
                    write!(
                        anstream::stderr(),
                        "{}",
                        without_secrets(&error.render().ansi().to_string())
                    )
                } else {
                    error.print()
                };
            }
            u8::try_from(error.exit_code()).unwrap_or(failure::FAILURE)
        })
}

/// Names of arguments that are parsed as text, but may be paths.
const PLACES: [&str; 7] = [
    "url",
    "copy",
    "source",
    "destination",
    "to",
    "trust",
    "chain",
];

/// Refuses the path `~` and paths that begin with `~/`, which would name a directory called `~`.
/// The shell does not expand `~` within quotes or after `--option=`, and systemd does not expand it
/// at all.
fn refuse_home(command: &clap::Command, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
    let path = ValueParser::path_buf().type_id();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let is_path = argument.get_value_parser().type_id() == path;
        if !is_path && !PLACES.contains(&id) {
            continue;
        }
        let given = matches.try_get_raw(id).ok().flatten();
        for value in given.into_iter().flatten() {
            let text = value.to_string_lossy();
            if text == "~" || text.starts_with("~/") {
                let message = format!(
                    "{text}: the shell did not replace ~ by your home directory, which it does \
                     only at the beginning of an unquoted word: write $HOME instead, or ./~ for a \
                     directory of that name"
                );
                return Err(command.clone().error(ErrorKind::ValueValidation, message));
            }
        }
    }
    let Some((name, below)) = matches.subcommand() else {
        return Ok(());
    };
    match command.find_subcommand(name) {
        Some(command) => refuse_home(command, below),
        None => Ok(()),
    }
}

/// Converts the error of an invalid command line.
fn usage_error(error: &clap::Error) -> Error {
    let text = error.render().to_string();
    Error::usage(text.trim_end().trim_start_matches("error: "))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::shared_args::{GLOBAL_OPTIONS, SERVERS, SIGNATURES};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_is_short_and_long_where_it_is_asked_for() {
        let mut all = Cli::command()
            .disable_help_flag(true)
            .arg(help_flag())
            .term_width(100);
        all.build();
        for command in all.get_subcommands_mut() {
            let short = command.render_help().to_string();
            let long = command.render_long_help().to_string();
            let lines = short.lines().count();
            assert!(
                lines <= 70 && lines <= long.lines().count(),
                "{} has {lines} lines",
                command.get_name()
            );
        }
    }

    #[test]
    fn options_stand_under_their_headings() {
        let groups: [(&str, &[&str]); 3] = [
            (GLOBAL_OPTIONS, &["json", "quiet", "threads"]),
            (
                SIGNATURES,
                &[
                    "sign-key",
                    "sign-command",
                    "sign-timeout",
                    "trust",
                    "quorum",
                    "vouch",
                    "unsigned",
                ],
            ),
            (
                SERVERS,
                &[
                    "engine",
                    "server",
                    "server-timeout",
                    "adapter",
                    "keep-adapters",
                    "pause",
                    "send-unchecked",
                ],
            ),
        ];
        let mut all = Cli::command();
        all.build();
        let mut checked = 0;
        for command in all.get_subcommands() {
            // `--max-lag` is about the directory and the servers, so it may have any heading.
            for argument in command
                .get_arguments()
                .filter(|argument| argument.get_long() != Some("max-lag"))
            {
                // Positional arguments have no heading.
                let group = groups.iter().find(|(_, names)| {
                    argument
                        .get_long()
                        .is_some_and(|name| names.contains(&name))
                });
                let heading = group.map(|(heading, _)| *heading);
                assert_eq!(
                    argument.get_help_heading(),
                    heading,
                    "{} {argument}",
                    command.get_name()
                );
                checked += 1;
            }
        }
        assert!(checked > 200, "{checked}");
    }
}
