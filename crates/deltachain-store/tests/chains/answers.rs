//! Permanent failures of a store: the requests that follow one, the error, and what is left behind.
//! The store is a stand-in for the S3 gateway of Hugging Face's buckets, as its documentation
//! describes it: the organization is a part of the path, another server serves the objects and must
//! not see credentials, only puts know conditions, and there is no user metadata.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use deltachain::files::SafetensorsState;
use deltachain::{Error, ErrorClass};
use deltachain_store::{
    Base, CredentialSource, Credentials, Face, Finding, Follower, FollowerOptions, Keep,
    PublishOptions, Publisher, Store, advice, doctor, init, plan_prune, prune,
};

use crate::buckets::{head, serve};
use crate::parts::Step;
use crate::support::models::Models;
use crate::support::{bucket_with_credentials, quick};

const ORGANIZATION: &str = "/an-org/bucket";
const MODIFIED: &str = "Fri, 27 Nov 2026 05:00:00 GMT";

type Objects = BTreeMap<String, Vec<u8>>;

/// Parts by object, in the order of their numbers.
type Parts = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// A status and the error code in its body.
type Refusal = (u16, &'static str);

/// A bucket, and the requests that it refuses.
#[derive(Default)]
struct Bucket {
    objects: Mutex<Objects>,
    /// Parts of uploads that are not complete.
    parts: Mutex<Parts>,
    requests: AtomicUsize,
    /// Number of the first request that is refused, and the refusal. All later requests are
    /// refused, too.
    refusal: Mutex<Option<(usize, Refusal)>>,
    /// True if puts with a condition are refused, whatever their number.
    knows_no_conditions: bool,
}

impl Bucket {
    fn start(self) -> (Arc<Self>, SocketAddr) {
        let bucket = Arc::new(self);
        let edge = Arc::clone(&bucket);
        let edge = serve(move |stream| edge.fetch(stream));
        let front = Arc::clone(&bucket);
        let front = serve(move |stream| front.answer(stream, edge));
        (bucket, front)
    }

    /// Runs `work`; returns its result and the number of requests meanwhile.
    fn counted<T>(&self, work: impl FnOnce() -> T) -> (T, usize) {
        self.requests.store(0, Ordering::SeqCst);
        let done = work();
        (done, self.requests.load(Ordering::SeqCst))
    }

    fn fetch(&self, mut stream: &TcpStream) -> Result<()> {
        let (line, headers) = head(&mut BufReader::new(stream))?;
        let key = line.split(' ').nth(1).unwrap_or_default();
        assert!(
            header(&headers, "authorization").is_none(),
            "credentials went to another server"
        );
        let Some(content) = self.objects.lock().unwrap().get(key).cloned() else {
            return reply(stream, 404, "", b"");
        };
        let size = content.len();
        let (status, range, part) = match header(&headers, "range")
            .and_then(|range| range.strip_prefix("bytes="))
        {
            Some(range) => {
                let (first, last) = range.split_once('-').unwrap();
                let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
                if first >= size {
                    return reply(stream, 416, "", b"");
                }
                let end = size.min(last + 1);
                (
                    206,
                    format!("Content-Range: bytes {first}-{}/{size}\r\n", end - 1),
                    &content[first..end],
                )
            }
            None => (200, String::new(), &content[..]),
        };
        write!(
            stream,
            "HTTP/1.1 {status} OK\r\nContent-Length: {}\r\n{range}",
            part.len()
        )?;
        write!(
            stream,
            "ETag: \"e\"\r\nLast-Modified: {MODIFIED}\r\nConnection: close\r\n\r\n"
        )?;
        stream.write_all(part)
    }

    fn answer(&self, stream: &TcpStream, edge: SocketAddr) -> Result<()> {
        let mut reader = BufReader::new(stream);
        let (line, headers) = head(&mut reader)?;
        if line.is_empty() {
            return Ok(());
        }
        let mut words = line.split(' ');
        let method = words.next().unwrap_or_default();
        let path = words.next().unwrap_or_default();
        let mut body =
            vec![0; header(&headers, "content-length").map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut body)?;
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let is_conditional = header(&headers, "if-none-match").is_some();
        let refused = self
            .refusal
            .lock()
            .unwrap()
            .filter(|(first, _)| number >= *first)
            .map(|(_, refusal)| refusal);
        let refused = refused
            .or((self.knows_no_conditions && is_conditional).then_some((501, "NotImplemented")));
        if let Some((status, code)) = refused {
            let region = if status == 301 {
                "x-amz-bucket-region: eu-west-3\r\n"
            } else {
                ""
            };
            let body =
                format!("<Error><Code>{code}</Code><Message>as it was told to</Message></Error>");
            return reply(
                stream,
                status,
                region,
                if method == "HEAD" {
                    b""
                } else {
                    body.as_bytes()
                },
            );
        }
        assert!(
            !headers
                .iter()
                .any(|header| header.to_ascii_lowercase().starts_with("x-amz-meta-")),
            "{headers:?}"
        );
        assert!(!is_conditional || method == "PUT", "{line}");
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let key = path
            .strip_prefix(ORGANIZATION)
            .unwrap_or_else(|| panic!("{line}"))
            .trim_start_matches('/');
        let mut objects = self.objects.lock().unwrap();
        let key = format!("/{key}");
        if let Some(step) = Step::parse(&line) {
            let mut parts = self.parts.lock().unwrap();
            if step == Step::Complete {
                let parts = parts.remove(&key).unwrap_or_default();
                objects.insert(key, parts.into_values().collect::<Vec<_>>().concat());
            } else {
                let parts = parts.entry(key).or_default();
                if step == Step::Part {
                    parts.insert(setting(query, "partNumber"), body);
                }
            }
            return reply(stream, 200, "ETag: \"e\"\r\n", step.answer().as_bytes());
        }
        match method {
            "GET" if query.contains("list-type=2") => {
                reply(stream, 200, "", listed(&objects, query).as_bytes())
            }
            "GET" => reply(
                stream,
                302,
                &format!("Location: http://{edge}{key}\r\n"),
                b"",
            ),
            "HEAD" => match objects.get(&key) {
                Some(content) => {
                    let mut stream = stream;
                    write!(
                        stream,
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n",
                        content.len()
                    )?;
                    write!(
                        stream,
                        "ETag: \"e\"\r\nLast-Modified: {MODIFIED}\r\nConnection: close\r\n\r\n"
                    )
                }
                None => reply(stream, 404, "", b""),
            },
            "PUT" if is_conditional && objects.contains_key(&key) => reply(stream, 412, "", b""),
            "PUT" => {
                objects.insert(key, body);
                reply(stream, 200, "ETag: \"e\"\r\n", b"")
            }
            "POST" if query.starts_with("delete") => {
                let text = String::from_utf8(body).unwrap();
                let keys = text
                    .split("<Key>")
                    .skip(1)
                    .map(|part| part.split("</Key>").next().unwrap());
                let deleted = keys.inspect(|key| drop(objects.remove(&format!("/{key}"))));
                let deleted = deleted
                    .map(|key| format!("<Deleted><Key>{key}</Key></Deleted>"))
                    .collect::<Vec<_>>()
                    .concat();
                reply(
                    stream,
                    200,
                    "",
                    format!("<DeleteResult>{deleted}</DeleteResult>").as_bytes(),
                )
            }
            "DELETE" if query.contains("uploadId=") => {
                self.parts.lock().unwrap().remove(&key);
                reply(stream, 204, "", b"")
            }
            "DELETE" => {
                objects.remove(&key);
                reply(stream, 204, "", b"")
            }
            _ => panic!("{line}"),
        }
    }
}

fn header<'h>(headers: &'h [String], name: &str) -> Option<&'h str> {
    let mut pairs = headers.iter().filter_map(|header| header.split_once(':'));
    pairs
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

fn reply(mut stream: &TcpStream, status: u16, headers: &str, body: &[u8]) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)
}

fn setting(query: &str, name: &str) -> String {
    let found = query
        .split('&')
        .find_map(|setting| setting.strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_default().replace("%2F", "/")
}

fn listed(objects: &Objects, query: &str) -> String {
    let prefix = setting(query, "prefix");
    let after = setting(query, "start-after");
    let keys = objects.iter().map(|(key, content)| (&key[1..], content));
    let keys = keys.filter(|(key, _)| key.starts_with(&prefix) && **key > *after);
    let entry = |(key, content): (&str, &Vec<u8>)| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-27T05:00:00.000Z</LastModified><ETag>e</ETag>\
             <Size>{}</Size></Contents>",
            content.len()
        )
    };
    format!(
        "<ListBucketResult><IsTruncated>false</IsTruncated>{}</ListBucketResult>",
        keys.map(entry).collect::<Vec<_>>().concat()
    )
}

fn open(endpoint: SocketAddr) -> Store {
    let settings = [
        ("endpoint", format!("http://{endpoint}/an-org")),
        ("region", "us-east-1".to_owned()),
        ("access_key_id", "key".to_owned()),
        ("secret_access_key", "secret".to_owned()),
    ];
    let settings = settings
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec();
    Store::open(
        "s3://bucket/chain",
        quick().part_bytes(8 << 20).settings(settings),
    )
    .unwrap()
}

/// States of two versions.
fn states(place: &Path) -> [SafetensorsState; 2] {
    let mut models = Models::new(3, 50);
    [0, 1].map(|version| models.save(version, place))
}

type Operation<'a> = (&'static str, &'a dyn Fn() -> deltachain::Result<()>);

fn publish(
    store: &Store,
    base: Option<&SafetensorsState>,
    state: &SafetensorsState,
) -> deltachain::Result<()> {
    let mut publisher = Publisher::open(store.clone(), PublishOptions::default())?;
    publisher
        .publish(
            state,
            base.map_or(Base::Nothing, |base| Base::State(base.into())),
            &(),
        )
        .map(drop)
}

/// Each status of the table, at each request of publish, pull, prune and doctor.
#[test]
fn what_will_not_change_is_said_at_once_and_leaves_nothing_wrong() {
    let place = tempfile::tempdir().unwrap();
    let [first, second] = states(place.path());
    let (bucket, address) = Bucket::default().start();
    let store = open(address);
    init(&store).unwrap();
    publish(&store, None, &first).unwrap();
    let before = bucket.objects.lock().unwrap().clone();
    let pull = || {
        let directory = tempfile::tempdir().unwrap();
        let mut follower =
            Follower::in_directory(store.clone(), directory.path(), FollowerOptions::default())?;
        let prepared = follower.prepare(None, &())?.unwrap();
        follower.apply(prepared).map(drop)
    };
    let remove = || {
        let plan = plan_prune(
            &store,
            &Keep {
                last: 1,
                ..Keep::default()
            },
        )?;
        prune(&store, &plan, &()).map(drop)
    };
    let look = || {
        let missing: Vec<_> = doctor(&store)?
            .into_iter()
            .filter(Finding::is_fatal)
            .collect();
        missing
            .first()
            .map_or(Ok(()), |missing| Err(Error::usage(missing.says.clone())))
    };
    let operations: [Operation<'_>; 4] = [
        ("publish", &|| publish(&store, Some(&first), &second)),
        ("pull", &pull),
        ("prune", &remove),
        ("doctor", &look),
    ];
    for (name, operation) in operations {
        *bucket.objects.lock().unwrap() = before.clone();
        let (done, requests) = bucket.counted(operation);
        done.unwrap();
        assert!(requests > 4, "{name}");
        for (refusal, said) in [
            ((400, "ExpiredToken"), "the credentials have expired"),
            ((403, "AccessDenied"), "the store refuses these credentials"),
            (
                (403, "RequestTimeTooSkewed"),
                "this machine's clock differs from the store's",
            ),
            ((301, "PermanentRedirect"), "its region is eu-west-3"),
            ((501, "NotImplemented"), "this store "),
            ((404, "NoSuchBucket"), "there is no such bucket"),
        ] {
            for first in 0..requests {
                *bucket.objects.lock().unwrap() = before.clone();
                *bucket.refusal.lock().unwrap() = Some((first, refusal));
                let (done, came) = bucket.counted(operation);
                *bucket.refusal.lock().unwrap() = None;
                // Parallel requests and cleanup may follow the refused one.
                assert!(
                    came <= first + 24,
                    "{name} {refusal:?} at {first} of {requests}: {came} requests"
                );
                let Err(error) = done else {
                    // The result does not depend on this request, or its answer means that an
                    // object is missing.
                    continue;
                };
                let text = format!("{error:#}");
                // A server's answer to HEAD has no error code.
                let is_short = text.contains(&format!("HTTP {} (file", refusal.0))
                    || text.contains(": 404 Not Found");
                let is_gone = refusal.0 == 404 && error.class() == ErrorClass::Chain;
                assert!(
                    text.contains(said) || is_short || is_gone,
                    "{name} {refusal:?} at {first}: {text}"
                );
                assert!(
                    error.class() != ErrorClass::Io || !error.may_retry(),
                    "{name} {refusal:?} at {first}: {text}"
                );
                if error.class() == ErrorClass::Io {
                    assert_ne!(
                        advice(&error, Face::Tool),
                        Error::io("", std::io::Error::other("")).advice()
                    );
                }
                // Whatever was left behind, the same operation works now, and followers get the
                // right state.
                if name == "publish" {
                    let version = bucket
                        .objects
                        .lock()
                        .unwrap()
                        .contains_key("/chain/commits/00000000000000000001.json");
                    if !version {
                        operation().unwrap_or_else(|error| {
                            panic!("{name} {refusal:?} at {first}: {error:#}")
                        });
                    }
                    pull().unwrap();
                }
            }
        }
    }
}

/// A source of credentials that the server considers expired until they have been fetched twice.
#[derive(Debug)]
struct Renewed(Arc<AtomicUsize>);

impl CredentialSource for Renewed {
    fn credentials(&self) -> deltachain::Result<Credentials> {
        let number = self.0.fetch_add(1, Ordering::SeqCst);
        Ok(Credentials::new(
            format!("key{number}"),
            "secret".to_owned(),
            None,
            None,
        ))
    }
}

#[test]
fn credentials_that_can_be_renewed_are_renewed_once() {
    for (good, asked, works) in [("key1", 2, true), ("key7", 2, false)] {
        let count = Arc::<AtomicUsize>::default();
        let server = serve(move |stream| {
            let (_, headers) = head(&mut BufReader::new(stream))?;
            if header(&headers, "authorization").is_some_and(|text| text.contains(good)) {
                return reply(
                    stream,
                    200,
                    "ETag: \"e\"\r\nLast-Modified: Fri, 27 Nov 2026 05:00:00 GMT\r\n",
                    b"{}",
                );
            }
            reply(stream, 400, "", b"<Error><Code>ExpiredToken</Code></Error>")
        });
        let store = bucket_with_credentials(server, Renewed(Arc::clone(&count)));
        let read = deltachain_store::stored(&store, 0);
        assert_eq!(read.is_ok(), works, "{read:?}");
        assert_eq!(count.load(Ordering::SeqCst), asked);
    }
}

#[test]
fn a_store_without_conditions_is_told_by_doctor_and_by_publish() {
    let place = tempfile::tempdir().unwrap();
    let [first, _] = states(place.path());
    let (bucket, address) = Bucket {
        knows_no_conditions: true,
        ..Bucket::default()
    }
    .start();
    let store = open(address);
    let found = doctor(&store).unwrap();
    let told: Vec<_> = found
        .iter()
        .map(|finding| (finding.tried, finding.works))
        .collect();
    assert_eq!(
        told,
        [
            ("put, if the name is free", false),
            ("put", true),
            ("delete", true)
        ],
        "{found:#?}"
    );
    assert!(found[0].says.contains("If-None-Match"), "{found:?}");
    assert!(bucket.objects.lock().unwrap().is_empty());
    let (refused, requests) =
        bucket.counted(|| init(&store).and_then(|_| publish(&store, None, &first)));
    assert!(format!("{:#}", refused.unwrap_err()).contains("two publishers could"));
    assert!(requests < 8, "{requests}");
}

/// Errors of certificates, and answers without TLS.
#[test]
fn why_a_server_is_not_reached_is_said() {
    let place = tempfile::tempdir().unwrap();
    let (_, plain) = Bucket::default().start();
    // Some servers answer this when they get TLS where they expect a request.
    let confused = serve(|mut stream| {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    });
    let front = crate::support::tls::Front::https(plain, &place.path().join("certificate.pem"));
    let nobody = std::net::TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap();
    for (endpoint, said, may_retry) in [
        (
            format!("https://localhost:{}", front.address.port()),
            "does not trust the server's certificate",
            false,
        ),
        (format!("https://{confused}"), "does not speak TLS", false),
        (format!("http://{nobody}"), "onnection refused", true),
        ("http://no-such-host.invalid".to_owned(), "dns error", true),
    ] {
        let settings = [
            ("endpoint", &*endpoint),
            ("region", "x"),
            ("access_key_id", "k"),
            ("secret_access_key", "s"),
        ];
        let settings = settings
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .to_vec();
        let store = Store::open("s3://bucket/chain", quick().settings(settings)).unwrap();
        let error = deltachain_store::stored(&store, 0).unwrap_err();
        assert!(
            format!("{error:#}").contains(said) && error.may_retry() == may_retry,
            "{endpoint}: {error:#}"
        );
        let advice = advice(&error, Face::Tool);
        assert!(!advice.contains("disk"), "{endpoint}: {advice}");
    }
}
