//! Options that several commands share, and parsers of values.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Arg, ArgAction, Args};
use deltachain::tensor::Digest;
use deltachain::{Limits, Profile};

// Headings of `--help`. Each argument names its own heading, because the heading of a struct would
// apply to the arguments after the struct, too.
pub(crate) const GLOBAL_OPTIONS: &str = "Global options";
pub(crate) const SIGNATURES: &str = "Signatures";
pub(crate) const SERVERS: &str = "Inference servers";

/// Options that every command takes.
#[derive(Debug, Args)]
pub struct Global {
    /// Print JSON lines on standard output
    ///
    /// Results, errors, and events of long-running commands.
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS)]
    pub(crate) json: bool,
    /// Print only results and errors
    ///
    /// No progress, remarks or summaries. Colours are for terminals; `NO_COLOR` and
    /// `CLICOLOR_FORCE` are honoured.
    #[arg(long, short, global = true, help_heading = GLOBAL_OPTIONS)]
    pub(crate) quiet: bool,
    /// Number of threads [default: one per processor]
    #[arg(long, global = true, value_name = "N", help_heading = GLOBAL_OPTIONS)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_THREADS))]
    pub(crate) threads: Option<usize>,
}

/// Maximum number of threads. More threads would only cost memory and time to start.
const MOST_THREADS: u64 = 1024;

/// The choices of an option.
pub type Choices<T> = [Choice<T>];

/// A choice of an option: its name, its help, and its value.
type Choice<T> = (&'static str, &'static str, T);

const COMPACT: Choice<Profile> = (
    "compact",
    "The smallest file; applying it needs the base",
    Profile::Compact,
);
const LOCAL: Choice<Profile> = (
    "local",
    "Differences that need only the old values of the changed elements, with sums: for readers \
     that patch memory in place",
    Profile::Local,
);
const DIRECT: Choice<Profile> = (
    "direct",
    "New values only, which can be read without the base",
    Profile::Direct,
);

/// The codings of a link's values.
pub const PROFILES: &Choices<Profile> = &[COMPACT, LOCAL, DIRECT];

/// The codings for links of a chain. They do not include `direct`, because `local` is smaller, and
/// as fast.
const ROUTE_PROFILES: &Choices<Profile> = &[COMPACT, LOCAL];

/// Returns a parser of the names of choices.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static Choices<T>,
) -> impl TypedValueParser<Value = T> {
    let names = choices
        .iter()
        .map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).try_map(|given| {
        let found = choices.iter().find(|(name, ..)| *name == given);
        found.map(|(.., value)| *value).ok_or("unknown")
    })
}

/// Profiles of new links.
#[derive(Debug, Args)]
pub(crate) struct ProfilesArgs {
    /// How values are coded; comma-separated: a link for each profile
    #[arg(long, value_parser = one_of(ROUTE_PROFILES), value_delimiter = ',')]
    #[arg(default_value = "compact")]
    pub(crate) profile: Vec<Profile>,
}

/// Limits on what a link may make this program allocate and write.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Limit for untrusted links: index, new or coded; or none; repeatable
    ///
    /// index: maximum size of the uncompressed index
    /// [default: 64M or 64 times the link's length, whichever is more]. new: maximum bytes of new
    /// tensors [default: 256M or 1024 times the link's length, whichever is more]. coded: maximum
    /// bytes to decode, the size of all tensor pieces that the link changes [default: no limit].
    /// none: apply only the limits of the format, for links from a source that you trust; limits
    /// that follow still hold.
    #[arg(long = "limit", value_name = "NAME=SIZE", value_parser = parse_limit)]
    limits: Vec<Limit>,
}

/// A limit that is not the default.
#[derive(Debug, Clone, Copy)]
enum Limit {
    None,
    Index(u64),
    New(u64),
    Coded(u64),
}

impl LimitArgs {
    /// Returns the limits.
    pub fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        for limit in &self.limits {
            limits = match *limit {
                Limit::None => Limits::unlimited(),
                Limit::Index(most) => limits.index_bytes(most).index_bytes_per_file_byte(0),
                Limit::New(most) => limits.set_bytes(most).set_bytes_per_file_byte(0),
                Limit::Coded(most) => limits.coded_bytes(most),
            }
        }
        limits
    }
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    match text.split_once('=') {
        None if text == "none" => Ok(Limit::None),
        Some(("index", size)) => parse_size(size).map(Limit::Index),
        Some(("new", size)) => parse_size(size).map(Limit::New),
        Some(("coded", size)) => parse_size(size).map(Limit::Coded),
        _ => Err("a limit must be index=SIZE, new=SIZE, coded=SIZE, or none".to_owned()),
    }
}

/// Parses a note: `KEY=VALUE`.
///
/// # Errors
/// A text that says what is wrong.
pub fn parse_note(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("missing =")?;
    if key.starts_with("deltachain.") {
        return Err("keys that begin with deltachain. are reserved".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses a number of bytes: `1000`, `64K`, `2G`. The letters are powers of 1024.
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
        _ => return Err("a size must be a number that may end in K, M, G or T".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|error| format!("{error}"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "too large".to_owned())
}

pub(crate) fn parse_digest(text: &str) -> Result<Digest, String> {
    Digest::from_hex(text).ok_or_else(|| "a digest must have 64 hexadecimal digits".to_owned())
}

/// Parses a time in seconds, of a day at most.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    parse_number(text, 0.001..=86400.0, "must be from 0.001 to 86400").map(Duration::from_secs_f64)
}

/// Makes the flag for the short help of all commands. `help COMMAND` prints the long help.
pub(crate) fn help_flag() -> Arg {
    let help = "Print this; 'help COMMAND' explains all options";
    Arg::new("help")
        .short('h')
        .long("help")
        .help(help)
        .action(ArgAction::HelpShort)
        .global(true)
        .display_order(1000)
}

/// Parses a number within bounds.
pub(crate) fn parse_number(
    text: &str,
    bounds: RangeInclusive<f64>,
    refusal: &str,
) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if bounds.contains(&number) {
        Ok(number)
    } else {
        Err(refusal.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, size) in [
            ("0", 0),
            ("12", 12),
            ("3k", 3 << 10),
            ("2MiB", 2 << 20),
            ("1GB", 1 << 30),
            ("1T", 1 << 40),
        ] {
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
