//! An S3 server in this process, on 127.0.0.1, which checks signatures. Its objects are files in a
//! temporary directory.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use deltachain_store::{Store, StoreOptions};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::IF_NONE_MATCH;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connections;
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;

const BUCKET: &str = "bucket";
pub(crate) const KEY: &str = "a-key";
pub(crate) const SECRET: &str = "a-secret";

/// A server that runs until it is dropped.
pub(crate) struct S3Server {
    pub(crate) address: SocketAddr,
    root: TempDir,
    _runtime: Runtime,
}

impl S3Server {
    pub(crate) fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(BUCKET)).unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(root.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(TcpListener::bind(("127.0.0.1", 0)))
            .unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve(listener, service.build()));
        Self {
            address,
            root,
            _runtime: runtime,
        }
    }

    /// Opens the store below a prefix of the server's bucket.
    pub(crate) fn store(&self, prefix: &str, options: StoreOptions) -> Store {
        Store::open(
            &format!("s3://{BUCKET}/{prefix}"),
            self.options(options, SECRET),
        )
        .unwrap()
    }

    /// Like [`store`](Self::store), with the wrong key.
    pub(crate) fn store_of_stranger(&self, prefix: &str, options: StoreOptions) -> Store {
        Store::open(
            &format!("s3://{BUCKET}/{prefix}"),
            self.options(options, "no-secret"),
        )
        .unwrap()
    }

    /// Directory with the objects below a prefix.
    pub(crate) fn directory(&self, prefix: &str) -> PathBuf {
        self.root.path().join(BUCKET).join(prefix)
    }

    fn options(&self, options: StoreOptions, secret: &str) -> StoreOptions {
        Self::options_for(self.address, options, secret)
    }

    fn options_for(address: SocketAddr, mut options: StoreOptions, secret: &str) -> StoreOptions {
        let endpoint = format!("http://{address}");
        let settings = [
            ("endpoint", &*endpoint),
            ("region", "nowhere-1"),
            ("access_key_id", KEY),
            ("secret_access_key", secret),
        ];
        options = options.settings(
            settings
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .to_vec(),
        );
        options
    }
}

/// Opens the same store as [`S3Server::store`] through a proxy at this address.
pub(crate) fn store_behind(proxy: SocketAddr, prefix: &str, options: StoreOptions) -> Store {
    Store::open(
        &format!("s3://{BUCKET}/{prefix}"),
        S3Server::options_for(proxy, options, SECRET),
    )
    .unwrap()
}

async fn serve(listener: TcpListener, service: S3Service) {
    let alone = Arc::new(Mutex::new(()));
    while let Ok((socket, _)) = listener.accept().await {
        let service = service.clone();
        let alone = Arc::clone(&alone);
        let answer = service_fn(move |request: Request<Incoming>| {
            let service = service.clone();
            let alone = Arc::clone(&alone);
            async move {
                // The server first checks whether the object exists, then writes it: two concurrent
                // requests would both succeed, which no real server allows.
                let conditional = request.headers().contains_key(IF_NONE_MATCH);
                let _guard = if conditional {
                    Some(alone.lock().await)
                } else {
                    None
                };
                service.call(request.map(Body::from)).await
            }
        });
        tokio::spawn(async move {
            // A client that disconnects is not a fault.
            let _ = Connections::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(socket), answer)
                .await;
        });
    }
}
