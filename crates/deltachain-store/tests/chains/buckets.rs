//! Buckets as they are: credentials that a service issues and that expire soon, redirects, servers
//! with fewer features than Amazon's.

use std::fs;
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use deltachain::ErrorClass;
use deltachain::files::SafetensorsState;
use deltachain_store::{
    Base, Follower, FollowerOptions, PublishOptions, Publisher, RawObjects, Store, StoreOptions,
    doctor, init,
};

use crate::support::child::{child, place};
use crate::support::models::Models;
use crate::support::quick;
use crate::support::s3::{KEY, S3Server, SECRET};
use crate::support::tls::Front;
use crate::support::verify::shown;
use crate::support::web::WebServer;

/// Reads the head of a request: its first line, and the lines after it.
pub(crate) fn head(stream: &mut BufReader<&TcpStream>) -> Result<(String, Vec<String>)> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    if lines.is_empty() {
        Ok((String::new(), lines))
    } else {
        Ok((lines.remove(0), lines))
    }
}

/// Starts a server that answers each connection once, until the program ends.
pub(crate) fn serve(
    answer: impl Fn(&TcpStream) -> Result<()> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            // A client that disconnects is not a fault.
            thread::spawn(move || drop(answer(&stream)));
        }
    });
    address
}

fn text(mut stream: &TcpStream, text: &str) -> Result<()> {
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}

/// Uses a chain at a store: publishes two versions, and follows.
fn use_chain(open: impl Fn() -> Store) {
    let scratch = tempfile::tempdir().unwrap();
    let mut models = Models::new(3, 50);
    let store = open();
    init(&store).unwrap();
    let mut publisher = Publisher::open(store.clone(), PublishOptions::default()).unwrap();
    let mut before: Option<SafetensorsState> = None;
    for version in 0..2 {
        let state = models.save(version, scratch.path());
        let base = before
            .as_ref()
            .map_or(Base::Nothing, |base| Base::State(base.into()));
        publisher.publish(&state, base, &()).unwrap();
        before = Some(state);
    }
    let directory = scratch.path().join("follower");
    let mut follower =
        Follower::in_directory(open(), &directory, FollowerOptions::default()).unwrap();
    let prepared = follower.prepare(None, &()).unwrap().unwrap();
    follower.apply(prepared).unwrap();
    assert_eq!(shown(&directory).as_ref(), Some(models.state(1)));
}

fn open(endpoint: SocketAddr, settings: &[(&str, &str)]) -> Store {
    let endpoint = format!("http://{endpoint}");
    let all = [
        &[("endpoint", &*endpoint), ("region", "nowhere-1")],
        settings,
    ]
    .concat();
    let settings = all
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    Store::open("s3://bucket/chain", quick().settings(settings)).unwrap()
}

#[test]
fn credentials_of_a_machine_are_asked_for_again_when_they_end() {
    let server = S3Server::start();
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let metadata = serve(move |stream| {
        let (line, _) = head(&mut BufReader::new(stream))?;
        if line.starts_with("PUT /latest/api/token ") {
            return text(stream, "a-token");
        }
        if line.ends_with("/security-credentials/ HTTP/1.1") {
            return text(stream, "a-role");
        }
        count.fetch_add(1, Ordering::Relaxed);
        // The credentials expired long ago, but the server accepts them.
        let credentials = format!(
            r#"{{"AccessKeyId":"{KEY}","SecretAccessKey":"{SECRET}","Token":"t","Expiration":"2020-01-01T00:00:00Z"}}"#
        );
        text(stream, &credentials)
    });
    let metadata = format!("http://{metadata}");
    use_chain(|| open(server.address, &[("metadata_endpoint", &metadata)]));
    assert!(asked.load(Ordering::Relaxed) > 5, "{asked:?}");
}

#[test]
fn without_any_credentials_it_says_which_ones_are_needed() {
    // Servers of other tests listen on 127.0.0.1 and may have taken this port by now; no server
    // listens on 127.77.0.1.
    let port = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let nobody = format!("http://127.77.0.1:{port}");
    let server = S3Server::start();
    let error = open(server.address, &[("metadata_endpoint", &nobody)])
        .objects()
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Io);
    assert!(
        format!("{error:#}").contains("AWS_ACCESS_KEY_ID"),
        "{error:#}"
    );
}

#[test]
fn a_list_that_is_refused_is_not_tried_again_and_says_whose_credentials() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let server = serve(move |mut stream| {
        head(&mut BufReader::new(stream))?;
        count.fetch_add(1, Ordering::Relaxed);
        stream
            .write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    });
    let error = open(
        server,
        &[("access_key_id", KEY), ("secret_access_key", SECRET)],
    )
    .objects()
    .unwrap_err();
    assert!(
        format!("{error:#}").contains("the store refuses these credentials"),
        "{error:#}"
    );
    assert!(!error.may_retry(), "{error:#}");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_failure_that_speaks_of_403_is_tried_again() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let server = serve(move |mut stream| {
        head(&mut BufReader::new(stream))?;
        count.fetch_add(1, Ordering::Relaxed);
        let body = "a proxy says: status code: 403 ";
        write!(
            stream,
            "HTTP/1.1 500 Internal Server Error\r\nContent-Length: {}\r\nConnection: \
             close\r\n\r\n{body}",
            body.len()
        )
    });
    let error = open(
        server,
        &[("access_key_id", KEY), ("secret_access_key", SECRET)],
    )
    .objects()
    .unwrap_err();
    assert!(error.may_retry(), "{error:#}");
    assert!(asked.load(Ordering::Relaxed) > 1, "{asked:?}");
}

/// Runs a child process that gets everything from its environment: credentials from a service for
/// web identities, a private certificate for HTTPS, and a proxy.
#[test]
#[ignore = "a process with an environment of its own"]
fn a_process_behind_a_proxy() {
    let Some(place) = place() else { return };
    let endpoint = fs::read_to_string(place.join("endpoint")).unwrap();
    let settings = [("endpoint", endpoint), ("region", "nowhere-1".to_owned())];
    let settings = settings
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec();
    use_chain(|| Store::open("s3://bucket/chain", quick().settings(settings.clone())).unwrap());
}

#[test]
fn web_identity_certificate_and_proxy_come_from_the_environment() {
    let server = S3Server::start();
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let tokens = serve(move |stream| {
        let mut reader = BufReader::new(stream);
        let (line, _) = head(&mut reader)?;
        assert!(
            line.contains("AssumeRoleWithWebIdentity") && line.contains("a-web-token"),
            "{line}"
        );
        count.fetch_add(1, Ordering::Relaxed);
        // The credentials expire before the next request.
        let credentials = format!(
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
             <AccessKeyId>{KEY}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>t</SessionToken>\
             <Expiration>2020-01-01T00:00:00Z</Expiration>\
             </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        );
        text(stream, &credentials)
    });
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let certificates = place.join("certificates.pem");
    let front = Front::https(server.address, &certificates);
    let mut trusted = fs::read_to_string(&certificates).unwrap();
    let front_of_tokens = Front::https(tokens, &certificates);
    trusted += &fs::read_to_string(&certificates).unwrap();
    fs::write(&certificates, trusted).unwrap();
    let proxy = Front::proxy();
    fs::write(
        place.join("endpoint"),
        format!("https://localhost:{}", front.address.port()),
    )
    .unwrap();
    fs::write(place.join("token"), "a-web-token").unwrap();

    let run = |certificates: &Path| {
        let mut process = child("buckets::a_process_behind_a_proxy", place);
        process.env("SSL_CERT_FILE", certificates);
        process.env("HTTPS_PROXY", format!("http://{}", proxy.address));
        process.env("AWS_WEB_IDENTITY_TOKEN_FILE", place.join("token"));
        process.env("AWS_ROLE_ARN", "arn:aws:iam::1:role/a-role");
        process.env(
            "AWS_ENDPOINT_URL_STS",
            format!("https://localhost:{}", front_of_tokens.address.port()),
        );
        process.output().unwrap()
    };
    let output = run(&certificates);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(asked.load(Ordering::Relaxed) > 5, "{asked:?}");
    assert!(proxy.connections() > 1, "{}", proxy.connections());
    // Without the certificate, no server is trusted.
    let nothing = place.join("nothing.pem");
    fs::write(&nothing, "").unwrap();
    assert!(!run(&nothing).status.success());
}

/// Starts a server in front of another one. It redirects reads of objects elsewhere, and refuses
/// headers that only Amazon knows.
fn plain_front(server: &S3Server, elsewhere: &WebServer) -> SocketAddr {
    let inner = server.address;
    let elsewhere = elsewhere.url("");
    serve(move |mut stream| {
        let mut reader = BufReader::new(stream);
        let (line, headers) = head(&mut reader)?;
        let knows_too_much = |header: &String| {
            let header = header.to_ascii_lowercase();
            [
                "x-amz-trailer",
                "x-amz-checksum",
                "aws-chunked",
                "x-amz-sdk-checksum",
            ]
            .iter()
            .any(|new| header.contains(new))
        };
        if headers.iter().any(knows_too_much) {
            return stream.write_all(
                b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
        }
        if line.starts_with("GET ") && !line.contains("list-type=") {
            let path = line
                .split(' ')
                .nth(1)
                .unwrap_or_default()
                .trim_start_matches('/');
            return write!(
                stream,
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: \
                 {elsewhere}{path}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
        let mut behind = TcpStream::connect(inner)?;
        write!(
            behind,
            "{line}\r\nConnection: close\r\n{}\r\n\r\n",
            headers.join("\r\n")
        )?;
        let mut back = behind.try_clone()?;
        let mut out = stream.try_clone()?;
        let answers = thread::spawn(move || {
            let copied = std::io::copy(&mut back, &mut out);
            // The connection ends when the whole answer has been copied.
            drop(out.shutdown(Shutdown::Both));
            copied
        });
        // Until the client disconnects, or the answer is complete.
        drop(std::io::copy(&mut reader.by_ref(), &mut behind));
        drop(answers.join());
        Ok(())
    })
}

#[test]
fn a_server_that_redirects_and_knows_no_checksums_is_enough() {
    let server = S3Server::start();
    let web = WebServer::start(&server.directory("").join(".."));
    let front = plain_front(&server, &web);
    let credentials = [("access_key_id", KEY), ("secret_access_key", SECRET)];
    use_chain(|| open(front, &credentials));
    assert!(web.requests() > 5, "{}", web.requests());
}

#[test]
fn the_doctor_finds_a_good_bucket_good() {
    let server = S3Server::start();
    fs::create_dir(server.directory("chain")).unwrap();
    let settings = [
        ("endpoint", format!("http://{}", server.address)),
        ("region", "nowhere-1".to_owned()),
        ("access_key_id", KEY.to_owned()),
        ("secret_access_key", SECRET.to_owned()),
    ];
    let settings = settings
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec();
    let store = Store::open(
        "s3://bucket/chain",
        StoreOptions::default().settings(settings.clone()),
    )
    .unwrap();
    let found = doctor(&store).unwrap();
    assert!(found.iter().all(|finding| finding.works), "{found:?}");
    let left = Store::open("s3://bucket/chain", quick().settings(settings))
        .unwrap()
        .objects()
        .unwrap();
    assert_eq!(left, []);
}
