//! The cache of dependencies: restores what an earlier run installed, and packs what this one did.
//!
//! A run never fails because of it. An archive that cannot be restored whole within a minute is
//! removed, and its content installed.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io,
    path::{Component, Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use backon::Retryable as _;
use bytes::{Buf as _, Bytes};
use driftless_contract::{Installed, Layer, RunCache};
use futures::{TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::mpsc::{self, Receiver},
    task::{self, JoinSet},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    archive::{self, Counts, Frame, Index, Limits, PackError, Packed, Root, Selection, Tail},
    places::{Files, Places},
    s3::{Folder, STORED_WITHIN, StoreError, back_off},
};

/// The time limit for restoring an archive.
const RESTORED_WITHIN: Duration = Duration::from_mins(1);

/// Frames of an archive that are restored at once.
const FRAMES_AT_ONCE: usize = 4;

/// Pieces of a frame that wait to be decompressed.
const PIECES: usize = 4;

/// Enough of an archive's end for the index of most of them, in bytes.
const TAIL: usize = 64 << 10;

/// The content of an archive is at most so many times as large as the archive.
const MAX_RATIO: u64 = 20;

/// The maximum number of files, directories and links of an archive.
const MAX_ENTRIES: u64 = 400_000;

/// The label of an archive.
#[derive(Serialize, Deserialize)]
struct Origin {
    /// The digest of the image that the archive completes.
    image: String,
    /// The packed paths, each with the name of its root.
    paths: Vec<(String, PathBuf)>,
    /// The plugins that were there.
    plugins: BTreeSet<PathBuf>,
}

/// The cache as a run sees it.
pub(crate) struct Cache<'a> {
    folder: &'a Folder,
    spec: Option<&'a RunCache>,
    places: Places,
    /// The digest of the image: what is installed belongs to it.
    image: String,
    scratch: PathBuf,
    /// The places that existed before anything was installed, in the image or the source.
    before: BTreeMap<Layer, BTreeSet<PathBuf>>,
    /// The restored places.
    restored: RefCell<BTreeMap<Layer, BTreeSet<PathBuf>>>,
    /// Whether the run has the plugins with which its packages were stored.
    has_plugins: Cell<bool>,
    /// The archive of the packages, or why there is none, once Pulumi has installed them.
    packages: RefCell<Option<Result<Packed, String>>>,
    told: RefCell<Told>,
}

/// The report on the run's dependencies so far.
#[derive(Default)]
struct Told {
    report: Option<Installed>,
    content: u64,
    /// Why a layer could not be restored.
    problem: Option<String>,
}

impl<'a> Cache<'a> {
    /// The cache of a run whose source is in its place. `image` is empty if ECS does not tell the
    /// image's digest.
    pub(crate) fn new(folder: &'a Folder, spec: Option<&'a RunCache>, places: Places, image: String, scratch: &Path) -> Self {
        let found = |layer| (layer, paths(&places.installed(layer).unwrap_or_default()));
        let before = if spec.is_some() { Layer::ALL.into_iter().map(found).collect() } else { BTreeMap::new() };
        let (restored, has_plugins) = (RefCell::default(), Cell::new(false));
        let (packages, told) = (RefCell::default(), RefCell::default());
        Self { folder, spec, places, image, scratch: scratch.to_owned(), before, restored, has_plugins, packages, told }
    }

    /// The variables that have tools put their results where they can be kept, and that the run's
    /// environment does not have.
    pub(crate) fn variables(spec: Option<&RunCache>, compiled: &Path) -> Vec<(OsString, OsString)> {
        let variables = [("TS_NODE_CACHE_DIRECTORY", compiled.into()), ("POETRY_VIRTUALENVS_IN_PROJECT", "true".into())];
        variables.into_iter().filter(|_| spec.is_some()).map(|(name, value)| (name.into(), value)).collect()
    }

    /// Returns whether restored packages are all that `pulumi install` would install.
    pub(crate) fn is_complete(&self) -> bool {
        self.places.is_in_place() && self.has_plugins.get()
    }

    /// Returns the files of the source before an installation, for [`Self::pack_packages`].
    pub(crate) fn files(&self) -> Option<Files> {
        let is_stored = self.spec.is_some_and(|spec| spec.stored.contains(&Layer::Dependencies));
        (is_stored && self.places.is_in_place()).then(|| self.places.others())
    }

    /// Packs the packages that Pulumi has just installed into the source, before the program can
    /// change them. Those of an entry that was restored without its plugins are packed again, with
    /// the plugins of this run.
    pub(crate) async fn pack_packages(&self, before: &Files) {
        self.restored.borrow_mut().remove(&Layer::Dependencies);
        let packed = async {
            let Some(selections) = self.fresh(Layer::Dependencies)? else {
                return Err("the installation added nothing to the source".into());
            };
            if let Some(doubt) = self.places.doubt() {
                return Err(doubt);
            }
            if self.places.others() != *before {
                return Err("the installation changed files of the source".into());
            }
            self.pack(selections, self.archive(Layer::Dependencies)).await?.map_err(|error| error.to_string())
        };
        let packed = packed.await;
        self.packages.replace(Some(packed));
    }

    /// Restores a layer, if the run was given its archive. Returns whether it did.
    pub(crate) async fn restore(&self, layer: Layer) -> bool {
        let is_given = self.spec.is_some_and(|spec| spec.restored.contains(&layer));
        if !is_given {
            return false;
        }
        let since = Instant::now();
        match self.try_restore(layer).await {
            Ok((bytes, counts, found)) => {
                self.restored.borrow_mut().insert(layer, found);
                let mut told = self.told.borrow_mut();
                told.content += counts.content;
                let content = told.content;
                let report = told.report.get_or_insert_default();
                report.restored.insert(layer);
                report.restored_bytes += bytes;
                report.millis += millis(since);
                report.summary = format!("restored {} in {}", megabytes(content), seconds(report.millis));
                true
            }
            Err(problem) => {
                self.told.borrow_mut().problem = Some(format!("cannot use the cache entry of {}: {problem}", layer.as_str()));
                false
            }
        }
    }

    /// Notes that `pulumi install` ran.
    pub(crate) fn installed(&self, took: Duration) {
        let has_packages = !self.places.roots(Layer::Dependencies).is_empty();
        let is_needed = has_packages && !self.restored.borrow().contains_key(&Layer::Dependencies);
        let mut told = self.told.borrow_mut();
        let nothing = has_packages && self.places.installed(Layer::Dependencies).is_ok_and(|found| found.is_empty());
        let why = match (self.spec, told.problem.take()) {
            (Some(_), Some(problem)) => format!(": {problem}"),
            (Some(RunCache { uncached: Some(why), .. }), None) => format!(": {why}"),
            (Some(_), None) if nothing => ": the packages are not in the source".into(),
            (Some(_), None) if is_needed => ": no cache entry".into(),
            (None, _) | (Some(_), None) => String::new(),
        };
        let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let report = told.report.get_or_insert_default();
        let restored = if report.restored.is_empty() { String::new() } else { format!("{}, ", report.summary) };
        report.millis += took;
        report.missed = is_needed && !nothing && self.spec.is_some_and(|spec| spec.uncached.is_none());
        report.summary = format!("{restored}installed in {}{why}", seconds(took));
    }

    /// How the run got its dependencies, so far as is known.
    pub(crate) fn report(&self) -> Option<Installed> {
        self.told.borrow().report.clone()
    }

    /// Returns the size of the archive, the counts of its content, and the places that it filled.
    async fn try_restore(&self, layer: Layer) -> Result<(u64, Counts, BTreeSet<PathBuf>), String> {
        if self.before.get(&layer).is_some_and(|before| layer != Layer::Plugins && !before.is_empty()) {
            return Err("its directory is not empty".into());
        }
        if self.image.is_empty() {
            return Err("ECS does not report the digest of the image".into());
        }
        let key = self.folder.keys.restored(layer);
        let (index, bytes) = self.index(&key).await?;
        let origin: Origin = serde_json::from_str(&index.origin).map_err(|error| error.to_string())?;
        if origin.image != self.image {
            return Err("it belongs to another image".into());
        }
        let tasks = RefCell::default();
        let restoring = timeout(RESTORED_WITHIN, self.frames(&key, layer, index, &tasks));
        let restored = restoring.await.unwrap_or_else(|_| Err(format!("it took longer than {}s", RESTORED_WITHIN.as_secs())));
        let restored = restored.map(|()| bytes);
        let mut tasks: JoinSet<Result<Counts, String>> = tasks.into_inner();
        let mut done = restored.map(|bytes| (bytes, Counts::default()));
        // A frame that breaks off ends its thread, which writes until then.
        while let Some(frame) = tasks.join_next().await {
            let frame = frame.unwrap_or_else(|error| Err(error.to_string()));
            done = done.and_then(|(bytes, counts)| Ok((bytes, counts + frame?)));
        }
        // Such as a virtual environment whose Python is not in this image.
        let done = done.and_then(|(bytes, counts)| Ok((bytes, counts, paths(&self.places.installed(layer)?))));
        if done.is_err() {
            self.remove(layer, &origin.paths);
        } else if layer == Layer::Dependencies {
            self.has_plugins.set(origin.plugins.is_subset(&self.plugins()));
        }
        done
    }

    /// The names of the plugins that Pulumi finds.
    fn plugins(&self) -> BTreeSet<PathBuf> {
        let found = self.places.installed(Layer::Plugins).unwrap_or_default();
        found.into_iter().flat_map(|selection| selection.paths).collect()
    }

    /// Reads the frames of an archive and has each restored on a thread of its own.
    async fn frames(
        &self,
        key: &str,
        layer: Layer,
        index: Index,
        tasks: &RefCell<JoinSet<Result<Counts, String>>>,
    ) -> Result<(), String> {
        let roots = &self.places.roots(layer);
        let frames = stream::iter(index.frames.into_iter().map(Ok::<_, String>));
        frames.try_for_each_concurrent(FRAMES_AT_ONCE, |frame| self.frame(key, frame, roots.clone(), tasks)).await
    }

    async fn index(&self, key: &str) -> Result<(Index, u64), String> {
        let mut tail = TAIL;
        loop {
            let (end, bytes) = self.folder.get_tail(key, tail).await.map_err(|error| error.to_string())?;
            match archive::index(&end, bytes, &self.limits()).map_err(|error| error.to_string())? {
                Tail::Index(index) => return Ok((index, bytes)),
                Tail::Needs(more) if more > tail => tail = more,
                Tail::Needs(_) => return Err("it is truncated".into()),
            }
        }
    }

    async fn frame(
        &self,
        key: &str,
        frame: Frame,
        roots: Vec<Root>,
        tasks: &RefCell<JoinSet<Result<Counts, String>>>,
    ) -> Result<(), String> {
        let get = || self.folder.get_range(key, frame.offset, frame.size);
        let content = get.retry(back_off()).when(StoreError::passes).await;
        let mut content = content.map_err(|error| error.to_string())?;
        let (pieces, receiver) = mpsc::channel(PIECES);
        tasks.borrow_mut().spawn_blocking(move || {
            archive::restore(&frame, Pieces { receiver, piece: Bytes::new() }, &roots).map_err(|error| error.to_string())
        });
        while let Some(piece) = content.chunk().await.map_err(|error| error.to_string())? {
            // The thread has ended with an error, which its handle returns.
            if pieces.send(piece).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        let archive = self.spec.map_or(0, |spec| spec.max_bytes);
        Limits { content: archive.saturating_mul(MAX_RATIO), entries: MAX_ENTRIES, archive }
    }

    /// Removes the paths of an archive, so that an installation starts afresh after a part of them
    /// was restored.
    fn remove(&self, layer: Layer, paths: &[(String, PathBuf)]) {
        let roots = self.places.roots(layer);
        let is_plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        for (name, path) in paths.iter().filter(|(_, path)| is_plain(path)) {
            let Some(root) = roots.iter().find(|root| root.name == *name) else { continue };
            let place = root.dir.join(path);
            if !self.before.get(&layer).is_some_and(|before| before.contains(&place)) {
                // `pulumi install` overwrites a place that cannot be removed, or fails.
                let _: io::Result<()> = fs::remove_dir_all(&place).or_else(|_| fs::remove_file(&place));
            }
        }
    }

    /// Stores the layers that the run installed and that no entry has. Returns what was not stored
    /// and why.
    pub(crate) async fn store(&self) -> Vec<String> {
        let (mut problems, end) = (Vec::new(), Instant::now() + STORED_WITHIN);
        for layer in self.spec.iter().flat_map(|spec| &spec.stored) {
            let since = Instant::now();
            let stored = timeout_at(end, self.try_store(*layer)).await;
            match stored.unwrap_or_else(|_| Err(format!("storing all layers took longer than {}s", STORED_WITHIN.as_secs()))) {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    let mut told = self.told.borrow_mut();
                    let report = told.report.get_or_insert_default();
                    report.stored.insert(*layer);
                    report.stored_bytes += bytes;
                    report.store_millis += millis(since);
                }
                Err(problem) => problems.push(format!("layer {} not stored: {problem}", layer.as_str())),
            }
        }
        problems
    }

    async fn try_store(&self, layer: Layer) -> Result<Option<u64>, String> {
        let path = self.archive(layer);
        let packed = match layer {
            Layer::Dependencies if self.places.is_in_place() => match self.packages.take() {
                Some(packages) => packages?,
                None => return Ok(None),
            },
            _ => {
                let Some(mut selections) = self.fresh(layer)? else { return Ok(None) };
                if layer == Layer::Dependencies
                    && let Some(doubt) = self.places.doubt()
                {
                    return Err(doubt);
                }
                let packed = match self.pack(selections.clone(), path.clone()).await? {
                    Err(PackError::TooLarge { .. }) if self.restored.borrow().contains_key(&layer) => {
                        // Without what an earlier run had, and this one may not need any more.
                        let restored = self.restored.borrow().get(&layer).cloned().unwrap_or_default();
                        without(&mut selections, &restored);
                        self.pack(selections, path.clone()).await?
                    }
                    packed => packed,
                };
                packed.map_err(|error| error.to_string())?
            }
        };
        let key = self.folder.keys.installed(layer);
        let put = || self.folder.put_file(&key, &path, packed.bytes, &packed.sha256);
        let stored = put.retry(back_off()).when(StoreError::passes).await;
        let _: io::Result<()> = fs::remove_file(&path);
        stored.map_err(|error| error.to_string())?;
        Ok(Some(packed.bytes))
    }

    fn archive(&self, layer: Layer) -> PathBuf {
        self.scratch.join(format!("{}.archive", layer.as_str()))
    }

    /// Packs on a thread of its own, which ends when this future does.
    async fn pack(&self, selections: Vec<Selection>, path: PathBuf) -> Result<Result<Packed, PackError>, String> {
        let named = |Selection { root, paths }: &Selection| {
            let name = root.name.clone();
            paths.iter().map(|path| (name.clone(), path.clone())).collect::<Vec<_>>()
        };
        let paths = selections.iter().flat_map(named).collect();
        let origin = Origin { image: self.image.clone(), paths, plugins: self.plugins() };
        let origin = serde_json::to_string(&origin).map_err(|error| error.to_string())?;
        let limits = self.limits();
        let owner = Arc::new(());
        let wanted = Arc::downgrade(&owner);
        let packed = task::spawn_blocking(move || {
            let out = Abandonable { out: io::BufWriter::new(fs::File::create(&path)?), wanted };
            archive::pack(&selections, &origin, &limits, out).inspect_err(|_| drop(fs::remove_file(&path)))
        });
        let packed = packed.await.map_err(|error| error.to_string());
        drop(owner);
        packed
    }

    /// What a layer consists of now, without what was there before anything was installed. `None`
    /// if an entry has all of it.
    fn fresh(&self, layer: Layer) -> Result<Option<Vec<Selection>>, String> {
        let before = self.before.get(&layer).cloned().unwrap_or_default();
        if self.image.is_empty() {
            return Err("ECS does not report the digest of the image".into());
        }
        if layer != Layer::Plugins && !before.is_empty() {
            return Err("its directory was not empty".into());
        }
        let mut found = self.places.installed(layer)?;
        without(&mut found, &before);
        let restored = self.restored.borrow();
        let has_all = |restored: &BTreeSet<PathBuf>| paths(&found).is_subset(restored);
        let is_stored = restored.get(&layer).is_some_and(has_all);
        Ok((!found.is_empty() && !is_stored).then_some(found))
    }
}

/// The places of selections.
fn paths(selections: &[Selection]) -> BTreeSet<PathBuf> {
    selections.iter().flat_map(|Selection { root, paths }| paths.iter().map(|path| root.dir.join(path))).collect()
}

/// Takes places out of selections.
fn without(selections: &mut Vec<Selection>, places: &BTreeSet<PathBuf>) {
    for Selection { root, paths } in selections.iter_mut() {
        paths.retain(|path| !places.contains(&root.dir.join(path)));
    }
    selections.retain(|selection| !selection.paths.is_empty());
}

/// A file that cannot be written any more when its owner is gone.
struct Abandonable {
    out: io::BufWriter<fs::File>,
    wanted: Weak<()>,
}

impl io::Write for Abandonable {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.wanted.strong_count() == 0 {
            return Err(io::Error::other("the archive is no longer needed"));
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A frame, piece by piece as it comes. It breaks off where the sender goes.
struct Pieces {
    receiver: Receiver<Bytes>,
    piece: Bytes,
}

impl io::Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// `0.6s`, `41s`
fn seconds(millis: u64) -> String {
    if millis < 10_000 { format!("{}.{}s", millis / 1000, millis / 100 % 10) } else { format!("{}s", millis / 1000) }
}

/// `0.4 MB`, `98 MB`
fn megabytes(bytes: u64) -> String {
    if bytes < 10_000_000 {
        format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10)
    } else {
        format!("{} MB", bytes / 1_000_000)
    }
}
