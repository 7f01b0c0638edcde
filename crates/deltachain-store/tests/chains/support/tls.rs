//! HTTPS in front of a server on 127.0.0.1, with a certificate that only its owner trusts; and a
//! proxy that passes encrypted connections on.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// A server that runs until it is dropped.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicU64>,
    _runtime: Runtime,
}

impl Front {
    /// Starts HTTPS at `localhost` in front of this server, and writes the certificate to a file.
    pub(crate) fn https(server: SocketAddr, certificate: &Path) -> Self {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(certificate, own.cert.pem()).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth();
        let config = config
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self::start(move |client| {
            let acceptor = acceptor.clone();
            async move {
                let mut client = acceptor.accept(client).await?;
                let mut server = TcpStream::connect(server).await?;
                copy_bidirectional(&mut client, &mut server).await.map(drop)
            }
        })
    }

    /// Starts a proxy for `CONNECT`.
    pub(crate) fn proxy() -> Self {
        Self::start(async |client| {
            let mut client = BufReader::new(client);
            let mut request = String::new();
            client.read_line(&mut request).await?;
            while client.read_line(&mut String::new()).await? > 2 {}
            let place = request.split(' ').nth(1).unwrap_or_default().to_owned();
            let mut server = TcpStream::connect(place).await?;
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            copy_bidirectional(&mut client, &mut server).await.map(drop)
        })
    }

    /// Number of connections.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    fn start<F, A>(answer: A) -> Self
    where
        F: Future<Output = std::io::Result<()>> + Send,
        A: Fn(TcpStream) -> F + Send + Sync + 'static,
    {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(TcpListener::bind(("127.0.0.1", 0)))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicU64::new(0));
        let answer = Arc::new(answer);
        let count = Arc::clone(&connections);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let answer = Arc::clone(&answer);
                // A client that disconnects is not a fault.
                tokio::spawn(async move { drop(answer(client).await) });
            }
        });
        Self {
            address,
            connections,
            _runtime: runtime,
        }
    }
}
