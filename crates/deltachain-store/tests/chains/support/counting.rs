//! A store in memory that counts requests as S3 does: a list has 1,000 names to a page, and each
//! page is a request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

const PAGE: usize = 1000;

#[derive(Debug)]
pub(crate) struct CountingStore {
    inner: InMemory,
    requests: Arc<AtomicU64>,
    /// Lists run backwards. No store promises an order.
    pub(crate) backwards: AtomicBool,
    /// Lists begin at the first name, whatever offset the request has.
    pub(crate) ignores_offsets: AtomicBool,
}

impl CountingStore {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: InMemory::new(),
            requests: Arc::default(),
            backwards: AtomicBool::new(false),
            ignores_offsets: AtomicBool::new(false),
        })
    }

    /// Number of requests since the last call.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.swap(0, Ordering::Relaxed)
    }

    fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a page as a request when its first name is read.
    fn pages(
        &self,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let requests = Arc::clone(&self.requests);
        let backwards = self.backwards.load(Ordering::Relaxed);
        let pages = stream::once(listed.try_collect::<Vec<ObjectMeta>>()).map_ok(move |mut all| {
            if backwards {
                all.reverse();
            }
            let mut pages: Vec<Vec<ObjectMeta>> = all.chunks(PAGE).map(<[_]>::to_vec).collect();
            if pages.is_empty() {
                pages.push(Vec::new());
            }
            let requests = Arc::clone(&requests);
            stream::iter(pages)
                .then(move |page| {
                    requests.fetch_add(1, Ordering::Relaxed);
                    std::future::ready(stream::iter(page.into_iter().map(Ok)))
                })
                .flatten()
        });
        pages.try_flatten().boxed()
    }
}

impl fmt::Display for CountingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store that counts")
    }
}

#[async_trait]
impl ObjectStore for CountingStore {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.count();
        self.inner.get_opts(path, options).await
    }

    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.count();
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.count();
        self.inner.put_multipart_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.pages(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.ignores_offsets.load(Ordering::Relaxed) {
            return self.list(prefix);
        }
        self.pages(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.count();
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.count();
        self.inner.copy_opts(from, to, options).await
    }
}
