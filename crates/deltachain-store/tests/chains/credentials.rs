//! Services that issue credentials, or refuse to. They are not the store: a refusal is not retried,
//! and their timeouts are shorter than those of a store.

use std::fs;
use std::io::{BufReader, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deltachain::{Error, ErrorClass};
use deltachain_store::{Face, RawObjects, Store, advice};

use crate::buckets::{head, serve};
use crate::support::quick;
use crate::support::s3::{KEY, S3Server, SECRET};

/// A service, and the number of requests that it received.
struct Service {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Service {
    fn start(answer: impl Fn(&str, &TcpStream) -> Result<()> + Send + Sync + 'static) -> Self {
        let asked = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&asked);
        let address = serve(move |stream| {
            let (line, _) = head(&mut BufReader::new(stream))?;
            count.fetch_add(1, Ordering::SeqCst);
            answer(&line, stream)
        });
        Self { address, asked }
    }

    /// Starts a service with the same answer to all requests.
    fn always(status: u16, body: &'static str) -> Self {
        Self::start(move |_, stream| reply(stream, status, body))
    }

    /// Starts a service that never answers.
    fn silent() -> Self {
        Self::start(|_, mut stream| stream.read(&mut [0]).map(drop))
    }

    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::SeqCst)
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn reply(mut stream: &TcpStream, status: u16, body: &str) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn credentials(key: &str, secret: &str) -> String {
    let end = "2099-01-01T00:00:00Z";
    format!(
        r#"{{"AccessKeyId":"{key}","SecretAccessKey":"{secret}","Token":"t","Expiration":"{end}"}}"#
    )
}

fn open_url(url: &str, settings: &[(&str, &str)]) -> deltachain::Result<Store> {
    let settings = settings
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    Store::open(url, quick().settings(settings))
}

/// Opens an S3 bucket at an address that needs no lookup.
fn open(settings: &[(&str, &str)]) -> deltachain::Result<Store> {
    let own = [("endpoint", "http://127.0.0.1:9"), ("region", "x")];
    open_url("s3://bucket/chain", &[&own, settings].concat())
}

fn failure(store: &Store) -> (Error, String) {
    let error = store.objects().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Io);
    let text = format!("{error:#}");
    assert!(!text.contains("panic"), "{text}");
    (error, text)
}

#[test]
fn a_metadata_service_that_refuses_is_asked_once() {
    for status in [400, 401, 403, 404, 405] {
        let service = Service::always(status, "no role here");
        let store = open(&[("metadata_endpoint", &service.url())]).unwrap();
        let (error, text) = failure(&store);
        assert_eq!(service.asked(), 1, "{text}");
        for said in [
            "no credentials found for s3://bucket/chain",
            "AWS_ACCESS_KEY_ID is not set",
            &service.url(),
            &format!("HTTP {status}"),
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(!error.may_retry(), "{text}");
        let tool = advice(&error, Face::Tool);
        let python = advice(&error, Face::Python);
        assert!(tool.contains("--store skip_signature=true"), "{tool}");
        assert!(python.contains("storage_options"), "{python}");
    }
}

#[test]
fn a_service_that_fails_is_asked_as_often_as_a_store_and_no_more() {
    let service = Service::always(503, "starting");
    let store = open(&[("metadata_endpoint", &service.url())]).unwrap();
    let (error, text) = failure(&store);
    assert_eq!(service.asked(), 4, "{text}");
    assert!(error.may_retry() && text.contains("HTTP 503"), "{text}");
}

#[test]
fn a_service_that_is_silent_has_a_time_of_its_own() {
    let service = Service::silent();
    let limit = ("credentials_timeout", "0.05");
    let store = open(&[("metadata_endpoint", &service.url()), limit]).unwrap();
    let (error, text) = failure(&store);
    assert!(service.asked() <= 1);
    assert!(
        text.contains("no answer within 0.05 s (credentials_timeout)"),
        "{text}"
    );
    assert!(!error.may_retry(), "{text}");
    // The timeout error names the failure behind it.
    let failing = Service::always(500, "the role is being made");
    let settings = [
        ("metadata_endpoint", &*failing.url()),
        ("credentials_timeout", "3"),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let options = quick().pause(Duration::from_hours(1));
    let options = options.settings(settings.to_vec());
    let (_, text) = failure(&Store::open("s3://bucket/chain", options).unwrap());
    assert!(
        text.contains("no answer within 3 s") && text.contains("is being made"),
        "{text}"
    );
    assert_eq!(failing.asked(), 1);
    for wrong in ["0", "-1", "soon", "NaN", "inf", "1e9"] {
        let error = open(&[("credentials_timeout", wrong)]).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage);
        assert!(
            error.message().contains("credentials_timeout"),
            "{wrong}: {error}"
        );
    }
}

/// A network with a login page, for example.
#[test]
fn a_service_that_answers_nonsense_is_an_error_in_words() {
    let page = Service::always(200, "<html>\n<body>log in</body>\n</html>");
    let store = open(&[("metadata_endpoint", &page.url())]).unwrap();
    let (_, text) = failure(&store);
    assert!(
        text.contains("no credentials found") && text.contains("login page"),
        "{text}"
    );
    assert_eq!(page.asked(), 1);
    let broken = Service::start(|line, stream| {
        if line.starts_with("PUT ") || line.contains("/security-credentials/ ") {
            return reply(stream, 200, "word\n");
        }
        reply(stream, 200, &credentials("key", "sec\\nret"))
    });
    let store = open(&[("metadata_endpoint", &broken.url())]).unwrap();
    let (_, text) = failure(&store);
    assert!(text.contains("the secret key has the character"), "{text}");
    assert!(!text.contains("ret\""), "{text}");
}

#[test]
fn a_metadata_service_that_ends_its_words_with_newlines_works() {
    let server = S3Server::start();
    let service = Service::start(|line, stream| {
        if line.starts_with("PUT ") || line.contains("/security-credentials/ ") {
            return reply(stream, 200, "word\n");
        }
        reply(stream, 200, &credentials(KEY, SECRET))
    });
    let endpoint = format!("http://{}", server.address);
    let settings = [
        ("endpoint", &*endpoint),
        ("metadata_endpoint", &service.url()),
    ];
    assert!(open(&settings).unwrap().objects().unwrap().is_empty());
    assert_eq!(service.asked(), 3);
}

/// Settings of each service that needs a file.
fn with_files<'a>(service: &'a str, file: &'a str) -> [(&'a str, Vec<(&'a str, &'a str)>); 3] {
    [
        (
            "web_identity_token_file",
            vec![
                ("web_identity_token_file", file),
                ("role_arn", "arn:aws:iam::1:role/a"),
                ("endpoint_url_sts", "https://127.0.0.1:9"),
            ],
        ),
        (
            "container_authorization_token_file",
            vec![
                ("container_credentials_full_uri", service),
                ("container_authorization_token_file", file),
            ],
        ),
        (
            "federated_token_file",
            vec![
                ("client_id", "c"),
                ("tenant_id", "t"),
                ("authority_host", service),
                ("federated_token_file", file),
                ("account_name", "models"),
            ],
        ),
    ]
}

fn url_of(name: &str) -> &'static str {
    if name == "federated_token_file" {
        "az://bucket/chain"
    } else {
        "s3://bucket/chain"
    }
}

#[test]
fn files_that_are_wrong_are_named_before_anything_is_asked() {
    let place = tempfile::tempdir().unwrap();
    let service = Service::always(200, "never");
    let write = |name: &str, content: &[u8]| {
        fs::write(place.path().join(name), content).unwrap();
    };
    write("empty", b" \n");
    write("newline", b"hidden\n");
    write("control", b"hid\0den");
    write("bytes", b"\xff\xfe");
    for (file, said) in [
        ("missing", "No such file"),
        (".", "directory"),
        ("empty", "the file is empty"),
        ("newline", "the token ends with a newline"),
        ("control", "the token has the character '\\0'"),
        ("bytes", "the file is not text"),
    ] {
        let path = place.path().join(file);
        let path = path.to_str().unwrap();
        for (name, settings) in with_files(&service.url(), path) {
            let error = open_url(url_of(name), &settings).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.class(), ErrorClass::Usage, "{text}");
            let are_named = text.contains(name) && text.contains(path);
            assert!(are_named && text.contains(said), "{name} {file}: {text}");
            assert!(!text.contains("hid"), "{text}");
        }
    }
    for name in ["service_account", "application_credentials"] {
        for (file, said) in [
            ("missing", "No such file"),
            ("empty", "the file is empty"),
            ("newline", "expected value at line 1"),
        ] {
            let path = place.path().join(file);
            let path = path.to_str().unwrap();
            let error = open_url("gs://bucket/chain", &[(name, path)]).unwrap_err();
            let text = error.to_string();
            let are_named = text.contains(name) && text.contains(path);
            assert!(are_named && text.contains(said), "{name} {file}: {text}");
        }
    }
    assert_eq!(service.asked(), 0);
}

/// Token files are replaced while a program runs.
#[test]
fn a_file_that_becomes_wrong_is_named() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("token");
    let file = path.to_str().unwrap();
    let service = Service::always(200, "never");
    let change = |content: Option<&str>, path: &Path| match content {
        Some(content) => fs::write(path, content).unwrap(),
        None => fs::remove_file(path).unwrap(),
    };
    for content in [Some("token\n"), Some(""), None] {
        change(Some("token"), &path);
        for (name, settings) in with_files(&service.url(), file) {
            change(Some("token"), &path);
            let store = open_url(url_of(name), &settings).unwrap();
            change(content, &path);
            let (error, text) = failure(&store);
            assert!(text.contains(name) && text.contains(file), "{name}: {text}");
            assert!(!error.may_retry(), "{text}");
        }
    }
    assert_eq!(service.asked(), 0);
}

/// Credentials outlive the file that they were fetched with.
#[test]
fn a_file_that_is_gone_is_not_missed_before_the_credentials_expire() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("token");
    fs::write(&path, "token").unwrap();
    let server = S3Server::start();
    let service = Service::start(|_, stream| reply(stream, 200, &credentials(KEY, SECRET)));
    let endpoint = format!("http://{}", server.address);
    let store = open(&[
        ("endpoint", &endpoint),
        ("container_credentials_full_uri", &service.url()),
        ("container_authorization_token_file", path.to_str().unwrap()),
    ]);
    let store = store.unwrap();
    assert!(store.objects().unwrap().is_empty());
    fs::remove_file(&path).unwrap();
    assert!(store.objects().unwrap().is_empty());
    assert_eq!(service.asked(), 1);
}

#[test]
fn a_service_that_settings_name_is_named() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("token");
    let file = path.to_str().unwrap();
    fs::write(&path, "hidden").unwrap();
    let refusing = Service::always(403, r#"{"error":"no such role"}"#);
    let failing = Service::always(500, "oh");
    for (service, requests, said) in [
        (&refusing, 1, "the credentials cannot be fetched: http://"),
        (
            &failing,
            4,
            "the service for credentials does not work: http://",
        ),
    ] {
        let url = service.url();
        let settings = [
            ("container_credentials_full_uri", &*url),
            ("container_authorization_token_file", file),
        ];
        let (error, text) = failure(&open(&settings).unwrap());
        assert_eq!(service.asked(), requests, "{text}");
        assert!(text.contains(said) && text.contains("HTTP "), "{text}");
        assert_eq!(error.may_retry(), requests > 1, "{text}");
    }
    // A service that does not listen may be about to start, so the request is retried.
    let nobody = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let endpoint = format!("https://{nobody}");
    let (error, text) = failure(
        &open(&[
            ("web_identity_token_file", file),
            ("role_arn", "arn:aws:iam::1:role/a"),
            ("endpoint_url_sts", &endpoint),
            ("credentials_timeout", "3600"),
        ])
        .unwrap(),
    );
    for said in [
        "the service for credentials does not work",
        &endpoint,
        "web_identity_token_file",
        "refused",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(error.may_retry() && !text.contains("hidden"), "{text}");
}

#[test]
fn azure_s_managed_identity_is_a_service_like_others() {
    let refusing = Service::always(400, r#"{"error":"invalid_request"}"#);
    let failing = Service::always(500, "oh");
    let page = Service::always(200, "<html></html>");
    let broken = Service::always(200, r#"{"access_token":"a\nb","expires_on":"4102444800"}"#);
    for (service, requests, said) in [
        (&refusing, 1, "HTTP 400"),
        (&failing, 4, "HTTP 500"),
        (&page, 1, "the credentials cannot be fetched"),
        (&broken, 1, "the token has the character"),
    ] {
        let settings = [
            ("account_name", "models"),
            ("endpoint", "http://127.0.0.1:9"),
            ("msi_endpoint", &service.url()),
        ];
        let (error, text) = failure(&open_url("az://models/run7", &settings).unwrap());
        assert_eq!(service.asked(), requests, "{text}");
        assert!(
            text.contains(said) && text.contains("msi_endpoint"),
            "{text}"
        );
        assert!(!text.contains("AWS") && !advice(&error, Face::Tool).contains("AWS"));
    }
}

#[test]
fn half_of_the_credentials_is_named() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("token");
    fs::write(&path, "token").unwrap();
    let file = path.to_str().unwrap();
    for (setting, value, said) in [
        (
            "aws_access_key_id",
            "k",
            "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not",
        ),
        (
            "aws_secret_access_key",
            "hidden",
            "AWS_SECRET_ACCESS_KEY is set, but AWS_ACCESS_KEY_ID",
        ),
        // A value is validated before another one is reported missing.
        (
            "aws_access_key_id",
            "hidden\n",
            "AWS_ACCESS_KEY_ID ends with a newline",
        ),
        ("aws_web_identity_token_file", file, "AWS_ROLE_ARN is not"),
        (
            "aws_container_credentials_full_uri",
            "http://127.0.0.1:9",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE is not",
        ),
    ] {
        let error = open(&[(setting, value)]).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage);
        let text = error.to_string();
        assert!(text.contains(said) && !text.contains("hidden"), "{text}");
    }
    let plain = [
        ("web_identity_token_file", file),
        ("role_arn", "r"),
        ("aws_endpoint_url_sts", "http://sts.example"),
    ];
    let text = open(&plain).unwrap_err().to_string();
    assert!(
        text.contains("AWS_ENDPOINT_URL_STS is not an address with https://"),
        "{text}"
    );
    let text = open_url("az://models/run7", &[]).unwrap_err().to_string();
    assert!(text.contains("AZURE_STORAGE_ACCOUNT_NAME"), "{text}");
}

/// The same store with a connection string: its account, its key and its address.
#[test]
fn azure_is_reached_by_its_connection_string() {
    let asked = Service::start(|line, stream| {
        assert!(line.starts_with("GET /dev/models?"), "{line}");
        reply(
            stream,
            403,
            "<Error><Code>AuthenticationFailed</Code></Error>",
        )
    });
    let text = format!(
        "DefaultEndpointsProtocol=http;AccountName=dev;AccountKey=aGlkZGVu;BlobEndpoint={}/dev/;",
        asked.url()
    );
    let store = open_url("az://models/run7", &[("connection_string", &text)]).unwrap();
    let (_, said) = failure(&store);
    assert_eq!(asked.asked(), 1, "{said}");
    assert!(
        said.contains("AZURE_STORAGE_CONNECTION_STRING") && !said.contains("AWS"),
        "{said}"
    );
    let error = open_url("az://models/run7", &[("connection_string", "aGlkZGVu")]).unwrap_err();
    assert!(!error.to_string().contains("aGlkZGVu"), "{error}");
}
