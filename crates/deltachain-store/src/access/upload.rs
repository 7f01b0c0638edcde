//! Storing files, long ones in parts.

use std::path::Path as FilePath;
#[cfg(feature = "servers")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deltachain::chain::ObjectName;
use deltachain::{Error, FileSource, Result, Source};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error as StoreError, MultipartUpload, ObjectStoreExt, PutMultipartOptions, PutPayload,
    UploadPart,
};

use crate::access::options::COMPLETING;
#[cfg(feature = "servers")]
use crate::access::part_retry::PartRetry;
use crate::access::store::{Store, may_be_expired};
use crate::observer::{Observer, Phase};

/// S3 takes no more parts of one object, and none shorter but the last.
const MOST_PARTS: u64 = 10_000;
const LEAST_PART: u64 = 5 << 20;

/// Time limit for aborting a failed upload at the server.
const ABORT: Duration = Duration::from_secs(5);

/// Waits for the rate limit come after a request is signed, and S3 refuses a signature that is 15
/// minutes old. So no more parts are stored at the same time than the rate allows in this time.
const LONGEST_QUEUE: u64 = 60;

impl Store {
    /// Stores a file of this size under a name by an ordinary put, in parts side by side if it is
    /// long.
    ///
    /// # Errors
    /// IO; what the observer wants it to end with; USAGE if the store can only be read.
    pub(crate) fn upload(
        &self,
        file: &FilePath,
        name: ObjectName,
        size: u64,
        observer: &dyn Observer,
    ) -> Result<()> {
        self.check_is_written()?;
        let part_bytes = self
            .options
            .part_bytes
            .max(LEAST_PART)
            .max(size.div_ceil(MOST_PARTS));
        let upload = FileUpload {
            source: FileSource::open(file)?,
            name,
            path: self.path(name),
            size,
            part_bytes,
        };
        if size <= part_bytes {
            self.upload_at_once(&upload)?;
            return observer.advance(Phase::Upload, size);
        }
        let progress = UploadProgress {
            observer,
            reported: AtomicU64::new(0),
        };
        let uploaded = self.retry_whole(async || self.upload_in_parts(&upload, &progress).await);
        self.block_on(uploaded)
            .map_err(|error| self.failed("storing", &error, Some(name)))?
    }

    fn upload_at_once(&self, upload: &FileUpload) -> Result<()> {
        let payload = upload.read_part(0)?;
        self.block_on(self.pace(upload.size))?;
        let put = self.retry(async || {
            self.opened
                .objects
                .put(&upload.path, payload.clone())
                .await
                .map(drop)
        });
        self.block_on(put)
            .map_err(|error| self.failed("storing", &error, Some(upload.name)))
    }

    /// One attempt to store a file in parts. An outer error means that another attempt may help.
    async fn upload_in_parts(
        &self,
        upload: &FileUpload,
        progress: &UploadProgress<'_>,
    ) -> Result<Result<()>, StoreError> {
        let begin = self
            .opened
            .objects
            .put_multipart_opts(&upload.path, self.multipart_options());
        let mut parts = self.in_time(begin).await?;
        match self.put_parts(&mut *parts, upload, progress).await {
            Ok(()) => {}
            Err(error) => {
                // A store drops the parts of an upload that is aborted. If that fails, rules of the
                // bucket remove them; for the chain it makes no difference.
                let abort = parts.abort();
                let _ = tokio::time::timeout(self.options.timeout.min(ABORT), abort).await;
                return match error {
                    PartError::Retry(error) => Err(error),
                    PartError::Final(error) => Ok(Err(error)),
                };
            }
        }
        let completed = self
            .in_time(COMPLETING.scope((), parts.complete()))
            .await
            .map(drop);
        match completed {
            // The first answer may have been lost.
            Err(StoreError::NotFound { .. }) if self.is_complete(upload).await => Ok(Ok(())),
            // The client has repeated the request already.
            Err(error) if self.opened.is_watched && !may_be_expired(&error) => {
                Ok(Err(self.failed("storing", &error, Some(upload.name))))
            }
            completed => completed.map(Ok),
        }
    }

    async fn put_parts(
        &self,
        parts: &mut dyn MultipartUpload,
        upload: &FileUpload,
        progress: &UploadProgress<'_>,
    ) -> Result<(), PartError> {
        let step = usize::try_from(upload.part_bytes).unwrap_or(usize::MAX);
        let puts = stream::iter((0..upload.size).step_by(step)).map(|offset| {
            let put = upload
                .read_part(offset)
                .map(|part| (part.content_length() as u64, parts.put_part(part)));
            async move {
                let (length, put) = put.map_err(PartError::Final)?;
                self.pace(length).await.map_err(PartError::Final)?;
                self.put_part(upload.name, put).await?;
                Ok(length)
            }
        });
        let mut puts = puts.buffer_unordered(self.parallel_parts(upload.part_bytes));
        let mut stored = 0;
        while let Some(length) = puts.try_next().await? {
            stored += length;
            progress.report(stored).map_err(PartError::Final)?;
        }
        Ok(())
    }

    async fn put_part(&self, name: ObjectName, put: UploadPart) -> Result<(), PartError> {
        #[cfg(feature = "servers")]
        let part_retry = self.part_retry();
        #[cfg(feature = "servers")]
        let put = part_retry.scope(put);
        self.in_time(put).await.map_err(|error| {
            // The policy has repeated the part already.
            if self.opened.is_watched {
                PartError::Final(self.failed("storing", &error, Some(name)))
            } else {
                PartError::Retry(error)
            }
        })
    }

    #[cfg(feature = "servers")]
    fn part_retry(&self) -> PartRetry {
        PartRetry {
            options: Arc::clone(&self.options),
            renewal: self.opened.renewal.clone(),
        }
    }

    fn multipart_options(&self) -> PutMultipartOptions {
        let _ = self;
        let options = PutMultipartOptions::default();
        // A store of the caller's own making has retries of its own.
        #[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
        if self.opened.is_watched {
            return options.with_retry_policy(Arc::new(self.part_retry()));
        }
        options
    }

    /// Number of parts to store at the same time.
    fn parallel_parts(&self, part_bytes: u64) -> usize {
        let parallel = self.options.parallel;
        match self.options.max_rate {
            Some(rate) => {
                let parts = rate.saturating_mul(LONGEST_QUEUE) / part_bytes;
                usize::try_from(parts)
                    .unwrap_or(parallel)
                    .clamp(1, parallel)
            }
            None => parallel,
        }
    }

    /// True if the file is in the store with all its bytes.
    async fn is_complete(&self, upload: &FileUpload) -> bool {
        let found = self.in_time(self.opened.objects.head(&upload.path)).await;
        found.is_ok_and(|found| found.size == upload.size)
    }
}

/// A file that is being stored.
struct FileUpload {
    source: FileSource,
    name: ObjectName,
    path: Path,
    size: u64,
    part_bytes: u64,
}

impl FileUpload {
    fn read_part(&self, offset: u64) -> Result<PutPayload> {
        let length = self.part_bytes.min(self.size - offset);
        let mut part =
            vec![0; usize::try_from(length).map_err(|_| Error::usage("the part is too long"))?];
        self.source.read_at(offset, &mut part)?;
        Ok(part.into())
    }
}

/// Progress over all attempts of an upload.
struct UploadProgress<'a> {
    observer: &'a dyn Observer,
    reported: AtomicU64,
}

impl UploadProgress<'_> {
    /// Reports that an attempt has stored so many bytes. Bytes that an earlier attempt stored are
    /// not reported again.
    fn report(&self, stored: u64) -> Result<()> {
        let before = self.reported.fetch_max(stored, Ordering::Relaxed);
        self.observer
            .advance(Phase::Upload, stored.saturating_sub(before))
    }
}

/// Why parts were not stored.
enum PartError {
    /// The whole upload may be tried again.
    Retry(StoreError),
    Final(Error),
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::access::options::StoreOptions;

    #[test]
    fn no_signed_request_waits_long_for_the_rate_limit() {
        let parallel = |max_rate| {
            let objects = std::sync::Arc::new(InMemory::new());
            let options = StoreOptions::default().max_rate(max_rate);
            let store = Store::from_objects(objects, "", options).unwrap();
            store.parallel_parts(8 << 20)
        };
        assert_eq!(parallel(None), 8);
        assert_eq!(parallel(Some(100 << 20)), 8);
        assert_eq!(parallel(Some(500_000)), 3);
        assert_eq!(parallel(Some(20_000)), 1);
    }
}
