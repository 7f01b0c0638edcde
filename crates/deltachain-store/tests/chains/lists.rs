//! Lists that never end, on each kind of store that can announce another page.

use std::io::{BufReader, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use deltachain::ErrorClass;
use deltachain_store::{Face, RawObjects, Store, advice};

use crate::buckets::{head, serve};
use crate::support::quick;

/// A way to continue a list forever.
#[derive(Debug, Clone, Copy)]
enum Way {
    SameToken,
    EmptyPages,
    SameNames,
    /// Each page has one new name.
    FewNames,
}

fn start(way: Way, asked: &Arc<AtomicUsize>) -> SocketAddr {
    let asked = Arc::clone(asked);
    serve(move |stream| {
        let (line, _) = head(&mut BufReader::new(stream))?;
        let number = asked.fetch_add(1, Ordering::SeqCst);
        let (token, name) = match way {
            Way::SameToken => (0, Some(number)),
            Way::EmptyPages => (number, None),
            Way::SameNames => (number, Some(0)),
            Way::FewNames => (number, Some(number)),
        };
        let name = name.map(|name| format!("chain/commits/{name:020}.json"));
        let page = if line.contains("comp=list") {
            azure(token, name)
        } else {
            s3(token, name)
        };
        reply(stream, &page)
    })
}

fn s3(token: usize, name: Option<String>) -> String {
    let name = name.map_or_else(String::new, |name| {
        format!(
            "<Contents><Key>{name}</Key><LastModified>2026-11-27T05:00:00.000Z</LastModified>\
             <ETag>e</ETag><Size>1</Size></Contents>"
        )
    });
    format!(
        "<ListBucketResult><IsTruncated>true</IsTruncated>{name}\
         <NextContinuationToken>t{token}</NextContinuationToken></ListBucketResult>"
    )
}

fn azure(token: usize, name: Option<String>) -> String {
    let name = name.map_or_else(String::new, |name| {
        format!(
            "<Blob><Name>{name}</Name><Properties>\
             <Last-Modified>Fri, 27 Nov 2026 05:00:00 GMT</Last-Modified>\
             <Content-Length>1</Content-Length><Content-Type>a/b</Content-Type><Etag>e</Etag>\
             </Properties></Blob>"
        )
    });
    format!(
        "<EnumerationResults><Blobs>{name}</Blobs><NextMarker>t{token}</NextMarker>\
         </EnumerationResults>"
    )
}

fn reply(mut stream: &TcpStream, page: &str) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    )
}

fn open(url: &str, address: SocketAddr) -> Store {
    let endpoint = format!("http://{address}");
    let settings: &[(&str, &str)] = match url.split(':').next() {
        Some("s3") => &[
            ("endpoint", &endpoint),
            ("region", "x"),
            ("access_key_id", "k"),
            ("secret_access_key", "s"),
        ],
        Some("gs") => &[("base_url", &endpoint), ("skip_signature", "true")],
        _ => &[
            ("endpoint", &endpoint),
            ("account_name", "models"),
            ("skip_signature", "true"),
        ],
    };
    let settings = settings
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    Store::open(url, quick().settings(settings)).unwrap()
}

#[test]
fn a_list_that_goes_on_and_on_is_an_error_in_words() {
    for url in [
        "s3://bucket/chain",
        "gs://bucket/chain",
        "az://bucket/chain",
    ] {
        for (way, most, said) in [
            (Way::SameToken, 3, "page 3 was listed before"),
            (Way::EmptyPages, 1001, "1000 pages have 0 names"),
            (Way::SameNames, 1001, "1000 pages have 1 names"),
            (Way::FewNames, 1120, "names"),
        ] {
            let asked = Arc::default();
            let store = open(url, start(way, &asked));
            let error = store.objects().unwrap_err();
            let text = format!("{error:#}");
            assert!(
                text.contains("the store's list does not end") && text.contains(said),
                "{url} {way:?}: {text}"
            );
            assert_eq!(error.class(), ErrorClass::Io);
            assert!(!text.contains("panic"), "{text}");
            assert!(!advice(&error, Face::Tool).contains("check the disk"));
            let requests = asked.swap(0, Ordering::SeqCst);
            assert!(requests <= most, "{url} {way:?}: {requests}");
        }
    }
    // The search for the head reads a page of a thousand names; a listing of versions reads all
    // pages.
    let asked = Arc::default();
    let store = open("s3://bucket/chain", start(Way::EmptyPages, &asked));
    store.head(None).unwrap_err();
    store.listing(0).unwrap_err();
}
