//! A store whose bodies share a line with a limited number of bytes per second.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Bytes that pass at once.
const CHUNK: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct ThrottledStore {
    inner: Arc<dyn ObjectStore>,
    line: Arc<Line>,
}

/// Time of the line that is not lost when a task wakes late.
const LATE: Duration = Duration::from_millis(20);

/// The line that all bodies share.
#[derive(Debug)]
struct Line {
    bytes_per_second: u64,
    /// Time at which the line is free again.
    free: Mutex<Instant>,
}

impl ThrottledStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, bytes_per_second: u64) -> Self {
        Self {
            inner,
            line: Arc::new(Line {
                bytes_per_second,
                free: Mutex::new(Instant::now()),
            }),
        }
    }
}

impl Line {
    async fn pass(&self, bytes: usize) {
        let needed = Duration::from_nanos(bytes as u64 * 1_000_000_000 / self.bytes_per_second);
        let free = {
            let mut free = self.free.lock().unwrap();
            let earliest = Instant::now().checked_sub(LATE).unwrap_or(*free);
            *free = (*free).max(earliest) + needed;
            *free
        };
        tokio::time::sleep_until(free.into()).await;
    }
}

impl fmt::Display for ThrottledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, slowly", self.inner)
    }
}

#[async_trait]
impl ObjectStore for ThrottledStore {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let mut result = self.inner.get_opts(path, options).await?;
        let meta = result.meta.clone();
        let range = result.range.clone();
        let attributes = result.attributes.clone();
        let extensions = std::mem::take(&mut result.extensions);
        let line = Arc::clone(&self.line);
        let body = result.into_stream().flat_map(|part| match part {
            Ok(bytes) => {
                let starts = (0..bytes.len()).step_by(CHUNK);
                let chunks: Vec<_> = starts
                    .map(|start| Ok(bytes.slice(start..bytes.len().min(start + CHUNK))))
                    .collect();
                stream::iter(chunks)
            }
            Err(error) => stream::iter(vec![Err(error)]),
        });
        let slow = body.then(move |chunk| {
            let line = Arc::clone(&line);
            async move {
                if let Ok(bytes) = &chunk {
                    line.pass(bytes.len()).await;
                }
                chunk
            }
        });
        Ok(GetResult {
            payload: GetResultPayload::Stream(slow.boxed()),
            meta,
            range,
            attributes,
            extensions,
        })
    }

    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
