use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::fd::AsRawFd as _,
};

use driftless_aws::{Error, LINK_LIFETIME, Link, Objects, Result};
use driftless_contract::{Document, Key, RunMessage, keys};
use jiff::Timestamp;

use crate::world::{Message, State, World, lost, whole_second};

/// Objects per page of a list: few, so that tests need several pages.
const PAGE: usize = 3;

impl World {
    /// The whole content of the bucket.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        self.state().objects.iter().map(|(key, (content, _))| (key.clone(), content.clone())).collect()
    }

    /// A document of the bucket.
    ///
    /// # Panics
    /// If the document is not valid.
    #[must_use]
    #[expect(clippy::expect_used, reason = "for tests")]
    pub fn document<D: Document>(&self, key: &Key<D>) -> Option<D> {
        self.objects().get(&**key).map(|content| D::parse(content).expect("a valid document"))
    }

    /// When an object was last written, if it exists.
    #[must_use]
    pub fn written_at(&self, key: &str) -> Option<Timestamp> {
        self.state().objects.get(key).map(|(_, written)| *written)
    }

    /// Archives an existing object: S3 lists it but does not return its content.
    pub fn archive(&self, key: &str) {
        self.state().archived.insert(key.into());
    }
}

impl State {
    /// An object's content, if it exists and is not archived.
    fn read(&self, call: &str, key: &str) -> Result<Option<Vec<u8>>> {
        if self.archived.contains(key) {
            return Err(Error::Permanent { call: format!("{call} {key}"), message: "InvalidObjectState".into() });
        }
        Ok(self.objects.get(key).map(|(content, _)| content.clone()))
    }

    /// Writes an object, and notifies of a task's result as the bucket does. S3 reports the second
    /// of a write.
    fn write(&mut self, key: &str, content: Vec<u8>) {
        self.archived.remove(key);
        self.objects.insert(key.into(), (content, whole_second(self.now)));
        if keys::task_of_report(key).is_some() {
            self.enqueue(Message::Run(RunMessage::Objects(vec![key.into()])), 0, None);
        }
    }
}

impl Objects for World {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.call(|state| state.read("s3:GetObject", key)).await.ok_or_else(|| lost("s3:GetObject"))?
    }

    async fn get_range(&self, key: &str, offset: u64, size: u64) -> Result<Option<Vec<u8>>> {
        if size == 0 {
            return Ok(Some(Vec::new()));
        }
        let content = Objects::get(self, key).await?;
        let [begin, size] = [offset, size].map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(content.filter(|content| begin < content.len()).map(|content| content.into_iter().skip(begin).take(size).collect()))
    }

    async fn modified(&self, key: &str) -> Result<Option<Timestamp>> {
        self.call(|state| state.objects.get(key).map(|(_, written)| *written)).await.ok_or_else(|| lost("s3:HeadObject"))
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<(String, Timestamp)>> {
        let list = self.call(|state| {
            let of_prefix = state.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
            of_prefix.take(PAGE).map(|(key, (_, written))| (key.clone(), *written)).collect()
        });
        list.await.ok_or_else(|| lost("s3:ListObjectsV2"))
    }

    async fn size(&self, prefix: &str, least: u64) -> Result<u64> {
        let size = self.call(|state| {
            let of_prefix = state.objects.iter().filter(|(key, _)| key.starts_with(prefix));
            of_prefix.map(|(_, (content, _))| least.max(content.len() as u64)).sum()
        });
        size.await.ok_or_else(|| lost("s3:ListObjectsV2"))
    }

    async fn put(&self, key: &str, content: Vec<u8>) -> Result<()> {
        self.call(|state| state.write(key, content)).await.ok_or_else(|| lost("s3:PutObject"))
    }

    async fn put_sealed(&self, key: &str, content: Vec<u8>) -> Result<()> {
        self.put(key, content).await
    }

    async fn put_file(&self, key: &str, file: &File) -> Result<()> {
        let content = fs::read(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let content = content.map_err(|error| Error::Permanent { call: "read".into(), message: error.to_string() })?;
        self.put(key, content).await
    }

    async fn put_new(&self, key: &str, content: Vec<u8>) -> Result<bool> {
        let put = self.call(|state| {
            if let Some(written) = state.read("s3:GetObject", key)? {
                return Ok(written == content);
            }
            state.write(key, content);
            Ok(true)
        });
        put.await.ok_or_else(|| lost("s3:PutObject"))?
    }

    async fn copy(&self, from: &str, to: &str) -> Result<bool> {
        let copy = self.call(|state| {
            let content = state.read("s3:CopyObject", from)?;
            Ok(content.map(|content| state.write(to, content)).is_some())
        });
        copy.await.ok_or_else(|| lost("s3:CopyObject"))?
    }

    async fn link(&self, key: &str, now: Timestamp) -> Result<Link> {
        Ok(Link { url: format!("https://s3.example/{key}?at={now}"), expires: now + LINK_LIFETIME })
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let delete = self.call(|state| {
            state.archived.remove(key);
            state.objects.remove(key);
        });
        delete.await.ok_or_else(|| lost("s3:DeleteObject"))
    }
}
