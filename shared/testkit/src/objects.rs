use std::collections::BTreeMap;

use driftless_aws::{Objects, Result};
use driftless_contract::{RunMessage, keys};

use crate::{Message, State, World, lost};

impl World {
    /// All that is in the bucket.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        self.state().objects.clone()
    }
}

impl State {
    /// Writes an object, and notifies of a task's result as the bucket does.
    fn write(&mut self, key: &str, content: Vec<u8>) {
        self.objects.insert(key.into(), content);
        if keys::task_of_result(key).is_some() {
            self.enqueue(Message::Run(RunMessage::Objects(vec![key.into()])), 0, None);
        }
    }
}

impl Objects for World {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.call(|state| state.objects.get(key).cloned()).await.ok_or_else(|| lost("s3:GetObject"))
    }

    async fn get_range(&self, key: &str, offset: u64, size: u64) -> Result<Option<Vec<u8>>> {
        let content = Objects::get(self, key).await?;
        let range = usize::try_from(offset).ok().zip(usize::try_from(offset + size).ok());
        Ok(content.zip(range).and_then(|(content, (begin, end))| content.get(begin..end).map(<[u8]>::to_vec)))
    }

    async fn exists(&self, key: &str) -> Result<bool> {
        self.call(|state| state.objects.contains_key(key)).await.ok_or_else(|| lost("s3:HeadObject"))
    }

    async fn put(&self, key: &str, content: Vec<u8>) -> Result<()> {
        self.call(|state| state.write(key, content)).await.ok_or_else(|| lost("s3:PutObject"))
    }

    async fn put_new(&self, key: &str, content: Vec<u8>) -> Result<bool> {
        let put = self.call(|state| {
            let new = !state.objects.contains_key(key);
            if new {
                state.write(key, content);
            }
            new
        });
        put.await.ok_or_else(|| lost("s3:PutObject"))
    }

    async fn copy(&self, from: &str, to: &str) -> Result<bool> {
        let copy = self.call(|state| {
            let content = state.objects.get(from).cloned();
            content.map(|content| state.write(to, content)).is_some()
        });
        copy.await.ok_or_else(|| lost("s3:CopyObject"))
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.call(|state| drop(state.objects.remove(key))).await.ok_or_else(|| lost("s3:DeleteObject"))
    }
}
