use std::{fs::File, os::fd::AsRawFd as _, time::Duration};

use aws_config::{SdkConfig, timeout::TimeoutConfig};
use aws_sdk_s3::{
    Client,
    config::Builder,
    error::{BuildError, ProvideErrorMetadata as _},
    presigning::PresigningConfig,
    primitives::{ByteStream, DateTime},
    types::{Delete, ObjectIdentifier, ServerSideEncryption},
};
use bytes::Bytes;
use jiff::Timestamp;

use crate::{
    Error, LINK_LIFETIME, Link, Objects, Result,
    sdk::{answered, failure},
};

/// A tree's pack can have some hundred MiB, which take longer than a queue's message.
const ATTEMPT_TIMEOUT: Duration = Duration::from_mins(2);

/// S3 copies a GiB in some seconds. A function has a minute for all that it does, and can do
/// without most copies.
const COPY_TIMEOUT: Duration = Duration::from_secs(20);

/// The number of bytes of a file that are read and sent at once.
const PIECE: usize = 128 << 10;

/// How often a conditional write is tried if it collides with a concurrent one.
const CONDITIONAL_WRITES: u32 = 4;

/// The real bucket.
///
/// A reader also needs `s3:ListBucket`: without it S3 answers 403, not 404, for an object that does
/// not exist.
#[derive(Clone, Debug)]
pub struct Bucket {
    client: Client,
    name: String,
    seal_key: Option<String>,
}

impl Bucket {
    /// The bucket of that name, always addressed by path, which names with dots and emulators
    /// require.
    #[must_use]
    pub fn new(config: &SdkConfig, name: String) -> Self {
        let timeouts = TimeoutConfig::builder().operation_attempt_timeout(ATTEMPT_TIMEOUT).build();
        let config = Builder::from(config).force_path_style(true).timeout_config(timeouts).build();
        Self { client: Client::from_conf(config), name, seal_key: None }
    }

    /// The same bucket with the ability to seal: `key` is the ARN of a KMS key.
    #[must_use]
    pub fn sealing_with(self, key: String) -> Self {
        Self { seal_key: Some(key), ..self }
    }

    async fn read(&self, key: &str, range: Option<String>) -> Result<Option<(Vec<u8>, Option<DateTime>)>> {
        let call = || format!("s3:GetObject {key}");
        let object = match self.client.get_object().bucket(&self.name).key(key).set_range(range).send().await {
            Ok(object) => object,
            Err(error) if error.code() == Some("NoSuchKey") || answered(&error, 416) => return Ok(None),
            Err(error) => return Err(failure(call(), &error)),
        };
        let (modified, content) = (object.last_modified, object.body.collect().await);
        content
            .map(|content| Some((content.to_vec(), modified)))
            .map_err(|error| Error::Transient { call: call(), message: error.to_string() })
    }
}

impl Objects for Bucket {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.read(key, None).await?.map(|(content, _)| content))
    }

    async fn get_modified(&self, key: &str) -> Result<Option<(Vec<u8>, Timestamp)>> {
        let Some((content, modified)) = self.read(key, None).await? else { return Ok(None) };
        Ok(Some((content, timestamp(format!("s3:GetObject {key}"), modified.as_ref())?)))
    }

    async fn get_range(&self, key: &str, offset: u64, size: u64) -> Result<Option<Vec<u8>>> {
        // HTTP has no empty range.
        if size == 0 {
            return Ok(Some(Vec::new()));
        }
        let range = format!("bytes={offset}-{}", offset + size - 1);
        Ok(self.read(key, Some(range)).await?.map(|(content, _)| content))
    }

    async fn modified(&self, key: &str) -> Result<Option<Timestamp>> {
        let call = format!("s3:HeadObject {key}");
        match self.client.head_object().bucket(&self.name).key(key).send().await {
            Ok(head) => timestamp(call, head.last_modified()).map(Some),
            // The answer to HEAD has no body, and so no code for a missing key.
            Err(error) if answered(&error, 404) => Ok(None),
            Err(error) => Err(failure(call, &error)),
        }
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<(String, Timestamp)>> {
        let call = || format!("s3:ListObjectsV2 {prefix}");
        let after = (!after.is_empty()).then(|| after.to_owned());
        let request = self.client.list_objects_v2().bucket(&self.name).prefix(prefix).set_start_after(after);
        let page = request.send().await.map_err(|error| failure(call(), &error))?;
        let objects = page.contents().iter().filter_map(|object| Some((object.key()?.to_owned(), object.last_modified())));
        objects.map(|(key, modified)| Ok((key, timestamp(call(), modified)?))).collect()
    }

    async fn size(&self, prefix: &str, least: u64) -> Result<u64> {
        let mut pages = self.client.list_objects_v2().bucket(&self.name).prefix(prefix).into_paginator().send();
        let mut bytes = 0_u64;
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| failure(format!("s3:ListObjectsV2 {prefix}"), &error))?;
            let sizes = page.contents().iter().filter_map(|object| u64::try_from(object.size()?).ok());
            bytes = bytes.saturating_add(sizes.map(|size| size.max(least)).sum());
        }
        Ok(bytes)
    }

    async fn put(&self, key: &str, content: Vec<u8>) -> Result<()> {
        let request = self.client.put_object().bucket(&self.name).key(key).body(content.into());
        request.send().await.map(drop).map_err(|error| failure(format!("s3:PutObject {key}"), &error))
    }

    async fn put_sealed(&self, key: &str, content: Vec<u8>) -> Result<()> {
        let call = || format!("s3:PutObject {key}");
        let Some(seal_key) = &self.seal_key else {
            return Err(Error::Permanent { call: call(), message: "this function has no key to seal with".into() });
        };
        let request = self.client.put_object().bucket(&self.name).key(key).body(content.into());
        let request = request.server_side_encryption(ServerSideEncryption::AwsKms).ssekms_key_id(seal_key);
        request.send().await.map(drop).map_err(|error| failure(call(), &error))
    }

    async fn put_file(&self, key: &str, file: &File) -> Result<()> {
        let call = || format!("s3:PutObject {key}");
        // Opened again for every try of the SDK, also when the file no longer has a name.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let body = ByteStream::read_from().path(path).buffer_size(PIECE).build().await;
        let body = body.map_err(|error| Error::Permanent { call: call(), message: error.to_string() })?;
        let request = self.client.put_object().bucket(&self.name).key(key).body(body);
        request.send().await.map(drop).map_err(|error| failure(call(), &error))
    }

    async fn put_new(&self, key: &str, content: Vec<u8>) -> Result<bool> {
        let content = Bytes::from(content);
        let mut tries = 0;
        loop {
            tries += 1;
            let request = self.client.put_object().bucket(&self.name).key(key).if_none_match("*").body(content.clone().into());
            match request.send().await {
                Ok(_) => return Ok(true),
                // An earlier try of the SDK may have written it, and its answer was lost. A writer
                // that must recognise its own record puts something unique into it, such as the
                // time.
                Err(error) if answered(&error, 412) => {
                    return Ok(self.read(key, None).await?.is_some_and(|(written, _)| written == content));
                }
                // A delete or another conditional write of the key was in progress: S3 asks for a
                // retry.
                Err(error) if answered(&error, 409) && tries < CONDITIONAL_WRITES => {}
                Err(error) if answered(&error, 409) => {
                    return Err(Error::Transient {
                        call: format!("s3:PutObject {key}"),
                        message: "ConditionalRequestConflict".into(),
                    });
                }
                Err(error) => return Err(failure(format!("s3:PutObject {key}"), &error)),
            }
        }
    }

    async fn copy(&self, from: &str, to: &str) -> Result<bool> {
        let source = format!("{}/{}", self.name, percent_encode(from));
        let request = self.client.copy_object().bucket(&self.name).key(to).copy_source(source);
        let timeouts = TimeoutConfig::builder().operation_timeout(COPY_TIMEOUT).build();
        match request.customize().config_override(Builder::new().timeout_config(timeouts)).send().await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some("NoSuchKey") => Ok(false),
            Err(error) => Err(failure(format!("s3:CopyObject {from} to {to}"), &error)),
        }
    }

    async fn link(&self, key: &str, now: Timestamp) -> Result<Link> {
        let failed = |message: String| Error::Permanent { call: format!("sign s3:GetObject {key}"), message };
        let start = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let lifetime = Duration::from_secs(LINK_LIFETIME.as_secs().unsigned_abs());
        let signing = PresigningConfig::builder().start_time(start.into()).expires_in(lifetime).build();
        let signing = signing.map_err(|error| failed(error.to_string()))?;
        // A browser shows the content as text, whatever it is.
        let request = self.client.get_object().bucket(&self.name).key(key).response_content_type("text/plain; charset=utf-8");
        let signed = request.presigned(signing).await.map_err(|error| failure(format!("sign s3:GetObject {key}"), &error))?;
        Ok(Link { url: signed.uri().to_owned(), expires: start + LINK_LIFETIME })
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let request = self.client.delete_object().bucket(&self.name).key(key);
        request.send().await.map(drop).map_err(|error| failure(format!("s3:DeleteObject {key}"), &error))
    }

    async fn delete_all(&self, keys: &[&str]) -> Result<()> {
        let call = || format!("s3:DeleteObjects {}", keys.join(", "));
        let permanent = |message: String| Error::Permanent { call: call(), message };
        let delete = || -> std::result::Result<_, BuildError> {
            let objects = keys.iter().map(|key| ObjectIdentifier::builder().key(*key).build());
            let objects = objects.collect::<std::result::Result<_, _>>()?;
            Delete::builder().set_objects(Some(objects)).quiet(true).build()
        };
        let delete = delete().map_err(|error| permanent(error.to_string()))?;
        let answer = self.client.delete_objects().bucket(&self.name).delete(delete).send().await;
        let answer = answer.map_err(|error| failure(call(), &error))?;
        // Each key has its own result.
        let Some(error) = answer.errors().first() else { return Ok(()) };
        let message = format!("{}: {}", error.key().unwrap_or_default(), error.code().unwrap_or_default());
        match error.code() {
            Some("InternalError" | "SlowDown" | "ServiceUnavailable") => Err(Error::Transient { call: call(), message }),
            _ => Err(permanent(message)),
        }
    }
}

/// Fails for an object without a time, because it would count as arbitrarily old.
fn timestamp(call: String, time: Option<&DateTime>) -> Result<Timestamp> {
    let time = time.and_then(|time| Timestamp::from_second(time.secs()).ok());
    time.ok_or_else(|| Error::Permanent { call, message: "the answer has no modification time".into() })
}

/// The source of a copy is a header, which the SDK sends unchanged.
fn percent_encode(key: &str) -> String {
    use std::fmt::Write as _;
    key.bytes().fold(String::with_capacity(key.len()), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(byte.into());
        } else {
            let _infallible = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_copy_is_encoded() {
        assert_eq!(percent_encode("tasks/AROA:1/in/run"), "tasks/AROA%3A1/in/run");
        assert_eq!(percent_encode("trees/ä b+c"), "trees/%C3%A4%20b%2Bc");
    }
}
