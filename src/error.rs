//! The one error type of the library: an error class of the format, the rule that was broken, and
//! where.
//!
//! Classes and rules are the contract (SPEC section 11); message texts are for people and may
//! change.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::rules::{Rule, is_off};
use crate::unsigned::UnsignedVersion;

/// Result of every fallible function of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error classes (SPEC section 11). The first ten belong to the format; `Io` and `Usage` to tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The bytes are not a link: give the right file.
    NotDcf,
    /// The file ends early: download it again.
    Truncated,
    /// A checksum does not match: download it again.
    Corrupt,
    /// Checksums match, but the content breaks a rule: the writer has a bug, or the file was made
    /// by hand.
    Malformed,
    /// A value is not in its only legal form: the writer has a bug.
    NonCanonical,
    /// The file was made for a newer reader: update.
    Unsupported,
    /// The file asks for more than the format or the caller's limits allow.
    Limit,
    /// The link belongs to another base.
    WrongBase,
    /// The result differs from what the link promises: do not use it.
    StateMismatch,
    /// The chain lacks something, forks, or does not lead where it should.
    Chain,
    /// The operating system failed.
    Io,
    /// The caller erred.
    Usage,
}

impl ErrorClass {
    /// The class as written in SPEC.md, in vectors and in `--json` output.
    pub fn name(self) -> &'static str {
        self.words().0
    }

    /// Advice in one phrase: how a user can deal with an error of this class. [`Error::advice`] is
    /// more specific.
    pub fn advice(self) -> &'static str {
        self.words().1
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::NotDcf => ("NOT_DCF", "give a .dcf file made by deltachain"),
            Self::Truncated => ("TRUNCATED", "download the file again"),
            Self::Corrupt => ("CORRUPT", "download the file again"),
            Self::Malformed => (
                "MALFORMED",
                "the program that wrote the file has a bug; report it there",
            ),
            Self::NonCanonical => (
                "NON_CANONICAL",
                "the program that wrote the file has a bug; report it there",
            ),
            Self::Unsupported => ("UNSUPPORTED", "update deltachain"),
            Self::Limit => ("LIMIT", "raise the limits if you trust the source"),
            Self::WrongBase => (
                "WRONG_BASE",
                "give the base that the link was made from, or start from a snapshot",
            ),
            Self::StateMismatch => (
                "STATE_MISMATCH",
                "do not use the result; report the program that wrote the link",
            ),
            Self::Chain => ("CHAIN", "retry later, or ask the publisher of the chain"),
            Self::Io => (
                "IO",
                "retry; if it fails again, check the disk, the network or the store",
            ),
            Self::Usage => ("USAGE", "change the arguments as the message says"),
        }
    }
}

/// True if the process or the system has no descriptor left for another open file: EMFILE or
/// ENFILE, for which the standard library has no kind.
fn lacks_descriptors(error: &io::Error) -> bool {
    let mut code = error.raw_os_error();
    let mut source = std::error::Error::source(error);
    while let (None, Some(inner)) = (code, source) {
        code = inner
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error);
        source = inner.source();
    }
    cfg!(unix) && matches!(code, Some(23 | 24))
}

/// Advice for when the operating system, the network or a store fails in this way.
fn advice_for(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "check the path or the URL",
        ErrorKind::PermissionDenied => "check credentials and permissions",
        ErrorKind::AlreadyExists => "remove it, or choose another name",
        ErrorKind::IsADirectory | ErrorKind::NotADirectory => {
            "check the path: it names a file in place of a directory, or the other way round"
        }
        ErrorKind::ReadOnlyFilesystem => "choose a place where this process may write",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "free space or inodes there (df, df -i), or choose another place; then retry"
        }
        ErrorKind::InvalidFilename => {
            "choose shorter names: a name may have 255 bytes, and a path 4,096 on most systems"
        }
        ErrorKind::Unsupported => "choose a store or a file system that supports this",
        ErrorKind::ConnectionRefused
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::NetworkDown
        | ErrorKind::NotConnected
        | ErrorKind::AddrNotAvailable => "check host and port, and that the server runs",
        ErrorKind::AddrInUse => "choose another port, or end the program that uses this one",
        ErrorKind::TimedOut => "check the network and the server; then retry, or allow more time",
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => {
            "retry; if it fails again, check the file, the network and the server"
        }
        ErrorKind::OutOfMemory => "free memory, or use fewer threads",
        _ => ErrorClass::Io.advice(),
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why something was refused or failed. One word wide. Programs use [`Error::class`] and
/// [`Error::rule`], never the text.
#[derive(Debug)]
pub struct Error(Box<Repr>);

#[derive(Debug)]
struct Repr {
    class: ErrorClass,
    rule: Option<&'static str>,
    /// True if another process has locked the directory.
    is_in_use: bool,
    /// The version that the trusted keys have not signed, if that is the reason.
    unsigned: Option<UnsignedVersion>,
    /// Advice for this error, if the advice of its class does not fit.
    advice: Option<&'static str>,
    message: String,
    section: Option<String>,
    offset: Option<u64>,
    tensor: Option<String>,
    file: Option<String>,
    link: Option<usize>,
    source: Option<io::Error>,
}

/// The beginning of a secret key as text (SPEC section 23.1).
pub(crate) const SECRET_KEY: &str = "PRIVATE+KEY+";

/// Removes secrets from a text: the rest of a secret key after its beginning, and the user,
/// password and query of URLs, where tokens and signatures are. Errors do this with their own
/// texts; this function is for other output of a program.
pub fn without_secrets(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || c.is_control() || "\"'`<>()".contains(c);
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    let next = |rest: &str| {
        [SECRET_KEY, "://"]
            .iter()
            .filter_map(|begin| Some((rest.find(begin)?, begin.len())))
            .min()
    };
    while let Some((at, length)) = next(rest) {
        let (before, found) = rest.split_at(at + length);
        let (word, after) = found.split_at(found.find(is_end).unwrap_or(found.len()));
        shown.push_str(before);
        if before.ends_with(SECRET_KEY) {
            shown.push_str("...");
        } else {
            let authority = &word[..word.find(['/', '?', '#']).unwrap_or(word.len())];
            let host = authority.rfind('@').unwrap_or_default();
            shown.push_str(if host > 0 { "..." } else { "" });
            let (path, query) = word[host..].split_once('?').unwrap_or((&word[host..], ""));
            shown.push_str(path);
            shown.push_str(if query.is_empty() { "" } else { "?..." });
        }
        rest = after;
    }
    shown + rest
}

impl Error {
    fn new(class: ErrorClass, rule: Option<&'static str>, message: &str) -> Self {
        Self(Box::new(Repr {
            class,
            rule,
            is_in_use: false,
            unsigned: None,
            advice: None,
            message: without_secrets(message),
            section: None,
            offset: None,
            tensor: None,
            file: None,
            link: None,
            source: None,
        }))
    }

    /// A broken rule of the format; the rule determines the class.
    pub(crate) fn broken(rule: &'static Rule, message: impl Into<String>) -> Self {
        if is_off(rule) {
            return Self::usage(format!(
                "rule {} is switched off, but needed to continue",
                rule.id
            ));
        }
        Self::new(rule.class, Some(rule.id), &message.into())
    }

    /// The caller asked for something impossible, or gave an unusable input that is not a link.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorClass::Usage, None, &message.into())
    }

    /// Another process has locked the directory that was asked for.
    pub fn in_use(message: impl Into<String>) -> Self {
        let mut error = Self::usage(message);
        error.0.is_in_use = true;
        error
    }

    /// Records that the trusted keys have not signed this version.
    pub(crate) fn because_of(mut self, unsigned: UnsignedVersion) -> Self {
        self.0.unsigned = Some(unsigned);
        self
    }

    /// A refusal of this class for which SPEC.md has no rule: for crates that read and write files
    /// of other formats.
    pub fn refused(class: ErrorClass, message: impl Into<String>) -> Self {
        Self::new(class, None, &message.into())
    }

    /// A file or directory on this machine is not as the program needs it: damaged, in the way, or
    /// changed by another program. Class IO, since other arguments would not help.
    pub fn unusable(message: impl Into<String>, advice: &'static str) -> Self {
        Self::new(ErrorClass::Io, None, &message.into()).with_advice(advice)
    }

    /// A file has changed while it was read. Class IO.
    pub fn changed(file: impl AsRef<Path>) -> Self {
        let advice = "retry when the file is complete and no program writes to it";
        Self::unusable("the file changed while it was being read", advice).in_file(file)
    }

    /// The operating system failed while doing `what`.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        let mut error = Self::new(ErrorClass::Io, None, &what.into());
        error.0.source = Some(source);
        error
    }

    /// Gives advice that fits better than the advice of the class.
    #[must_use]
    pub fn with_advice(mut self, advice: &'static str) -> Self {
        self.0.advice = Some(advice);
        self
    }

    /// Names the section of a link, `header` or `index`, unless one is named already.
    pub(crate) fn in_section(mut self, section: impl Into<String>) -> Self {
        self.0.section.get_or_insert_with(|| section.into());
        self
    }

    /// Names the segment with this number, counted from 0 (SPEC section 7), unless a section is
    /// named already.
    pub(crate) fn in_segment(self, number: usize) -> Self {
        self.in_section(format!("segment {number}"))
    }

    /// Names the absolute byte offset in the file, unless one is named already.
    #[must_use]
    pub(crate) fn at(mut self, offset: u64) -> Self {
        self.0.offset.get_or_insert(offset);
        self
    }

    /// Names the tensor, unless one is named already.
    #[must_use]
    pub fn of_tensor(mut self, tensor: &str) -> Self {
        self.0.tensor.get_or_insert_with(|| tensor.to_owned());
        self
    }

    /// Names the link of a sequence, by its number counted from 0, unless one is named already.
    #[must_use]
    pub fn of_link(mut self, number: usize) -> Self {
        self.0.link.get_or_insert(number);
        self
    }

    /// Names the file, unless one is named already.
    #[must_use]
    pub fn in_file(mut self, file: impl AsRef<Path>) -> Self {
        self.0
            .file
            .get_or_insert_with(|| without_secrets(&file.as_ref().to_string_lossy()));
        self
    }

    /// The error class: whose fault it is and what to do.
    pub fn class(&self) -> ErrorClass {
        self.0.class
    }

    /// The stable id of the rule that was broken (`R-IDX-05`), if a rule of the format was.
    pub fn rule(&self) -> Option<&'static str> {
        self.0.rule
    }

    /// Whether one of these rules was broken, by their ids.
    pub fn breaks(&self, rules: &[&str]) -> bool {
        self.rule().is_some_and(|rule| rules.contains(&rule))
    }

    /// Whether another process has locked the directory. This process can use it after the other
    /// one has ended.
    pub fn is_in_use(&self) -> bool {
        self.0.is_in_use
    }

    /// The version in the store that the trusted keys have not signed, if that is the reason. Then
    /// R-CHN-14 need not mean that the chain was rolled back: the trust may not fit the held
    /// version.
    pub fn unsigned(&self) -> Option<UnsignedVersion> {
        self.0.unsigned
    }

    /// Whether the same call may succeed later although its caller changes nothing: servers and
    /// networks recover, a damaged transfer succeeds the next time, a chain gets a missing object.
    pub fn may_retry(&self) -> bool {
        match self.class() {
            ErrorClass::Truncated | ErrorClass::Corrupt | ErrorClass::Chain => true,
            ErrorClass::Io => !self.0.source.as_ref().is_some_and(|source| {
                matches!(
                    source.kind(),
                    ErrorKind::NotFound
                        | ErrorKind::PermissionDenied
                        | ErrorKind::AlreadyExists
                        | ErrorKind::InvalidInput
                        | ErrorKind::IsADirectory
                        | ErrorKind::NotADirectory
                        | ErrorKind::ReadOnlyFilesystem
                        | ErrorKind::Unsupported
                )
            }),
            _ => false,
        }
    }

    /// Advice in one phrase: how a user can deal with the error. It was chosen where the error was
    /// made, or depends on the kind of failure of the operating system, or on the class.
    pub fn advice(&self) -> &'static str {
        match &self.0.source {
            _ if self.is_in_use() => "end that process, or choose another directory",
            _ if let Some(advice) = self.0.advice => advice,
            Some(source) if lacks_descriptors(source) => {
                "raise the limit for open files (`ulimit -n`), or use fewer threads"
            }
            Some(source) => advice_for(source.kind()),
            None if self.class() == ErrorClass::Io => advice_for(ErrorKind::OutOfMemory),
            // Not a newer feature in a file, but an operation that is impossible.
            None if self.class() == ErrorClass::Unsupported && self.rule().is_none() => {
                "do as the message says, or update deltachain"
            }
            None => self.class().advice(),
        }
    }

    /// The section of the link that has the fault, if known: `header`, `index`, or `segment 3`.
    pub fn section(&self) -> Option<String> {
        self.0.section.clone()
    }

    /// Absolute byte offset in the file: of the field that broke the rule, or of the section that
    /// holds it. Compressed bytes have no offset of their own in the file; then it is the offset of
    /// the compressed stream.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// The tensor concerned, if known.
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// The file concerned, if known.
    pub fn file(&self) -> Option<&str> {
        self.0.file.as_deref()
    }

    /// If several links are applied one after another: the number of the link with the fault,
    /// counted from 0, if known.
    pub fn link(&self) -> Option<usize> {
        self.0.link
    }

    /// The bare message, without class, rule and place.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

/// Class, rule, message and place on a line. `{error:#}` adds the message of the operating system.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr {
            class,
            rule,
            message,
            link,
            offset,
            tensor,
            file,
            source,
            ..
        } = &*self.0;
        write!(f, "{class}")?;
        if let Some(rule) = rule {
            write!(f, " {rule}")?;
        }
        write!(f, ": {message}")?;
        if let Some(source) = source
            && f.alternate()
        {
            write!(f, ": {source}")?;
        }
        let places = [
            link.map(|number| format!("link {number}")),
            file.as_ref().map(|file| format!("file {file}")),
            self.section(),
            offset.map(|offset| format!("offset {offset}")),
            // Names are arbitrary strings: escape what could move a terminal's cursor.
            tensor.as_ref().map(|tensor| format!("tensor {tensor:?}")),
        ];
        let places: Vec<String> = places.into_iter().flatten().collect();
        if places.is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", places.join(", "))
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

const _: () = assert!(size_of::<Error>() == size_of::<usize>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_line_with_its_place_and_if_wanted_its_source() {
        let error = Error::io("reading", std::io::Error::other("no disk"))
            .of_link(2)
            .in_file("a")
            .at(7)
            .of_tensor("\u{1b}");
        assert_eq!(
            format!("{error}"),
            r#"IO: reading (link 2, file a, offset 7, tensor "\u{1b}")"#
        );
        assert_eq!(
            format!("{error:#}"),
            r#"IO: reading: no disk (link 2, file a, offset 7, tensor "\u{1b}")"#
        );
        let error = Error::broken(&crate::rules::HDR_01, "no link");
        assert_eq!(
            format!("{error:#}"),
            format!("{} R-HDR-01: no link", error.class())
        );
    }

    #[test]
    fn secrets_are_not_shown() {
        for (text, shown) in [
            ("PRIVATE+KEY+run7+0a1b2c3d+AYEK/ALV=", "PRIVATE+KEY+..."),
            (
                "no 'PRIVATE+KEY+a+b+c' or PRIVATE+KEY+d",
                "no 'PRIVATE+KEY+...' or PRIVATE+KEY+...",
            ),
            (
                "(https://me:pass@host:8/a/b?sig=x&t=y)",
                "(https://...@host:8/a/b?...)",
            ),
            (
                "http://a@b@c#d http://host/x@y s3://b/k",
                "http://...@c#d http://host/x@y s3://b/k",
            ),
            (
                "https://h?token=x; C:\\a?b, run7+id+key",
                "https://h?... C:\\a?b, run7+id+key",
            ),
            ("://", "://"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
        let error = Error::usage("PRIVATE+KEY+a+b+c").in_file("http://me:pass@host/a?b");
        assert_eq!(
            error.to_string(),
            "USAGE: PRIVATE+KEY+... (file http://...@host/a?...)"
        );
    }

    #[test]
    fn programs_ask_for_rules_and_kinds_not_for_the_text() {
        use crate::rules::{CHN_03, CHN_13};
        let error = Error::broken(&CHN_13, "another chain");
        assert!(error.breaks(&[CHN_13.id]) && !error.breaks(&[CHN_03.id]));
        assert!(
            error.breaks(&["R-CHN-03", "R-CHN-13"]) && !error.breaks(&["R-CHN-03", "R-HDR-01"])
        );
        let text = "another process keeps this";
        assert!(Error::in_use(text).is_in_use() && !Error::usage(text).is_in_use());
        assert_eq!(
            Error::in_use(text).to_string(),
            Error::usage(text).to_string()
        );
    }

    #[test]
    fn every_error_has_advice_and_a_failure_that_of_its_kind() {
        use ErrorClass::{
            Chain, Corrupt, Io, Limit, Malformed, NonCanonical, NotDcf, StateMismatch,
        };
        use ErrorClass::{Truncated, Unsupported, Usage, WrongBase};
        let all = [
            NotDcf,
            Truncated,
            Corrupt,
            Malformed,
            NonCanonical,
            Unsupported,
            Limit,
            WrongBase,
            StateMismatch,
            Chain,
            Io,
            Usage,
        ];
        for class in all {
            assert!(
                !class.advice().is_empty() && !Error::refused(class, "no").advice().is_empty(),
                "{class}"
            );
        }
        let of = |kind: ErrorKind| Error::io("reading", kind.into()).advice();
        assert!(of(ErrorKind::ConnectionRefused).contains("host and port"));
        assert!(
            of(ErrorKind::StorageFull).contains("space")
                && of(ErrorKind::NotFound).contains("path")
        );
        assert_eq!(of(ErrorKind::Other), Io.advice());
        assert!(Error::in_use("no").advice().contains("process"));
        // A newer reader could not do it either.
        assert_ne!(
            Error::refused(Unsupported, "no").advice(),
            Unsupported.advice()
        );
    }

    #[test]
    fn what_may_pass_may_be_retried() {
        let io = |kind: ErrorKind| Error::io("reading", kind.into());
        assert!(
            io(ErrorKind::ConnectionReset).may_retry()
                && !io(ErrorKind::PermissionDenied).may_retry()
        );
        assert!(Error::broken(&crate::rules::CHN_10, "digest").may_retry());
        assert!(
            !Error::broken(&crate::rules::HDR_01, "no link").may_retry()
                && !Error::usage("no").may_retry()
        );
    }
}
