//! Options that several commands share, and the values that options take.

use std::ops::RangeInclusive;

use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, ColorChoice};
use deltachain::tensor::Digest;
use deltachain::{Limits, Profile};

// Headings of `--help`. Each argument names its own: a heading of a struct would hold for what follows it, too.
pub(crate) const GLOBAL_OPTIONS: &str = "Global options";
pub(crate) const STORE_OPTIONS: &str = "Store options";
pub(crate) const LIMITS: &str = "Limits for untrusted links";
pub(crate) const SIGNATURES: &str = "Signatures";
pub(crate) const SERVERS: &str = "Inference servers";

/// Options that every command takes.
#[derive(Debug, Args)]
pub struct Global {
    /// Print JSON lines on standard output: results, errors, and events of long-running commands
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS)]
    pub(crate) json: bool,
    /// Print only results and errors: no progress, remarks or summaries
    #[arg(long, short, global = true, help_heading = GLOBAL_OPTIONS)]
    pub(crate) quiet: bool,
    /// Number of threads [default: one per processor]
    #[arg(long, global = true, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_THREADS), help_heading = GLOBAL_OPTIONS)]
    pub(crate) threads: Option<usize>,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value_t = ColorChoice::Auto, help_heading = GLOBAL_OPTIONS)]
    pub(crate) color: ColorChoice,
}

/// More threads than this only take time to start and memory.
const MOST_THREADS: u64 = 1024;

/// What an option chooses from: names, what help says of each, and what it stands for.
pub type Choices<T> = [(&'static str, &'static str, T)];

/// How values are coded.
pub const PROFILES: &Choices<Profile> = &[
    ("compact", "The smallest file; applying it needs the base", Profile::Compact),
    ("local", LOCAL, Profile::Local),
    ("direct", "New values only, which can be read without the base", Profile::Direct),
];

const LOCAL: &str =
    "Differences that need the old values of changed elements alone, with sums: for readers that patch memory in place";

/// Takes the name of a choice.
pub fn one_of<T: Copy + Send + Sync + 'static>(choices: &'static Choices<T>) -> impl TypedValueParser<Value = T> {
    let names = choices.iter().map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).try_map(|given| {
        let found = choices.iter().find(|(name, ..)| *name == given);
        found.map(|(.., value)| *value).ok_or("unknown")
    })
}

/// How the values of new links are coded.
#[derive(Debug, Args)]
pub(crate) struct ProfilesArgs {
    /// How values are coded; comma-separated or repeatable: a link for each profile
    #[arg(long, value_parser = one_of(PROFILES), value_delimiter = ',', default_value = "compact")]
    profile: Vec<Profile>,
}

impl ProfilesArgs {
    pub(crate) fn profiles(&self) -> Vec<Profile> {
        self.profile.clone()
    }
}

/// What a link may make this program allocate and write.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Maximum size of the uncompressed index [default: 64M or 64 times the link's length, whichever is more]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = LIMITS)]
    pub(crate) max_index_bytes: Option<u64>,
    /// Maximum bytes of new tensors [default: 256M or 1024 times the link's length, whichever is more]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = LIMITS)]
    pub(crate) max_new_bytes: Option<u64>,
    /// Maximum bytes to decode: the size of all tensor pieces that the link changes [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = LIMITS)]
    pub(crate) max_coded_bytes: Option<u64>,
    /// Apply only the limits of the format, for links from a source that you trust
    #[arg(long, conflicts_with_all = ["max_index_bytes", "max_new_bytes", "max_coded_bytes"], help_heading = LIMITS)]
    pub(crate) trusted: bool,
}

impl LimitArgs {
    /// The limits.
    pub fn limits(&self) -> Limits {
        if self.trusted {
            return Limits::unlimited();
        }
        let mut limits = Limits::default();
        if let Some(most) = self.max_index_bytes {
            (limits.index_bytes, limits.index_bytes_per_file_byte) = (most, 0);
        }
        if let Some(most) = self.max_new_bytes {
            (limits.set_bytes, limits.set_bytes_per_file_byte) = (most, 0);
        }
        limits.coded_bytes = self.max_coded_bytes.unwrap_or(limits.coded_bytes);
        limits
    }
}

/// A note: `KEY=VALUE`.
///
/// # Errors
/// What is wrong, for people.
pub fn parse_note(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("missing =")?;
    if key.starts_with("deltachain.") {
        return Err("keys that begin with deltachain. are reserved".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// A number of bytes: `1000`, `64K`, `2G`; the letters are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let unit = unit.trim_end_matches("IB").trim_end_matches('B');
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("a size is a number that may end in K, M, G or T".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

pub(crate) fn parse_digest(text: &str) -> Result<Digest, String> {
    Digest::from_hex(text).ok_or_else(|| "a digest has 64 hexadecimal digits".to_owned())
}

/// A time in seconds, of a day at most.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    parse_number(text, 0.001..=86400.0, "must be from 0.001 to 86400")
}

/// A number within bounds.
pub(crate) fn parse_number(text: &str, bounds: RangeInclusive<f64>, refusal: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if bounds.contains(&number) { Ok(number) } else { Err(refusal.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, size) in
            [("0", 0), ("12", 12), ("3k", 3 << 10), ("2MiB", 2 << 20), ("1GB", 1 << 30), ("1T", 1 << 40)]
        {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "1X", "99999999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn notes_are_pairs() {
        assert_eq!(parse_note("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(parse_note("a").is_err());
        assert!(parse_note("deltachain.layout=x").is_err());
    }
}
