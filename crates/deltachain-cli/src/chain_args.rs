//! The command line of everything that has to do with chains in a store.
#![expect(clippy::doc_markdown, reason = "help texts are for terminals, not for browsers")]

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use deltachain::tensor::Digest;
use deltachain::{Error, Result, without_secrets};
use deltachain_store::{MaxLag, Snapshots, Store, StoreOptions};

use crate::engine_args::EngineArgs;
use crate::interrupt;
use crate::operation::http::parse_address;
use crate::shared_args::{
    LimitArgs, ProfilesArgs, SERVERS, SIGNATURES, STORE_OPTIONS, parse_digest, parse_note, parse_number, parse_seconds,
    parse_size,
};
use crate::signature_args::{PublisherSignatureArgs, TrustArgs};

/// The chain and how to talk to the store that it is in.
#[derive(Debug, Args)]
pub(crate) struct ChainArgs {
    /// The chain: a directory, s3://BUCKET/PREFIX, gs://..., az://..., or http(s)://... (read-only)
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// How to talk to a store.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Address of an S3-compatible store, such as http://127.0.0.1:9000 [default: AWS_ENDPOINT_URL, or Amazon's]
    #[arg(long, value_name = "URL", help_heading = STORE_OPTIONS)]
    pub(crate) endpoint: Option<String>,
    /// Region of the bucket [default: AWS_REGION]
    #[arg(long, value_name = "NAME", help_heading = STORE_OPTIONS)]
    pub(crate) region: Option<String>,
    /// Any other setting of the store, such as aws_virtual_hosted_style_request=true; repeatable
    ///
    /// Prefer the usual environment variables for credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,
    /// GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, and so on.
    // Parsed later: an error of the parser would show the value.
    #[arg(long = "store-option", value_name = "KEY=VALUE", help_heading = STORE_OPTIONS)]
    pub(crate) settings: Vec<String>,
    /// Abort a request after this many seconds without progress. Slow transfers are not affected
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = parse_seconds, help_heading = STORE_OPTIONS)]
    pub(crate) timeout: f64,
    /// Maximum retries per request (exponential backoff; Retry-After is honoured)
    #[arg(long, value_name = "N", default_value_t = 7, help_heading = STORE_OPTIONS)]
    pub(crate) retries: u32,
    /// Limit for uploads and downloads together, in bytes per second, such as 10M [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = STORE_OPTIONS)]
    pub(crate) max_rate: Option<u64>,
}

impl StoreArgs {
    /// Opens a store, which Ctrl-C ends the waiting for.
    ///
    /// # Errors
    /// USAGE if the options make no sense; IO.
    pub fn open(&self, url: &str) -> Result<Store> {
        Ok(Store::open(url, self.options()?)?.with_stop(interrupt::stop()))
    }

    pub(crate) fn options(&self) -> Result<StoreOptions> {
        let mut options = StoreOptions::default()
            .timeout(Duration::from_secs_f64(self.timeout))
            .attempts(self.retries.saturating_add(1))
            .max_rate(self.max_rate);
        options.settings.extend(self.endpoint.iter().map(|url| ("aws_endpoint".to_owned(), url.clone())));
        options.settings.extend(self.region.iter().map(|region| ("aws_region".to_owned(), region.clone())));
        for setting in &self.settings {
            let pair =
                setting.split_once('=').ok_or_else(|| Error::usage("a --store-option has no =: give KEY=VALUE"))?;
            options.settings.push((pair.0.to_owned(), pair.1.to_owned()));
        }
        Ok(options)
    }
}

impl ChainArgs {
    /// The chain, as it may be shown.
    pub(crate) fn name(&self) -> String {
        without_secrets(&self.url)
    }

    /// Opens the store.
    pub(crate) fn open(&self) -> Result<Store> {
        self.store.open(&self.url)
    }

    /// Opens the store, and makes its directory if it is one that does not exist.
    pub(crate) fn create(&self) -> Result<Store> {
        Ok(Store::create(&self.url, self.store.options()?)?.with_stop(interrupt::stop()))
    }
}

/// Test whether a bucket or a directory supports what chains and followers need
///
/// Every operation is tested below a new name doctor-..., which is removed afterwards. On a store: puts, put-if-absent
/// (with concurrent writers, too), lists, ranges, deletes and the clock. On a directory also links, renames, locks,
/// fsync and free space. For each missing operation, it prints what does not work without it. The exit code is 1 if a
/// required operation is missing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain doctor s3://models/run7
  deltachain doctor s3://models/run7 --endpoint http://127.0.0.1:9000 --json
  deltachain doctor /mnt/models                          a directory, for a chain or for a follower")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
}

/// Add a version to a chain
///
/// The version consists of the tensors in STATE and, as assets, the other files of the directory and its folders, such
/// as configuration and tokenizer. Training checkpoints (checkpoint-*), hidden files and other files that do not belong
/// to a model are skipped and listed. The version becomes visible atomically, after all its files have been stored. A
/// failure before that leaves the chain unchanged. Links are made from the head, the newest version: give its files as
/// --base, or a directory in which the tool keeps them as --work. Otherwise the head is built from the chain.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "options of a command")]
#[command(after_help = "\
Examples:
  deltachain publish s3://models/run7 step100/                           the first version
  deltachain publish s3://models/run7 step101/ --base step100/ --meta step=101
  deltachain publish s3://models/run7 step102/ --work /scratch/run7      keeps a copy of the head there
  deltachain publish s3://models/run7 step103/ --keep-last 200 --max-changed 20
  deltachain publish s3://models/run7 step104/ --meta step=104 --once step   nothing if step 104 is there already
  deltachain publish s3://models/run7 step105/ --sign-key run7.key       signed; see `deltachain key`
  deltachain publish s3://models/run7 step106/ --profile local,compact   also for readers that patch memory in place

N processes that hold disjoint parts of the model publish them as shards, and one command commits; assets are the other
files of shard 0:
  deltachain publish s3://models/run7 rank0/ --shard 0/2 --part 0.json --base last-rank0/
  deltachain publish s3://models/run7 rank1/ --shard 1/2 --part 1.json --base last-rank1/
  deltachain commit s3://models/run7 0.json 1.json")]
pub(crate) struct PublishArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    /// The version: a .safetensors file or a directory of them
    pub(crate) state: PathBuf,
    /// First wait until STATE has this file, such as _SUCCESS, which its writer makes when all others are complete
    ///
    /// Waits without limit, and also for STATE itself. Of a file with a dot before its name no version knows; any other
    /// is published like the rest.
    #[arg(long, value_name = "NAME")]
    pub(crate) wait_for: Option<PathBuf>,
    /// The files of the previous version
    #[arg(long, value_name = "STATE", conflicts_with = "work")]
    pub(crate) base: Option<PathBuf>,
    /// Keep the head in this directory between calls; it must be new or empty the first time
    #[arg(long, value_name = "DIR")]
    pub(crate) work: Option<PathBuf>,
    /// Directory for temporary files [default: the system's]
    ///
    /// Files are made in a private directory in DIR, deltachain-scratch-USER. Files left by a killed run are removed by
    /// the next one.
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Publish shard I of N, counted from 0; `commit` makes the version
    #[arg(long, value_name = "I/N", value_parser = parse_shard, requires = "part")]
    pub(crate) shard: Option<(usize, usize)>,
    /// File to write for `commit`, which describes the shard
    #[arg(long, value_name = "FILE", requires = "shard")]
    pub(crate) part: Option<PathBuf>,
    /// Publish only the tensors, not the other files
    #[arg(long)]
    pub(crate) no_assets: bool,
    #[command(flatten)]
    pub(crate) profiles: ProfilesArgs,
    /// Add a snapshot to every Nth version
    #[arg(long, value_name = "N", conflicts_with_all = ["snapshot_cost", "no_snapshots"])]
    snapshot_every: Option<NonZeroU64>,
    /// Add a snapshot when a late joiner would have to read more than X times the last snapshot [default: 2]
    #[arg(long, value_name = "X", conflicts_with = "no_snapshots", value_parser = parse_cost)]
    snapshot_cost: Option<f64>,
    /// Add no snapshots, except for version 0
    #[arg(long)]
    no_snapshots: bool,
    /// Add a link from K versions ago to every Kth version, for followers that are behind; comma-separated
    #[arg(long, value_name = "K", value_delimiter = ',')]
    pub(crate) skip_every: Vec<NonZeroU64>,
    /// Publish nothing if the tensors, their files, and the other files are the head's
    #[arg(long, conflicts_with = "shard")]
    pub(crate) if_changed: bool,
    /// Publish nothing if the head's --meta NAME is this one's or higher: for a trainer that repeats steps after a
    /// restart. NAME=INTEGER must be among --meta
    #[arg(long, value_name = "NAME", conflicts_with = "shard")]
    pub(crate) once: Option<String>,
    /// Refuse a state in which more than PERCENT of the elements differ from the head; those that are removed or added
    /// count
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) max_changed: Option<f64>,
    /// Refuse a state with values that are not finite (NaN or infinite), and name the tensors
    #[arg(long)]
    pub(crate) refuse_nonfinite: bool,
    /// Publish the version even if it has no tensors, so that all readers empty their models
    #[arg(long)]
    pub(crate) allow_empty: bool,
    /// Prune automatically and keep the newest N versions: runs after every version that is a multiple of N/10
    #[arg(long, value_name = "N", conflicts_with = "shard")]
    pub(crate) keep_last: Option<NonZeroU64>,
    /// Note for people and tools, stored in the commit; repeatable
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = parse_note, conflicts_with = "shard")]
    pub(crate) notes: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) signatures: PublisherSignatureArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

impl PublishArgs {
    pub(crate) fn snapshots(&self) -> Snapshots {
        match (self.snapshot_every, self.snapshot_cost) {
            _ if self.no_snapshots => Snapshots::Never,
            (Some(every), _) => Snapshots::Every(every.get()),
            (None, Some(cost)) => Snapshots::Cost(cost),
            (None, None) => Snapshots::default(),
        }
    }
}

/// Make a version of published shards
///
/// All shards become visible atomically.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  deltachain commit s3://models/run7 0.json 1.json --meta step=101")]
pub(crate) struct CommitArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    /// The files that `publish --part` wrote, one per shard
    #[arg(required = true, value_name = "PART")]
    pub(crate) parts: Vec<PathBuf>,
    /// Note for people and tools, stored in the commit; repeatable
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = parse_note)]
    pub(crate) notes: Vec<(String, String)>,
    /// Commit nothing if the --meta NAME of the version before is this one's or higher, as in `publish --once`
    #[arg(long, value_name = "NAME")]
    pub(crate) once: Option<String>,
    /// Make the version even if no shard has a tensor
    #[arg(long)]
    pub(crate) allow_empty: bool,
    #[command(flatten)]
    pub(crate) signatures: PublisherSignatureArgs,
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
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub(crate) struct DirectoryArgs {
    /// Directory for the model. Its files are in DIR/current, a symbolic link that is switched when a version is
    /// complete
    ///
    /// DIR must be new, empty, or already managed by deltachain (it contains deltachain.directory). Any other directory
    /// is refused and left untouched. Other files in a managed DIR are kept.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Select only these shards, counted from 0; comma-separated
    #[arg(long, value_name = "I", value_delimiter = ',')]
    pub(crate) shards: Option<Vec<usize>>,
    /// Select tensors by name, and download little more: * is any text, ? a character, {a,b} either; repeatable
    #[arg(long, value_name = "PATTERN")]
    pub(crate) tensors: Option<Vec<String>>,
    /// Skip the tensors: DIR has the other files, and `follow` tells of versions
    ///
    /// With `follow --engine vllm` or `sglang`, for servers that download the chain of their own configuration and update
    /// their weights in place: nothing of the model is downloaded or stored here but the other files and indexes of
    /// links.
    #[arg(long, conflicts_with = "tensors")]
    pub(crate) no_tensors: bool,
    /// Copy the other files, such as configuration and tokenizer, from this directory instead of the chain
    #[arg(long, value_name = "DIR")]
    pub(crate) with_files: Option<PathBuf>,
    /// Skip the chain's assets: the files beside the tensors, such as configuration, tokenizer and code
    #[arg(long, conflicts_with = "with_files")]
    pub(crate) no_assets: bool,
    /// Accept the version whose commit has this digest, once, even if the chain was rolled back or has forked
    ///
    /// Once DIR has held the version, which is recorded there, the option has no further effect: a later rollback is
    /// refused again.
    #[arg(long, value_name = "COMMIT", value_parser = parse_digest)]
    pub(crate) allow_rollback: Option<Digest>,
    /// If the chain is another one than the one that DIR followed, follow it from now on
    ///
    /// Checked once, at start. A rollback of the same chain is still refused; see --allow-rollback.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Size of the cache of downloaded files [default: 1G; none if DIR is in memory, such as /dev/shm]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) cache: Option<u64>,
    /// Do not read the version in the directory at start to check that it is unchanged
    #[arg(long)]
    pub(crate) trust_directory: bool,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Forget that DIR was followed with --trust, and what was seen then
    #[arg(long, help_heading = SIGNATURES)]
    pub(crate) forget_trust: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Bring a directory to a version of a chain
///
/// Uses the cheapest path from the version in the directory, or from nothing. The version appears atomically, checked
/// against its digest, with the assets of the chain (configuration, tokenizer). Until then, and after a failure, the
/// directory keeps its version. A rollback of the chain below that version, or another chain, is refused without
/// --allow-rollback or --adopt.
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
/// Like `pull`, repeated. Several new versions are taken in one step, on the cheapest path. Errors (damage, unreachable
/// store, rollback) are retried; the directory keeps its version. Progress is recorded in DIR/status.json, which
/// `status` shows. docs/following.md explains how to run it as a service.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain follow s3://models/run7 /models/run7
  deltachain follow s3://models/run7 /models/run7 --exec 'kill -HUP $(cat engine.pid)' --exec-timeout 60
  deltachain follow s3://models/run7 /models/run7 --once --exec ./reload       from a timer
  deltachain follow s3://models/run7 /models/run7 --metrics 9464
  deltachain follow s3://models/run7 /models/run7 --trust run7.pub             only versions that this key has signed
  deltachain follow s3://models/run7 /models/run7 --engine sglang --server http://127.0.0.1:30000
  deltachain follow s3://models/run7 /dev/shm/run7 --engine vllm --server http://127.0.0.1:8000 --server http://127.0.0.1:8001
  deltachain follow s3://models/run7 /dev/shm/run7 --engine vllm --server http://127.0.0.1:8000 --ready-port 9465
  deltachain follow s3://models/run7 /models/run7 --no-tensors --engine vllm --server http://127.0.0.1:8000  in place
  deltachain follow s3://models/run7-lora /models/lora --engine vllm-lora --adapter tuned --server http://127.0.0.1:8000

The command of --exec gets these environment variables: DELTACHAIN_VERSION, DELTACHAIN_STATE (the state's digest),
DELTACHAIN_DIRECTORY: the directory of just this version, which is kept until the version after the next is being built,
and DELTACHAIN_VERSION_BEFORE: the last version for which a command succeeded, empty if there is none. If that is the
higher one, the chain was rolled back.")]
pub(crate) struct FollowArgs {
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
    #[command(flatten)]
    pub(crate) exec: ExecArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Poll once: build a new version if there is one, run the command or update the servers if needed, and exit
    #[arg(long, conflicts_with_all = ["until", "metrics", "ready_port"])]
    pub(crate) once: bool,
    /// Exit when this version or a later one has been reached, and the command has succeeded for it or the servers have
    /// it
    #[arg(long, value_name = "N")]
    pub(crate) until: Option<u64>,
    /// Minimum seconds between two polls of the chain; backs off while there is nothing new
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = parse_seconds)]
    pub(crate) poll: f64,
    /// Maximum seconds between two polls of the chain
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = parse_seconds)]
    pub(crate) poll_longest: f64,
    /// Serve metrics for Prometheus at http://ADDR/metrics: a port of 127.0.0.1, or IP:PORT
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Answer load balancers at http://ADDR/ready: 200 while each --server is ready for requests, 503 otherwise
    ///
    /// ADDR is a port of 127.0.0.1, or IP:PORT; it may be the one of --metrics. See docs/following.md.
    #[arg(long, value_name = "ADDR", requires = "engine", value_parser = parse_address, help_heading = SERVERS)]
    pub(crate) ready_port: Option<SocketAddr>,
    /// Maximum staleness of a server that is ready: a time such as 90s or 10m since its version was last seen to be the
    /// newest, or a number of versions behind the newest
    #[arg(long, value_name = "TIME|N", default_value = "10m", requires = "engine", help_heading = SERVERS)]
    pub(crate) max_staleness: MaxLag,
}

/// A command that is run for each version.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Run this shell command for each version, and wait for it. A failure is retried until it succeeds or there is a
    /// newer version, even after a restart of `follow`. The backoff grows from --poll to a minute
    #[arg(long = "exec", value_name = "COMMAND")]
    pub(crate) command: Option<String>,
    /// Kill the command and its child processes after this time; that counts as a failure
    #[arg(long, value_name = "SECONDS", requires = "command", value_parser = parse_seconds)]
    pub(crate) exec_timeout: Option<f64>,
}

/// Show the status of a follower's directory, for people and for health checks
///
/// Reads only the records in DIR, not the chain or the model's files, and takes no lock. What it reports of the chain
/// is what `follow` saw at its last poll.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain status /models/run7
  deltachain status /models/run7 --max-lag 90s     as a health check of a service
  deltachain status /models/run7 --max-lag 3 --json

Exit code 0: healthy. Exit code 1, with the reasons: DIR holds no version, or an unreadable one; the last poll failed,
except when the store was unreachable (class IO); the command of --exec failed for this version, or has not been run for
it and no follower is running; a server of --engine failed, or its version is unknown (no follower is running, for
example); or --max-lag is exceeded, by the directory or by a server, or a server is not ready for requests. Exit code 2: there is no directory DIR.")]
pub(crate) struct StatusArgs {
    /// The directory of `follow` or `pull`
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Maximum lag (staleness) that is healthy, of the directory and of servers: a number of versions, or a time such as
    /// 90s, 10m or 2h since the version was last seen to be the newest. Choose more than `follow --poll-longest` plus the time to build a version
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

Readers that patch memory in place trust only the routes that `publish` made, so they do not use the new links; routes
for them stay, and with --profile local the snapshot saves them work.")]
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
    /// Directory for temporary files, with space for two states [default: the system's]
    ///
    /// Files are made in a private directory in DIR, deltachain-scratch-USER. Files left by a killed run are removed by
    /// the next one.
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Remove old versions, and the files that only they need
///
/// The head is always kept, and so is everything that the kept versions are built from. Files of old versions are deleted
/// once they have been stored and withdrawn for more than 24 hours. Run it daily: each run deletes what the previous
/// one withdrew. Assets are kept. Version numbers are kept: a reader that asks for a pruned version gets an error that
/// says so. Publishers and followers need not stop. Do not run two prunes at once.
///
/// Files that no version names stay: a publisher was killed, or commits were lost. If the chain shows that commits are
/// missing, nothing is removed.
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
    /// Also remove files older than 24 hours that no version names; without --keep-last, all versions stay
    ///
    /// Not for a timer: publishers that were killed leave such files, but so do lost commits, and then these files are
    /// what a restored commit needs.
    #[arg(long)]
    pub(crate) abandoned: bool,
    /// Go on although commits are missing: they are lost for good
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Only show what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Take back what was pruned within the last 20 hours: the versions can be built again
    #[arg(long, conflicts_with_all = ["keep_last", "abandoned", "accept_loss", "dry_run"])]
    pub(crate) undo: bool,
}

/// Check a chain: every document, every file, and that each version can be reached
///
/// If URL is a directory of `follow` or `pull`, all of its files are read: tensors and cached links are compared with
/// their digests, other files with their recorded lengths. The directory may be in use. --deep is refused then:
/// there is nothing deeper.
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
    /// Files are made in a private directory in DIR, deltachain-scratch-USER. Files left by a killed run are removed by
    /// the next one.
    #[arg(long, value_name = "DIR", requires = "deep")]
    pub(crate) scratch: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

fn parse_shard(text: &str) -> Result<(usize, usize), String> {
    let (shard, of) = text.split_once('/').ok_or("a shard is given as I/N, such as 0/4")?;
    let number = |text: &str| text.parse::<usize>().map_err(|error| error.to_string());
    let (shard, of) = (number(shard)?, number(of)?);
    if shard < of {
        Ok((shard, of))
    } else {
        Err(format!("there are {of} shards, the last is {}", of.saturating_sub(1)))
    }
}

fn parse_cost(text: &str) -> Result<f64, String> {
    parse_number(text, 1.0..=f64::INFINITY, "must be at least 1: every reader reads a snapshot")
}

fn parse_percent(text: &str) -> Result<f64, String> {
    parse_number(text, 0.0..=100.0, "must be from 0 to 100")
}
