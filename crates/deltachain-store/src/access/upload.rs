//! Storing files, long ones in parts.

use std::path::Path as FilePath;
use std::time::Duration;

use deltachain::chain::ObjectName;
use deltachain::{Error, FileSource, Result, Source};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{Error as StoreError, MultipartUpload, ObjectStoreExt, PutPayload};

use crate::access::options::IN_PARTS;
use crate::access::store::Store;
use crate::observer::{Observer, Phase};

/// S3 takes no more parts of one object, and none shorter but the last.
const MOST_PARTS: u64 = 10_000;
const LEAST_PART: u64 = 5 << 20;

/// Time limit for aborting a failed upload at the server.
const ABORT: Duration = Duration::from_secs(5);

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
        let source = FileSource::open(file)?;
        let part_bytes = self
            .options
            .part_bytes
            .max(LEAST_PART)
            .max(size.div_ceil(MOST_PARTS));
        let read = |offset: u64| -> Result<PutPayload> {
            let length = part_bytes.min(size - offset);
            let mut part =
                vec![0; usize::try_from(length).map_err(|_| Error::usage("the part is too long"))?];
            source.read_at(offset, &mut part)?;
            Ok(part.into())
        };
        let path = self.path(name);
        if size <= part_bytes {
            let payload = read(0)?;
            self.block_on(self.pace(size))?;
            let put = self.retry(async || {
                self.opened
                    .objects
                    .put(&path, payload.clone())
                    .await
                    .map(drop)
            });
            self.block_on(put)
                .map_err(|error| self.failed("storing", &error, Some(name)))?;
            return observer.advance(Phase::Upload, size);
        }
        let mut attempt = 1;
        loop {
            let uploaded = self.block_on(async {
                let upload = self
                    .in_time(self.opened.objects.put_multipart(&path))
                    .await
                    .map_err(PartError::Store)?;
                IN_PARTS
                    .scope(
                        (),
                        self.put_parts(upload, (size, part_bytes), &read, observer),
                    )
                    .await
            });
            match uploaded {
                Err(PartError::Store(error))
                    if attempt < self.options.attempts && self.may_pass(&error) =>
                {
                    self.block_on(self.pause(attempt))
                        .map_err(|error| self.failed("storing", &error, Some(name)))?;
                    attempt += 1;
                }
                Err(PartError::Store(error) | PartError::Part(error)) => {
                    return Err(self.failed("storing", &error, Some(name)));
                }
                Err(PartError::Other(error)) => return Err(error),
                Ok(()) => return Ok(()),
            }
        }
    }

    async fn put_parts(
        &self,
        mut upload: Box<dyn MultipartUpload>,
        (size, part_bytes): (u64, u64),
        read: &dyn Fn(u64) -> Result<PutPayload>,
        observer: &dyn Observer,
    ) -> Result<(), PartError> {
        let part_bytes = usize::try_from(part_bytes).unwrap_or(usize::MAX);
        // A part that a server did not take has used up its attempts.
        let of_part = |error| {
            if self.opened.is_watched {
                PartError::Part(error)
            } else {
                PartError::Store(error)
            }
        };
        let parts = async {
            let put = |offset| {
                let put =
                    read(offset).map(|part| (part.content_length() as u64, upload.put_part(part)));
                async move {
                    let (length, put) = put.map_err(PartError::Other)?;
                    self.pace(length).await.map_err(PartError::Other)?;
                    self.in_time(put).await.map(|()| length).map_err(of_part)
                }
            };
            let parts = stream::iter((0..size).step_by(part_bytes)).map(put);
            let mut stored = parts.buffer_unordered(self.options.parallel);
            while let Some(length) = stored.try_next().await? {
                observer
                    .advance(Phase::Upload, length)
                    .map_err(PartError::Other)?;
            }
            Ok(())
        };
        if let Err(error) = parts.await {
            // The parts that are left of the upload are the store's to clean up; a failure to abort
            // changes nothing for the chain.
            let _ = tokio::time::timeout(self.options.timeout.min(ABORT), upload.abort()).await;
            return Err(error);
        }
        self.in_time(upload.complete())
            .await
            .map(drop)
            .map_err(PartError::Store)
    }
}

/// Why the upload of parts failed.
enum PartError {
    Store(StoreError),
    /// A part could not be stored, and there is no use in beginning again.
    Part(StoreError),
    Other(Error),
}
