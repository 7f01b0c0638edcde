//! Arguments of the commands that work on chains in a store.
#![expect(
    clippy::doc_markdown,
    reason = "help texts are for terminals, not for browsers"
)]

use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize, ParseIntError};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use deltachain::tensor::Digest;
use deltachain::{Error, Result, without_secrets};
use deltachain_engines::Address;
use deltachain_store::{MaxLag, Snapshots, Store, StoreOptions};

use crate::engine_args::EngineArgs;
use crate::interrupt;
use crate::operation::http::parse_address;
use crate::shared_args::{
    LimitArgs, ProfilesArgs, parse_digest, parse_note, parse_number, parse_seconds, parse_size,
};
use crate::signature_args::{PublisherSignatureArgs, TrustArgs};

/// A chain, and the options of its store.
#[derive(Debug, Args)]
pub(crate) struct ChainArgs {
    /// The chain: a directory, s3://BUCKET/PREFIX, gs://, az://, or http(s):// (read-only)
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Options for access to a store.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Setting of the store, such as endpoint, region, timeout, retries or max-rate; repeatable
    ///
    /// endpoint: address of an S3-compatible store, such as http://127.0.0.1:9000
    /// [default: AWS_ENDPOINT_URL, or Amazon's]. region: region of the bucket
    /// [default: AWS_REGION]. timeout: abort a request after this many seconds without progress;
    /// slow transfers are not affected [default: 60]. retries: maximum retries per request, with
    /// exponential backoff; Retry-After is honoured [default: 7]. max-rate: limit for uploads and
    /// downloads together, in bytes per second, such as 10M [default: no limit]. Any other setting
    /// of the store, such as aws_virtual_hosted_style_request=true. Prefer the usual environment
    /// variables for credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,
    /// GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_CONNECTION_STRING, and so on; credentials_timeout is
    /// how many seconds a service that gives credentials may take [default: 10]. The value env:NAME
    /// is that of the environment variable NAME, for a second account.
    // Parsed later, because an error of clap's parser would print the value.
    #[arg(long = "store", value_name = "NAME=VALUE")]
    pub(crate) settings: Vec<String>,
}

impl StoreArgs {
    /// Opens a store. Ctrl-C ends waits for it.
    ///
    /// # Errors
    /// USAGE if an option is invalid; IO.
    pub fn open(&self, url: &str) -> Result<Store> {
        Ok(Store::open(url, self.options()?)?.with_stop(interrupt::stop()))
    }

    pub(crate) fn options(&self) -> Result<StoreOptions> {
        let mut options = StoreOptions::default();
        let mut settings = Vec::new();
        for setting in &self.settings {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| Error::usage("a setting of --store has no =: write NAME=VALUE"))?;
            let refused = |text: String| Error::usage(format!("--store {name}: {text}"));
            options = match name {
                "timeout" => options.timeout(parse_seconds(value).map_err(refused)?),
                "retries" => {
                    let retries: u32 = value
                        .parse()
                        .map_err(|error: ParseIntError| refused(error.to_string()))?;
                    options.attempts(retries.saturating_add(1))
                }
                "max-rate" => options.max_rate(Some(parse_size(value).map_err(refused)?)),
                _ => {
                    settings.push((name.to_owned(), value.to_owned()));
                    options
                }
            };
        }
        Ok(options.settings(settings))
    }
}

impl ChainArgs {
    /// The URL of the chain without secrets.
    pub(crate) fn name(&self) -> String {
        without_secrets(&self.url)
    }

    /// Opens the store.
    pub(crate) fn open(&self) -> Result<Store> {
        self.store.open(&self.url)
    }

    /// Opens the store, with these copies of its chain.
    pub(crate) fn open_with(&self, copies: &[String]) -> Result<Store> {
        let opened = copies.iter().map(|copy| {
            let mut parts = copy.split(',');
            let url = parts.next().unwrap_or_default();
            let settings = parts.map(str::to_owned).collect();
            Store::open_awaited(url, StoreArgs { settings }.options()?)
        });
        Ok(self.open()?.with_copies(opened.collect::<Result<_>>()?))
    }

    /// Opens the store, and creates its directory if it is missing.
    pub(crate) fn create(&self) -> Result<Store> {
        Ok(Store::create(&self.url, self.store.options()?)?.with_stop(interrupt::stop()))
    }
}

/// Test whether a bucket or a directory supports what chains and followers need
///
/// Every operation is tested below a new name doctor-..., which is removed afterwards. On a store:
/// puts, put-if-absent (with concurrent writers, too), lists, ranges, deletes and the clock. On a
/// directory also links, renames, locks, fsync and free space. For each missing operation, it
/// prints what does not work without it. The exit code is 1 if a required operation is missing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain doctor s3://models/run7
  deltachain doctor s3://models/run7 --store endpoint=http://127.0.0.1:9000 --json
  deltachain doctor /mnt/models                          a directory, for a chain or for a follower")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
}

/// Add a version to a chain
///
/// The version consists of the tensors in STATE and, as assets, the other files of the directory
/// and its folders, such as configuration and tokenizer. Training checkpoints (checkpoint-*) and
/// state (optimizer.pt), hidden files and others that do not belong to a model are skipped and
/// listed. The version becomes visible atomically, after all its files have been stored. A failure
/// before that leaves the chain unchanged. Links are made from the head, the newest version: give
/// its files as --base, or a directory in which the tool keeps them as --work. Otherwise the head
/// is built from the chain.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "options of a command")]
#[command(after_help = "\
Examples:
  deltachain publish s3://models/run7 step100/                           the first version
  deltachain publish s3://models/run7 step101/ --base step100/ --meta step=101
  deltachain publish s3://models/run7 step102/ --work /scratch/run7      keeps a copy of the head
  deltachain publish s3://models/run7 step103/ --keep-last 200 --max-changed 20
  deltachain publish s3://models/run7 step104/ --meta step=104 --once step
  deltachain publish s3://models/run7 step105/ --sign-key run7.key       signed
  deltachain publish s3://models/run7 step106/ --profile local,compact   also for patches in place

If the head has several shards (a training run published them from Python), the version has as \
many.")]
pub(crate) struct PublishArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    /// The version: a .safetensors file or a directory of them
    pub(crate) state: PathBuf,
    /// First wait until STATE has this file, such as _SUCCESS
    ///
    /// The writer of STATE makes this file when all others are complete. Waits without limit, also
    /// for STATE itself. A file whose name starts with a dot is not published; any other is
    /// published like the rest.
    #[arg(long, value_name = "NAME")]
    pub(crate) wait_for: Option<PathBuf>,
    /// The files of the previous version
    #[arg(long, value_name = "STATE", conflicts_with = "work")]
    pub(crate) base: Option<PathBuf>,
    /// Keep the head in this directory between calls
    ///
    /// It must be new or empty the first time.
    #[arg(long, value_name = "DIR")]
    pub(crate) work: Option<PathBuf>,
    /// Directory for temporary files [default: the system's]
    ///
    /// Files are made in a private directory in DIR, deltachain-scratch-USER. Files left by a
    /// killed run are removed by the next one.
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Publish only the tensors, not the other files
    #[arg(long)]
    pub(crate) no_assets: bool,
    /// Leave out other files by name, such as '*.log' or 'eval/*'; repeatable
    ///
    /// The pattern is compared with the name below STATE; * stands for any characters, / too.
    /// Training state of the usual trainers at the top of STATE, such as optimizer.pt, is always
    /// left out. Files of tensors cannot be left out.
    #[arg(long, value_name = "PATTERN", conflicts_with = "no_assets")]
    pub(crate) exclude: Vec<String>,
    #[command(flatten)]
    pub(crate) profiles: ProfilesArgs,
    /// Add a snapshot to every Nth version
    #[arg(long, value_name = "N", conflicts_with = "snapshot_cost")]
    snapshot_every: Option<NonZeroU64>,
    /// Add a snapshot when late joiners would read X times the last one [default: 2]
    ///
    /// inf: add no snapshots, except for version 0.
    #[arg(long, value_name = "X", value_parser = parse_cost)]
    snapshot_cost: Option<f64>,
    /// Add a link from K versions ago to every Kth version; comma-separated
    ///
    /// For followers that are behind.
    #[arg(long, value_name = "K", value_delimiter = ',')]
    pub(crate) skip_every: Vec<NonZeroU64>,
    /// Publish nothing if the tensors, their files and the other files are the same as in the head
    #[arg(long)]
    pub(crate) if_changed: bool,
    /// Publish nothing if --meta NAME of the head is equal or higher
    ///
    /// For a trainer that repeats steps after a restart. NAME=INTEGER must be among --meta.
    #[arg(long, value_name = "NAME")]
    pub(crate) once: Option<String>,
    /// Refuse a state in which more than PERCENT of the elements differ
    ///
    /// STATE is compared with the head; elements that are removed or added count as different.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) max_changed: Option<f64>,
    /// Refuse a state with NaN or infinite values, and name the tensors
    #[arg(long)]
    pub(crate) refuse_nonfinite: bool,
    /// Publish a version without tensors, so that all readers empty their models
    #[arg(long)]
    pub(crate) allow_empty: bool,
    /// Prune automatically, and keep the newest N versions
    ///
    /// Runs after every version that is a multiple of N/10.
    #[arg(long, value_name = "N")]
    pub(crate) keep_last: Option<NonZeroU64>,
    /// Note for people and tools, stored in the commit; repeatable
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = parse_note)]
    pub(crate) notes: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) signatures: PublisherSignatureArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

impl PublishArgs {
    pub(crate) fn snapshots(&self) -> Snapshots {
        match (self.snapshot_every, self.snapshot_cost) {
            (Some(every), _) => Snapshots::Every(every.get()),
            (None, Some(cost)) if cost.is_infinite() => Snapshots::Never,
            (None, Some(cost)) => Snapshots::Cost(cost),
            (None, None) => Snapshots::default(),
        }
    }
}

/// List the versions of a chain, the newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain log s3://models/run7
  deltachain log s3://models/run7 --last 100 --json")]
pub(crate) struct LogArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    /// Show at most this many versions; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) last: u64,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
}

/// Show a version: its digests, routes, files, assets and notes
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain show s3://models/run7                      the head
  deltachain show s3://models/run7 --version 7 --json")]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    /// The version [default: the head]
    #[arg(long, value_name = "N")]
    pub(crate) version: Option<u64>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
}

/// A model directory that follows a chain.
#[derive(Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of the command line"
)]
pub(crate) struct DirectoryArgs {
    /// Directory for the model, whose files are in DIR/current
    ///
    /// DIR/current is a symbolic link, which is switched when a version is complete. DIR must be
    /// new, empty, or already managed by deltachain (it contains deltachain.directory). Any other
    /// directory is refused and left untouched. Other files in a managed DIR are kept.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Fetch files from this copy of the chain if it has them: URL[,NAME=VALUE...]; repeatable
    ///
    /// A copy is made by `mirror`, in this region, for example. Copies are tried in the given
    /// order, then URL. Only URL says which versions exist: if it fails, DIR keeps its version.
    /// NAME=VALUE are settings of the copy, such as its region; those of --store are for URL.
    #[arg(long, value_name = "COPY")]
    pub(crate) copy: Vec<String>,
    /// Select tensors by name, such as 'model.layers.{0,1}.*'; repeatable
    ///
    /// Little else is downloaded. * stands for any text, ? for a character, {a,b} for either.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) tensors: Option<Vec<String>>,
    /// Skip the tensors: DIR has only the other files
    ///
    /// `follow` then only announces versions. It is meant for `follow --engine vllm` or `sglang`,
    /// with servers that download the chain of their own configuration and update their weights in
    /// place: only the other files and the indexes of links are downloaded here.
    #[arg(long, conflicts_with = "tensors")]
    pub(crate) no_tensors: bool,
    /// Copy the other files from this directory instead of the chain
    #[arg(long, value_name = "DIR")]
    pub(crate) with_files: Option<PathBuf>,
    /// Skip the other files, such as configuration, tokenizer and code
    #[arg(long, conflicts_with = "with_files")]
    pub(crate) no_assets: bool,
    /// Accept this commit, once, if the chain was rolled back or has forked
    ///
    /// Once DIR has held the version, which is recorded there, the option has no further effect: a
    /// later rollback is refused again.
    #[arg(long, value_name = "COMMIT", value_parser = parse_digest)]
    pub(crate) allow_rollback: Option<Digest>,
    /// Follow this chain from now on if DIR followed another one
    ///
    /// Checked once, at start. A rollback of the same chain is still refused; see --allow-rollback.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Size of the cache of downloaded files [default: 1G; none in memory]
    ///
    /// In memory: if DIR is in /dev/shm, for example.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) cache: Option<u64>,
    /// Do not hash the version in DIR at start
    #[arg(long)]
    pub(crate) trust_directory: bool,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Bring a directory to a version of a chain
///
/// Uses the cheapest path from the version in the directory, or from nothing. The version appears
/// atomically, checked against its digest, with the assets of the chain (configuration, tokenizer).
/// Until then, and after a failure, the directory keeps its version. A rollback of the chain below
/// that version, or another chain, is refused without --allow-rollback or --adopt.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain pull s3://models/run7 /models/run7                          the newest version
  deltachain pull s3://models/run7 /models/run7 --version 7
  deltachain pull s3://models/run7 /models/run7 --no-assets              only the tensors
  deltachain pull s3://models/run7 /models/half --tensors 'model.layers.{0,1,2}.*' --tensors 'lm_head.*'
  deltachain pull s3://models/run7 /models/run7 --allow-rollback COMMIT  after the store has been restored
  deltachain pull s3://models/run8 /models/run7 --adopt                  another chain in the same place
Then load /models/run7/current as any directory of a model.")]
pub(crate) struct PullArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
    /// The version [default: the newest]
    #[arg(long, value_name = "N")]
    pub(crate) version: Option<u64>,
}

/// Keep a directory at the newest version of a chain, until interrupted
///
/// Like `pull`, repeated. Several new versions are built in one step, on the cheapest path. Errors
/// (damage, unreachable store, rollback) are retried; the directory keeps its version. Progress is
/// recorded in DIR/status.json, which `status` shows. docs/following.md explains how to run it as a
/// service.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain follow s3://models/run7 /models/run7 --exec 'kill -HUP $(cat engine.pid)'
  deltachain follow s3://models/run7 /models/run7 --once --exec ./reload       from a timer
  deltachain follow s3://models/run7 /models/run7 --trust run7.pub --listen 9464
  deltachain follow s3://models/run7 /dev/shm/run7 --engine vllm --server http://127.0.0.1:8000
docs/following.md and integrations/docs/integrations.md have more.")]
pub(crate) struct FollowArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
    #[command(flatten)]
    pub(crate) exec: ExecArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Poll once, do what is needed, and exit
    ///
    /// Builds a new version if there is one, and runs the command or updates the servers if needed.
    #[arg(long, conflicts_with_all = ["until", "listen"])]
    pub(crate) once: bool,
    /// Exit when this version or a later one has been reached
    ///
    /// And when the command has succeeded for it, or the servers have it.
    #[arg(long, value_name = "N")]
    pub(crate) until: Option<u64>,
    /// Seconds between two polls: the minimum and, with nothing new, the maximum
    ///
    /// The pause grows from one to the other. A single number N, such as 60, is N..30, or N..N if
    /// it is more than 30.
    #[arg(long, value_name = "MIN..MAX", default_value = "2..30", value_parser = parse_poll)]
    pub(crate) poll: (Duration, Duration),
    /// Serve /metrics, /healthz and, with --engine, /ready: a port of 127.0.0.1, or IP:PORT
    ///
    /// http://ADDR/metrics has metrics for Prometheus. http://ADDR/healthz answers 200 while
    /// `status --max-lag` would say that the directory is healthy, else 503 with the reasons.
    /// http://ADDR/ready answers load balancers: 200 while each --server is ready for requests, 503
    /// otherwise. See docs/following.md.
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Maximum lag (staleness) at which /healthz and /ready answer 200: 90s, 10m, or versions
    ///
    /// A time since the version was last seen to be the newest, or a number of versions behind the
    /// newest.
    #[arg(long, value_name = "TIME|N", default_value = "10m")]
    pub(crate) max_lag: MaxLag,
}

/// A command that is run for each version.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Run this shell command for each version, and wait for it
    ///
    /// A failure is retried until it succeeds or there is a newer version, even after a restart of
    /// `follow`. The backoff grows from the minimum of --poll to a minute. The command gets these
    /// environment variables: DELTACHAIN_VERSION, DELTACHAIN_STATE (the state's digest),
    /// DELTACHAIN_DIRECTORY (the directory of this version alone, which is kept until the version
    /// after the next is being built) and DELTACHAIN_VERSION_BEFORE (the last version for which a
    /// command succeeded, empty if there is none). If VERSION_BEFORE is higher than VERSION, the
    /// chain was rolled back.
    #[arg(long = "exec", value_name = "COMMAND")]
    pub(crate) command: Option<String>,
    /// Kill the command and its children after this time, which counts as a failure
    #[arg(long, value_name = "SECONDS", requires = "command", value_parser = parse_seconds)]
    pub(crate) exec_timeout: Option<Duration>,
}

/// Show the status of a follower's directory, for people and for health checks
///
/// Reads only the records in DIR, not the chain or the model's files, and takes no lock. What it
/// reports of the chain is what `follow` saw at its last poll.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain status /models/run7
  deltachain status /models/run7 --max-lag 90s     as a health check of a service
  deltachain status /models/run7 --max-lag 3 --json

Exit code 0: healthy. Exit code 1, with the reasons: DIR holds no version, or an unreadable one; \
the last poll failed, except when the store was unreachable (class IO); the disk of DIR is full; \
the command of --exec failed for this version, or has not been run for it and no follower is \
running; a server of --engine failed, or its version is unknown (no follower is running, for \
example); or --max-lag is exceeded, by the directory or by a server, or a server is not ready for \
requests. Exit code 2: there is no directory DIR.")]
pub(crate) struct StatusArgs {
    /// The directory of `follow` or `pull`
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Maximum lag (staleness) that is healthy, of the directory and of servers
    ///
    /// A number of versions, or a time such as 90s, 10m or 2h since the version was last seen to be
    /// the newest. Choose more than the maximum of `follow --poll` plus the time to build a
    /// version.
    #[arg(long, value_name = "N|TIME")]
    pub(crate) max_lag: Option<MaxLag>,
}

/// Add a snapshot or links from older versions, so that late joiners read less
///
/// Everything is made from the chain itself, and verified before it is stored.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["snapshot", "from"]), after_help = "\
Examples:
  deltachain compact s3://models/run7 --snapshot
  deltachain compact s3://models/run7 --version 64 --from 0,32

Readers that patch memory in place trust only the routes that `publish` made, so they do not use \
the new links; routes for them stay, and with --profile local the snapshot saves them work.")]
pub(crate) struct CompactArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    /// The version that gets new routes [default: the head]
    #[arg(long, value_name = "N")]
    pub(crate) version: Option<u64>,
    /// Add a snapshot of it
    #[arg(long)]
    pub(crate) snapshot: bool,
    /// Add links from these older versions; comma-separated
    #[arg(long, value_name = "V", value_delimiter = ',')]
    pub(crate) from: Vec<u64>,
    #[command(flatten)]
    pub(crate) profiles: ProfilesArgs,
    /// Directory for temporary files, of two states [default: the system's]
    ///
    /// Files are made in a private directory in DIR, deltachain-scratch-USER. Files left by a
    /// killed run are removed by the next one.
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Remove old versions, and the files that only they need
///
/// The head is always kept, and so is everything that the kept versions are built from. Files of
/// old versions are deleted once they have been stored and withdrawn for more than 24 hours. Run it
/// daily: each run deletes what the previous one withdrew. Assets are kept. Version numbers are
/// kept: a reader that asks for a pruned version gets an error that says so. Publishers and
/// followers need not stop. Do not run two prunes at once.
///
/// Files that no version names stay: a publisher was killed, or commits were lost. If the chain
/// shows that commits are missing, nothing is removed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain prune s3://models/run7 --keep-last 100 --dry-run
  deltachain prune s3://models/run7 --keep-last 100 --keep-every 1000 --keep 7,42
  deltachain prune s3://models/run7 --undo")]
#[expect(clippy::struct_excessive_bools, reason = "options of a command")]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    /// Keep the newest N versions
    #[arg(long, value_name = "N", required_unless_present_any = ["abandoned", "undo"])]
    pub(crate) keep_last: Option<NonZeroU64>,
    /// Keep every Nth version
    #[arg(long, value_name = "N", requires = "keep_last")]
    pub(crate) keep_every: Option<NonZeroU64>,
    /// Keep these versions; comma-separated
    #[arg(long, value_name = "V", value_delimiter = ',', requires = "keep_last")]
    pub(crate) keep: Vec<u64>,
    /// Also remove files older than 24 hours that no version names
    ///
    /// Without --keep-last, all versions stay. Not for a timer: publishers that were killed leave
    /// such files, but so do lost commits, and then these files are what a restored commit needs.
    #[arg(long)]
    pub(crate) abandoned: bool,
    /// Continue although commits are missing, because they are lost for good
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Only show what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Undo what was pruned within the last 20 hours
    #[arg(long, conflicts_with_all = ["keep_last", "abandoned", "accept_loss", "dry_run"])]
    pub(crate) undo: bool,
}

/// Show what the members of a fleet hold, by digest, or wait until all hold a version
///
/// A member is the port of a follower (`follow --listen`), a program that serves the same page, or
/// a follower's directory on this machine. If a follower updates inference servers, each of them
/// counts. What members report is compared with the chain by digests. Exit code 1 if a member is
/// silent, empty, paused, torn or unhealthy, or holds something that the chain does not have; with
/// --wait, if the time is over. Members may be behind. Followers are believed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain fleet s3://models/run7 gpu-1:9465 gpu-2:9465 /models/run7
  deltachain fleet s3://models/run7 dns:followers.serving:9465         each address of the name
  deltachain fleet s3://models/run7-stable @fleet.txt --wait 12@9417bf72d3e1 --expect 200")]
pub(crate) struct FleetArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    /// HOST:PORT, http://HOST:PORT, dns:NAME:PORT, @FILE with one on each line, or a directory
    ///
    /// The path of a directory has a slash: ./run7.
    #[arg(value_name = "MEMBER", required = true, value_parser = parse_member)]
    pub(crate) members: Vec<Address>,
    /// Wait until all members hold this version, and nothing is wrong with any
    ///
    /// COMMIT is the beginning of its digest, as `show` gives it: 12 digits or more.
    #[arg(long, value_name = "VERSION@COMMIT")]
    pub(crate) wait: Option<String>,
    /// With --wait: at least this many members must hold it [default: 1]
    #[arg(long, value_name = "N", requires = "wait")]
    pub(crate) expect: Option<NonZeroUsize>,
    /// With --wait: give up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "600", requires = "wait")]
    #[arg(value_parser = parse_seconds)]
    pub(crate) timeout: Duration,
    /// Seconds in which a member must answer
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub(crate) member_timeout: Duration,
}

fn parse_member(text: &str) -> Result<Address, String> {
    text.parse()
}

/// Copy a chain, or what is new in it, to another store
///
/// Files are copied before the documents that name them, commits in their order, and chain.json
/// last in the first round, so that the copy is consistent at any time. Signatures are copied. Each
/// file is hashed while it is copied. Only mirror writes to a copy, and it removes nothing:
/// docs/copies.md says how a copy is pruned. Files that are missing or damaged in SOURCE, and other
/// faults, are listed, and everything else is copied. The exit code is 1 then.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain mirror s3://models/run7 /mnt/copies/run7                    once, or from a timer
  deltachain mirror s3://models/run7 s3://models-eu/run7 --to region=eu-west-3 --poll 5
  deltachain mirror s3://models/run7 /mnt/copies/run7 --verify           reads and repairs the copy
  deltachain mirror s3://models/run7 s3://models/run7-stable --up-to 12 COMMIT    promotes it
  deltachain mirror /mnt/copies/run7 s3://models/run7 --restore          repairs the chain
Followers read files from it: deltachain follow s3://models/run7 DIR --copy s3://models-eu/run7")]
pub(crate) struct MirrorArgs {
    /// The chain: a directory, s3://BUCKET/PREFIX, gs:// or az://
    pub(crate) source: String,
    /// The place of the copy; a directory is created, but not its parent
    pub(crate) destination: String,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Setting of DESTINATION, like --store for SOURCE; repeatable
    // Parsed later: an error of the parser would show the value.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) to: Vec<String>,
    /// Copy versions up to this one, with this commit: promote it
    ///
    /// COMMIT is the digest that `show` gives for the version. DESTINATION is never set back. If
    /// the version cannot be reached there, because files of SOURCE are missing, nothing changes
    /// for its readers. See docs/canaries.md.
    #[arg(long, value_names = ["VERSION", "COMMIT"], num_args = 2)]
    #[arg(conflicts_with_all = ["poll", "restore"])]
    pub(crate) up_to: Option<Vec<String>>,
    /// Read and hash what is in DESTINATION, and replace wrong objects
    #[arg(long, conflicts_with = "poll")]
    pub(crate) verify: bool,
    /// Repair DESTINATION, which may be ahead, from SOURCE, a copy of it
    ///
    /// Files are repaired by DESTINATION's own routes, and documents up to the newest common
    /// version. Nothing is written above it.
    #[arg(long, conflicts_with_all = ["poll", "trust"])]
    pub(crate) restore: bool,
    /// Continue to copy until interrupted, with this many seconds between two rounds
    ///
    /// After a failure, the pause doubles up to 5 minutes.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) poll: Option<Duration>,
    /// Serve /metrics and /healthz: a port of 127.0.0.1, or IP:PORT
    ///
    /// http://ADDR/metrics has metrics for Prometheus. http://ADDR/healthz answers 200 if the last
    /// round succeeded and no fault is known, 503 otherwise.
    #[arg(long, value_name = "ADDR", value_parser = parse_address, requires = "poll")]
    pub(crate) listen: Option<SocketAddr>,
    /// Directory for files while they are copied; needs room for the largest
    /// [default: the system's temporary one]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
}

/// Check a chain: every document, every file, and that each version can be reached
///
/// If URL is a directory of `follow` or `pull`, all of its files are read: tensors and cached links
/// are compared with their digests, other files with their recorded lengths. The directory may be
/// in use. --deep is refused then, since everything is read anyway.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain fsck /models/run7                           the directory of a follower
  deltachain fsck s3://models/run7
  deltachain fsck s3://models/run7 --deep --scratch /scratch")]
pub(crate) struct FsckArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    /// Also build every version and compare its digest, and read all assets
    #[arg(long)]
    pub(crate) deep: bool,
    /// Directory for temporary files [default: the system's]
    ///
    /// Files are made in a private directory in DIR, deltachain-scratch-USER. Files left by a
    /// killed run are removed by the next one.
    #[arg(long, value_name = "DIR", requires = "deep")]
    pub(crate) scratch: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Default of the maximum pause if only the minimum is given.
const LONGEST_POLL: Duration = Duration::from_secs(30);

/// Parses the minimum and the maximum pause.
fn parse_poll(text: &str) -> Result<(Duration, Duration), String> {
    let Some((shortest, longest)) = text.split_once("..") else {
        let shortest = parse_seconds(text)?;
        return Ok((shortest, shortest.max(LONGEST_POLL)));
    };
    let shortest = parse_seconds(shortest)?;
    let longest = parse_seconds(longest)?;
    if longest < shortest {
        return Err("the maximum is below the minimum".to_owned());
    }
    Ok((shortest, longest))
}

fn parse_cost(text: &str) -> Result<f64, String> {
    parse_number(
        text,
        1.0..=f64::INFINITY,
        "must be at least 1, since every late joiner reads a snapshot",
    )
}

fn parse_percent(text: &str) -> Result<f64, String> {
    parse_number(text, 0.0..=100.0, "must be from 0 to 100")
}
