//! The guarantees of [`Objects`].

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use driftless_aws::{Error, Objects};
use futures::future::{join_all, try_join_all};
use jiff::{Timestamp, TimestampRound, Unit};

/// A bucket.
pub trait Fixture {
    /// The implementation.
    type Port: Objects;

    /// The implementation.
    fn port(&self) -> &Self::Port;

    /// The time by the clock of the bucket.
    fn now(&self) -> Timestamp;

    /// Archives an object, as a lifecycle rule of the bucket does: S3 lists it but does not return
    /// its content.
    fn archive(&self, key: &str) -> impl Future<Output = Result<()>>;
}

/// More objects than one page of S3.
const MANY: usize = 1002;
/// The number of concurrent calls.
const AT_ONCE: usize = 25;

suite! {
    missing_object_is_none
    put_replaces_the_object
    put_file_stores_the_whole_file
    put_sealed_stores_the_content
    put_new_keeps_the_object_that_is_there
    put_new_of_the_same_content_is_the_writers_own
    put_new_has_one_winner
    put_new_writes_again_after_a_delete
    range_ends_with_the_object
    range_of_no_bytes_is_empty
    modified_is_the_second_of_the_last_write
    list_and_size_have_every_object_of_the_prefix
    copy_has_the_content
    archived_object_is_there_and_cannot_be_read
    delete_removes_the_object
    delete_all_removes_each_object
}

async fn missing_object_is_none<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/missing/a");
    ensure!(objects.get(key).await?.is_none());
    ensure!(objects.get_range(key, 0, 1).await?.is_none());
    ensure!(objects.modified(key).await?.is_none() && objects.get_modified(key).await?.is_none());
    ensure!(!objects.exists(key).await?);
    ensure!(!objects.copy(key, "contract/missing/b").await?, "a copy of nothing");
    ensure!(objects.list_after("contract/missing/", "").await?.is_empty());
    ensure!(objects.size("contract/missing/", 1).await? == 0);
    Ok(objects.delete(key).await?)
}

async fn put_replaces_the_object<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/put");
    for content in [&b"first"[..], b"second", b""] {
        objects.put(key, content.into()).await?;
        ensure!(objects.get(key).await?.as_deref() == Some(content));
    }
    ensure!(objects.exists(key).await?);
    Ok(())
}

async fn put_file_stores_the_whole_file<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key, content) = (fixture.port(), "contract/put-file", vec![7; 300 << 10]);
    // A file without a name, whose cursor is at its end.
    let mut file = tempfile::tempfile()?;
    file.write_all(&content)?;
    objects.put_file(key, &file).await?;
    ensure!(objects.get(key).await?.is_some_and(|stored| stored == content));
    Ok(())
}

async fn put_sealed_stores_the_content<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/put-sealed");
    objects.put_sealed(key, b"secret".into()).await?;
    ensure!(objects.get(key).await?.as_deref() == Some(&b"secret"[..]));
    Ok(())
}

async fn put_new_keeps_the_object_that_is_there<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/put-new");
    ensure!(objects.put_new(key, b"first".into()).await?);
    ensure!(!objects.put_new(key, b"second".into()).await?);
    ensure!(objects.get(key).await?.as_deref() == Some(&b"first"[..]));
    Ok(())
}

/// An answer may be lost. A writer that retries learns that its write succeeded.
async fn put_new_of_the_same_content_is_the_writers_own<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/put-again");
    for _ in 0..2 {
        ensure!(objects.put_new(key, b"mine".into()).await?);
    }
    Ok(())
}

async fn put_new_has_one_winner<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/race");
    let answers = try_join_all((0..8).map(|writer| objects.put_new(key, vec![writer]))).await?;
    ensure!(answers.iter().filter(|is_new| **is_new).count() == 1, "{answers:?}");
    let winner = answers.iter().position(|is_new| *is_new).and_then(|winner| u8::try_from(winner).ok());
    ensure!(objects.get(key).await? == winner.map(|winner| vec![winner]));
    Ok(())
}

async fn put_new_writes_again_after_a_delete<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/new-again");
    ensure!(objects.put_new(key, b"first".into()).await?);
    objects.delete(key).await?;
    ensure!(objects.put_new(key, b"second".into()).await?);
    Ok(())
}

async fn range_ends_with_the_object<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/range");
    objects.put(key, b"0123456789".into()).await?;
    for (offset, size, expected) in [(0, 4, Some(&b"0123"[..])), (3, 4, Some(b"3456")), (8, 100, Some(b"89")), (10, 1, None)] {
        ensure!(objects.get_range(key, offset, size).await?.as_deref() == expected, "{size} bytes from {offset}");
    }
    objects.put(key, Vec::new()).await?;
    ensure!(objects.get_range(key, 0, 1).await?.is_none(), "an empty object has no first byte");
    Ok(())
}

async fn range_of_no_bytes_is_empty<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/no-range");
    objects.put(key, b"0".into()).await?;
    for offset in [0, 1, 2] {
        ensure!(objects.get_range(key, offset, 0).await?.as_deref() == Some(&b""[..]), "at {offset}");
    }
    Ok(())
}

async fn modified_is_the_second_of_the_last_write<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/modified/a");
    let before = fixture.now();
    objects.put(key, b"content".into()).await?;
    let modified = objects.modified(key).await?.context("it is there")?;
    ensure!(objects.get_modified(key).await? == Some((b"content".into(), modified)));
    let seconds = before.as_second()..=fixture.now().as_second();
    ensure!(seconds.contains(&modified.as_second()), "{modified} is not from {before} on");
    ensure!(modified == modified.round(TimestampRound::new().smallest(Unit::Second))?, "{modified}");
    ensure!(objects.list_after("contract/modified/", "").await? == [(key.to_owned(), modified)]);
    Ok(())
}

async fn list_and_size_have_every_object_of_the_prefix<F: Fixture>(fixture: &F) -> Result<()> {
    let objects = fixture.port();
    let keys: Vec<_> = (0..MANY).map(|n| format!("contract/list/{n:04}")).collect();
    for keys in keys.chunks(AT_ONCE) {
        try_join_all(keys.iter().map(|key| objects.put(key, b"four".into()))).await?;
    }
    for key in ["contract/list", "contract/list0", "contract/lisp/0000"] {
        objects.put(key, Vec::new()).await?;
    }
    let mut found = Vec::new();
    loop {
        let page = objects.list_after("contract/list/", found.last().map_or("", String::as_str)).await?;
        if page.is_empty() {
            break;
        }
        found.extend(page.into_iter().map(|(key, _)| key));
    }
    ensure!(found == keys, "{} of {MANY} keys", found.len());
    let rest = objects.list_after("contract/list/", &keys[MANY - 2]).await?;
    ensure!(rest.iter().map(|(key, _)| key).eq(keys.last()), "{rest:?}");
    let sizes = [objects.size("contract/list/", 0).await?, objects.size("contract/list/", 10).await?];
    ensure!(sizes == [4 * MANY as u64, 10 * MANY as u64], "{sizes:?}");
    Ok(())
}

async fn copy_has_the_content<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, from, to) = (fixture.port(), "contract/copy/ä b+c%41:1", "contract/copy/to");
    objects.put(from, b"content".into()).await?;
    objects.put(to, b"other".into()).await?;
    ensure!(objects.copy(from, to).await?);
    for key in [from, to] {
        ensure!(objects.get(key).await?.as_deref() == Some(&b"content"[..]), "{key}");
    }
    Ok(())
}

async fn archived_object_is_there_and_cannot_be_read<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/archive/a");
    objects.put(key, b"content".into()).await?;
    fixture.archive(key).await?;
    ensure!(objects.exists(key).await? && objects.list_after("contract/archive/", "").await?.len() == 1);
    let refused = [
        objects.get(key).await.err(),
        objects.get_range(key, 0, 1).await.err(),
        objects.copy(key, "contract/archive/b").await.err(),
        objects.put_new(key, b"content".into()).await.err(),
    ];
    ensure!(refused.iter().all(|error| matches!(error, Some(Error::Permanent { .. }))), "{refused:?}");
    objects.put(key, b"new".into()).await?;
    ensure!(objects.get(key).await?.as_deref() == Some(&b"new"[..]));
    Ok(())
}

async fn delete_removes_the_object<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, key) = (fixture.port(), "contract/delete/a");
    objects.put(key, b"content".into()).await?;
    for deleted in join_all([objects.delete(key), objects.delete(key)]).await {
        deleted?;
    }
    ensure!(objects.get(key).await?.is_none() && objects.list_after("contract/delete/", "").await?.is_empty());
    Ok(())
}

async fn delete_all_removes_each_object<F: Fixture>(fixture: &F) -> Result<()> {
    let (objects, keys) = (fixture.port(), ["contract/delete-all/a:b", "contract/delete-all/c&d", "contract/delete-all/missing"]);
    for key in [keys[0], keys[1], "contract/delete-all/other"] {
        objects.put(key, b"x".into()).await?;
    }
    for _ in 0..2 {
        objects.delete_all(&keys).await?;
        let left = objects.list_after("contract/delete-all/", "").await?;
        ensure!(left.len() == 1 && left[0].0.ends_with("/other"), "{left:?}");
    }
    Ok(())
}
