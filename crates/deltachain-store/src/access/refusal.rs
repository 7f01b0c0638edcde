//! Answers that are final: the same request would get the same answer. docs/operating.md has this
//! table for people.
#![cfg_attr(
    not(feature = "servers"),
    allow(dead_code, reason = "only servers refuse")
)]

use std::error::Error as StdError;
use std::fmt;
use std::io::{Error as IoError, ErrorKind};
use std::iter;

use deltachain::without_secrets;

/// Maximum number of characters that are shown of a server's own words.
const SHOWN: usize = 400;

/// Meaning of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The server wants other credentials, or more permissions.
    Credentials,
    /// The credentials were good once.
    Expired,
    /// Settings have no credentials, and the service of the machine that may have some gives none.
    NoCredentials,
    /// The service that settings name for credentials gives none, and will not.
    NotGiven,
    /// The service that settings name for credentials does not answer, or fails. That may pass, but
    /// the time for credentials is over.
    Service,
    /// The time of the request is not that of the server.
    Clock,
    /// The bucket is in another region.
    Region,
    /// There is no such bucket.
    Bucket,
    /// The store does not know puts on the condition that the name is free (`If-None-Match`).
    Condition,
    /// The server does not know this operation.
    Operation,
    /// Anything else that the server will not do.
    Request,
    /// The machine does not know who has signed the server's certificate, or it is for another
    /// name.
    Certificate,
    /// The server answers, but not in TLS.
    NoTls,
    /// A list repeats itself, or exceeds the limits of [`crate::access::pages`].
    Endless,
    /// The server sends something of its own in place of a file, or for a file that does not exist.
    Page,
}

/// Words that differ with the kind of store.
#[derive(Debug)]
pub(crate) struct StoreWords {
    /// Description of the source of credentials, for messages.
    pub(crate) credentials: Option<&'static str>,
    /// Advice for a user without credentials: for the tool, for Python.
    pub(crate) no_credentials: (&'static str, &'static str),
    /// Advice if the bucket is elsewhere.
    pub(crate) region: &'static str,
    /// Advice if the bucket does not exist.
    pub(crate) bucket: &'static str,
    /// Advice if the certificate is not trusted.
    pub(crate) certificate: &'static str,
}

/// Words for directories, for stores of the caller's own, and for web servers.
pub(crate) static PLAIN: StoreWords = StoreWords {
    credentials: None,
    no_credentials: (GIVE_CREDENTIALS, GIVE_CREDENTIALS),
    region: "the server says that the files are at another address: check the URL",
    bucket: "check the URL",
    certificate: "check the name in the URL; SSL_CERT_FILE names a file with your own authority's \
                  certificate",
};

const GIVE_CREDENTIALS: &str = "give credentials to the store";

impl Meaning {
    /// Meaning of a server's answer, from its status and the code at the start of its body; `None`
    /// if the failure may be transient, or the answer is no failure: the `object_store` crate
    /// handles objects that are missing or exist already.
    pub(crate) fn of_answer(
        status: u16,
        code: &str,
        names_region: bool,
        is_conditional: bool,
    ) -> Option<Self> {
        let meaning = match (status, code) {
            (400..=499, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired") => {
                Self::Expired
            }
            (400..=499, "RequestTimeTooSkewed") => Self::Clock,
            (400, _) if names_region => Self::Region,
            (300..=303 | 305..=399, _) => Self::Region,
            (404, "NoSuchBucket" | "ContainerNotFound") => Self::Bucket,
            (501, _) | (400, "NotImplemented") if is_conditional => Self::Condition,
            (405 | 501, _) | (400, "NotImplemented") => Self::Operation,
            (401 | 403, _) => Self::Credentials,
            (404 | 408 | 409 | 412 | 416 | 425 | 429, _) => return None,
            (400..=499, _) => Self::Request,
            _ => return None,
        };
        Some(meaning)
    }

    /// True if new credentials may help. To a HEAD a server does not say why it refuses.
    pub(crate) fn may_be_expired(self) -> bool {
        matches!(self, Self::Expired | Self::Credentials | Self::Request)
    }

    /// The kind of failure, what is said, and what to do.
    fn row(self) -> (ErrorKind, &'static str, &'static str) {
        let denied = ErrorKind::PermissionDenied;
        match self {
            Self::Credentials => (
                denied,
                "the store refuses these credentials, or a permission is missing",
                "check credentials and permissions: reading needs get and list, publishing put, \
                 prune delete as well",
            ),
            Self::Expired => (
                denied,
                "the credentials have expired",
                "get new ones; for long runs, use the machine's credential service, or a function \
                 in Python",
            ),
            Self::NoCredentials => (denied, "no credentials found for", GIVE_CREDENTIALS),
            Self::NotGiven => (
                denied,
                "the credentials cannot be fetched",
                "check the service, the variable and the file that the message names, and the role",
            ),
            Self::Service => (
                ErrorKind::TimedOut,
                "the service for credentials does not work",
                "check the service that the message names, and the network; the setting \
                 credentials_timeout allows it more than 10 seconds",
            ),
            Self::Clock => (
                denied,
                "this machine's clock differs from the store's, which therefore refuses the \
                 request",
                "set the clock of this machine",
            ),
            Self::Region => (
                ErrorKind::InvalidInput,
                "the bucket is in another region, or at another address",
                PLAIN.region,
            ),
            Self::Bucket => (ErrorKind::NotFound, "there is no such bucket", PLAIN.bucket),
            Self::Condition => (
                ErrorKind::Unsupported,
                "this store cannot put an object on the condition that its name is free \
                 (If-None-Match): two publishers could both make the same version, so nothing can \
                 be published here",
                "publish to another store: this one can only hold a copy that other programs make, \
                 for followers",
            ),
            Self::Operation => (
                ErrorKind::Unsupported,
                "this store does not support the operation",
                "`deltachain doctor URL` tests what the store supports; choose another store",
            ),
            Self::Request => (
                ErrorKind::InvalidInput,
                "the store refuses the request",
                "check the URL and the settings of the store; the message has the store's own \
                 words",
            ),
            Self::Certificate => (
                ErrorKind::InvalidInput,
                "this machine does not trust the server's certificate",
                PLAIN.certificate,
            ),
            Self::NoTls => (
                ErrorKind::InvalidInput,
                "the server does not speak TLS",
                "write http:// if it has no TLS, and check the port",
            ),
            Self::Endless => (
                ErrorKind::InvalidData,
                "the store's list does not end",
                "check that the address is that of a store, and anything in front of it, such as a \
                 proxy; `deltachain doctor URL` tests lists",
            ),
            Self::Page => (
                ErrorKind::InvalidData,
                "the web server sends a page of its own in place of missing files, or of all files",
                "check the URL, and let the server answer 404 for missing files \
                 (nginx: try_files $uri =404), without Content-Encoding or a login page",
            ),
        }
    }
}

/// True if an answer with this status may be another one later. Status 501 may be final all the
/// same ([`Meaning::of_answer`]).
pub(crate) fn is_transient_status(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..)
}

/// A refusal, among the causes of an error.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) meaning: Meaning,
    /// The server's own words.
    pub(crate) words: String,
    /// Words of the kind of store that refuses.
    store: &'static StoreWords,
}

impl Refusal {
    pub(crate) fn new(meaning: Meaning, words: &str) -> Self {
        let words: String = words
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .chars()
            .take(SHOWN)
            .collect();
        Self {
            meaning,
            words: without_secrets(&words),
            store: &PLAIN,
        }
    }

    /// The refusal among the causes of an error.
    pub(crate) fn of<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e Self> {
        causes(error).find_map(|cause| cause.downcast_ref())
    }

    /// The error of the whole operation, in the words of this kind of store.
    pub(crate) fn into_io(self, store: &'static StoreWords) -> IoError {
        IoError::new(self.meaning.row().0, Self { store, ..self })
    }

    /// Advice for a user, for the tool and for Python.
    pub(crate) fn advice(&self) -> (&'static str, &'static str) {
        let advice = match self.meaning {
            Meaning::NoCredentials => return self.store.no_credentials,
            Meaning::Region => self.store.region,
            Meaning::Bucket => self.store.bucket,
            Meaning::Certificate => self.store.certificate,
            meaning => meaning.row().2,
        };
        (advice, advice)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.meaning.row().1)?;
        if self.meaning == Meaning::NoCredentials {
            return write!(f, " {}", self.words);
        }
        if let (Meaning::Credentials | Meaning::Expired, Some(credentials)) =
            (self.meaning, self.store.credentials)
        {
            write!(f, " (they come from {credentials})")?;
        }
        if self.words.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", self.words)
        }
    }
}

impl StdError for Refusal {}

/// True if the store does not know puts on the condition that the name is free.
pub(crate) fn is_condition(error: &deltachain::Error) -> bool {
    error
        .source()
        .and_then(Refusal::of)
        .is_some_and(|refusal| refusal.meaning == Meaning::Condition)
}

/// An error and its causes, with those that an error of the system wraps.
pub(crate) fn causes<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    iter::successors(Some(error), |&error| {
        let wrapped = error.downcast_ref::<IoError>().and_then(IoError::get_ref);
        wrapped.map_or_else(
            || error.source(),
            |wrapped| Some(wrapped as &(dyn StdError + 'static)),
        )
    })
}

/// An error with its causes, each said once.
pub(crate) fn told(error: &(dyn StdError + 'static)) -> String {
    causes(error).fold(String::new(), |told, cause| match cause.to_string() {
        cause if told.contains(&cause) => told,
        cause if told.is_empty() => cause,
        cause => format!("{told}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_final_or_may_pass() {
        use Meaning::{Bucket, Clock, Condition, Credentials, Expired, Operation, Region, Request};
        let meant = |status, code| Meaning::of_answer(status, code, false, false);
        // A transient failure has no meaning, because the request is repeated.
        let transient = [408, 425, 429, 500, 502, 503, 504];
        assert!(transient.into_iter().all(is_transient_status));
        assert!(
            transient
                .into_iter()
                .all(|status| meant(status, "").is_none())
        );
        for (status, code, meaning) in [
            (301, "PermanentRedirect", Some(Region)),
            (304, "", None),
            (400, "ExpiredToken", Some(Expired)),
            (403, "ExpiredToken", Some(Expired)),
            (400, "InvalidArgument", Some(Request)),
            (400, "NotImplemented", Some(Operation)),
            (401, "", Some(Credentials)),
            (403, "AccessDenied", Some(Credentials)),
            (403, "RequestTimeTooSkewed", Some(Clock)),
            (404, "NoSuchKey", None),
            (404, "NoSuchBucket", Some(Bucket)),
            (405, "", Some(Operation)),
            (408, "", None),
            (409, "", None),
            (412, "", None),
            (413, "", Some(Request)),
            (416, "", None),
            (425, "", None),
            (429, "SlowDown", None),
            (500, "InternalError", None),
            (501, "", Some(Operation)),
            (503, "SlowDown", None),
        ] {
            assert_eq!(meant(status, code), meaning, "{status} {code}");
        }
        assert_eq!(
            Meaning::of_answer(400, "AuthorizationHeaderMalformed", true, false),
            Some(Region)
        );
        assert_eq!(Meaning::of_answer(501, "", false, true), Some(Condition));
    }

    #[test]
    fn words_are_short_and_without_secrets() {
        let refusal = Refusal::new(
            Meaning::Clock,
            &format!("a\n  b http://u:p@h/x?secret {}", "é".repeat(2 * SHOWN)),
        );
        assert!(
            refusal.words.starts_with("a b http://...@h/x") && !refusal.words.contains("secret"),
            "{refusal}"
        );
        assert!(refusal.words.chars().count() <= SHOWN, "{refusal}");
        let error = IoError::other(IoError::new(ErrorKind::TimedOut, refusal));
        assert_eq!(
            Refusal::of(&error).map(|refusal| refusal.meaning),
            Some(Meaning::Clock)
        );
    }

    #[test]
    fn each_cause_is_told_once() {
        let cause = IoError::other(IoError::new(ErrorKind::ConnectionRefused, "nobody listens"));
        let error = object_store::Error::Generic {
            store: "S3",
            source: cause.into(),
        };
        assert_eq!(told(&error), "Generic S3 error: nobody listens");
    }
}
