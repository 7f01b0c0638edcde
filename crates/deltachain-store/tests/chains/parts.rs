//! Uploads in parts: which requests are repeated, by a stand-in for a bucket of S3.

use std::fs;
use std::io::{BufReader, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use deltachain::chain::ObjectName;
use deltachain::tensor::Digest;
use deltachain_store::{CredentialSource, Credentials, Observer, Phase, RawObjects};

use crate::buckets::{head, serve};
use crate::support::bucket_with_credentials;

/// Requests of an upload in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Begin,
    Part,
    Complete,
}

impl Step {
    /// The step that a request line belongs to.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        if line.contains("partNumber=") {
            Some(Self::Part)
        } else if line.starts_with("POST ") && line.contains("?uploads") {
            Some(Self::Begin)
        } else if line.starts_with("POST ") && line.contains("uploadId=") {
            Some(Self::Complete)
        } else {
            None
        }
    }

    /// The body of the answer to a request that succeeds.
    pub(crate) fn answer(self) -> &'static str {
        match self {
            Self::Begin => {
                "<InitiateMultipartUploadResult><UploadId>u</UploadId>\
                 </InitiateMultipartUploadResult>"
            }
            Self::Part => "",
            Self::Complete => {
                "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
            }
        }
    }
}

/// A status with the code of its body.
type Refusal = (u16, &'static str);

/// A request of an upload.
struct Asked {
    step: Step,
    /// True if it is signed with the first of several keys.
    has_first_key: bool,
    /// Number of requests for this step until now.
    number: usize,
}

/// A bucket for one upload in parts. It notes the requests.
fn serve_parts(
    refuse: impl Fn(Asked) -> Option<Refusal> + Send + Sync + 'static,
) -> (SocketAddr, Arc<Mutex<Vec<Step>>>) {
    let steps = Arc::<Mutex<Vec<Step>>>::default();
    let noted = Arc::clone(&steps);
    let address = serve(move |mut stream| {
        let mut reader = BufReader::new(stream);
        let (line, headers) = head(&mut reader)?;
        let length = header(&headers, "content-length").parse().unwrap_or(0);
        std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
        let Some(step) = Step::parse(&line) else {
            // A HEAD of the object, or the end of an upload.
            return write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\nETag: \"e\"\r\n\
                 Last-Modified: Fri, 27 Nov 2026 05:00:00 GMT\r\nConnection: close\r\n\r\n"
            );
        };
        let number = {
            let mut noted = noted.lock().unwrap();
            noted.push(step);
            noted.iter().filter(|other| **other == step).count()
        };
        let asked = Asked {
            step,
            has_first_key: header(&headers, "authorization").contains("key0"),
            number,
        };
        if let Some((status, code)) = refuse(asked) {
            let body = format!("<Error><Code>{code}</Code></Error>");
            return reply(stream, status, &body);
        }
        reply(stream, 200, step.answer())
    });
    (address, steps)
}

fn header<'h>(headers: &'h [String], name: &str) -> &'h str {
    let mut pairs = headers.iter().filter_map(|header| header.split_once(':'));
    let found = pairs.find(|(key, _)| key.eq_ignore_ascii_case(name));
    found.map_or("", |(_, value)| value.trim())
}

fn reply(mut stream: &TcpStream, status: u16, body: &str) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nETag: \"e\"\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Gives a new key each time.
#[derive(Debug)]
struct Keys(Arc<AtomicUsize>);

impl CredentialSource for Keys {
    fn credentials(&self) -> deltachain::Result<Credentials> {
        let number = self.0.fetch_add(1, Ordering::SeqCst);
        let (id, secret) = (format!("key{number}"), "secret".to_owned());
        Ok(Credentials::new(id, secret, None, None))
    }
}

/// Counts the bytes that it hears of.
#[derive(Default)]
struct Uploaded(AtomicUsize);

impl Observer for Uploaded {
    fn advance(&self, phase: Phase, bytes: u64) -> deltachain::Result<()> {
        assert_eq!(phase, Phase::Upload);
        let bytes = usize::try_from(bytes).unwrap();
        self.0.fetch_add(bytes, Ordering::SeqCst);
        Ok(())
    }
}

const SIZE: usize = 11 << 20;

/// Uploads a file in parts to a bucket that refuses some requests: which requests were made,
/// and how often credentials were asked for.
fn upload_parts(
    refuse: impl Fn(Asked) -> Option<Refusal> + Send + Sync + 'static,
) -> (deltachain::Result<()>, Vec<Step>, usize) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("file");
    let content = vec![7; SIZE];
    fs::write(&path, &content).unwrap();
    let (server, steps) = serve_parts(refuse);
    let count = Arc::<AtomicUsize>::default();
    let store = bucket_with_credentials(server, Keys(Arc::clone(&count)));
    let uploaded = Uploaded::default();
    let name = ObjectName::File(Digest::of_bytes(&content));
    let done = store.upload(&path, name, SIZE as u64, &uploaded);
    if done.is_ok() {
        assert_eq!(uploaded.0.load(Ordering::SeqCst), SIZE);
    }
    let steps = steps.lock().unwrap().clone();
    (done, steps, count.load(Ordering::SeqCst))
}

fn count(steps: &[Step], step: Step) -> usize {
    steps.iter().filter(|other| **other == step).count()
}

#[test]
fn an_upload_in_parts_renews_credentials() {
    // What was stored with the first key is lost only if the upload cannot be completed.
    for (refused, begun) in [(Step::Begin, 2), (Step::Part, 1), (Step::Complete, 2)] {
        let (done, steps, asked) = upload_parts(move |asked| {
            let is_refused = asked.step == refused && asked.has_first_key;
            is_refused.then_some((400, "ExpiredToken"))
        });
        done.unwrap();
        assert_eq!((count(&steps, Step::Begin), asked), (begun, 2), "{steps:?}");
    }
}

#[test]
fn new_credentials_that_are_refused_end_an_upload() {
    let (done, steps, asked) =
        upload_parts(|asked| (asked.step == Step::Part).then_some((400, "ExpiredToken")));
    let text = format!("{:#}", done.unwrap_err());
    assert!(text.contains("the credentials have expired"), "{text}");
    assert_eq!((count(&steps, Step::Begin), asked), (1, 2), "{steps:?}");
    assert!(count(&steps, Step::Part) <= 6, "{steps:?}");
}

#[test]
fn a_part_is_repeated_alone() {
    for status in [408, 425, 429, 500, 503] {
        let (done, steps, _) = upload_parts(move |asked| {
            (asked.step == Step::Part && asked.number == 1).then_some((status, "Busy"))
        });
        done.unwrap();
        let steps = [Step::Begin, Step::Part, Step::Complete].map(|step| count(&steps, step));
        assert_eq!(steps, [1, 4, 1], "{status}");
    }
}

#[test]
fn a_part_that_keeps_failing_ends_the_upload() {
    let (done, steps, _) =
        upload_parts(|asked| (asked.step == Step::Part).then_some((503, "Busy")));
    done.unwrap_err();
    // Four attempts for each of the parts, which are stored side by side.
    assert!((4..=12).contains(&count(&steps, Step::Part)), "{steps:?}");
    assert_eq!(count(&steps, Step::Begin), 1);
}

#[test]
fn an_upload_whose_end_was_not_seen_is_complete() {
    let (done, steps, _) = upload_parts(|asked| match asked.number {
        _ if asked.step != Step::Complete => None,
        1 => Some((500, "InternalError")),
        _ => Some((404, "NoSuchUpload")),
    });
    done.unwrap();
    assert_eq!(count(&steps, Step::Begin), 1);
}
