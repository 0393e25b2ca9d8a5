//! The log of a run: all that the runner prints. It is also stored in chunks in the task's folder, for users without access to
//! AWS.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    convert::Infallible,
    io::{self, Write as _},
    mem,
    time::Duration,
};

use backon::Retryable as _;
use driftless_contract::keys::{MAX_LOG_CHUNK_BYTES, MAX_LOG_CHUNKS};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::s3::{StoreError, back_off};

/// How long the first line waits for others to share its chunk.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// Each chunk waits a quarter longer than the last, up to this: a run of 13 h needs 130 chunks, one of 23 h 220.
const LONGEST_WAIT: Duration = Duration::from_secs(400);

/// How long the end of a run waits for its log. ECS gives a task that it stops 12 s more than Pulumi gets.
const END_WITHIN: Duration = Duration::from_secs(3);

/// The maximum size of the waiting lines, in bytes. Beyond it, the oldest lines are in standard output only.
const MAX_WAITING: usize = 7 * MAX_LOG_CHUNK_BYTES;

/// If more lines wait than one chunk holds, they get additional chunks, this many in the whole run. After that, only the newest
/// lines of each wait are stored.
const SPARE_CHUNKS: usize = 150;

/// The chunk numbers that are reserved for the end of the run.
const END_CHUNKS: usize = 16;

/// The maximum length of the note about lines that are left out, in bytes.
const MAX_NOTE_BYTES: usize = 128;

/// The log of a run.
pub(crate) struct Log {
    kept: RefCell<Kept>,
    said: Notify,
    /// A failure was reported.
    told: Cell<bool>,
}

struct Kept {
    waiting: String,
    /// The number of lines before the waiting ones that are left out.
    left_out: usize,
    /// Chunks that are not known to be stored. A chunk whose answer was lost is written again unchanged: the first write counts.
    chunks: VecDeque<String>,
    /// The number of the first of them.
    next: u16,
    spare: usize,
    wait: Duration,
}

impl Default for Log {
    fn default() -> Self {
        let kept =
            Kept { waiting: String::new(), left_out: 0, chunks: VecDeque::new(), next: 1, spare: SPARE_CHUNKS, wait: FIRST_WAIT };
        Self { kept: RefCell::new(kept), said: Notify::new(), told: Cell::new(false) }
    }
}

impl Log {
    /// Prints a line with secrets masked, and adds it to the next chunk.
    pub(crate) fn say(&self, line: &str) {
        print(line);
        self.add(line);
    }

    /// The number of stored chunks.
    pub(crate) fn stored(&self) -> u16 {
        self.kept.borrow().next - 1
    }

    fn add(&self, line: &str) {
        self.kept.borrow_mut().add(line);
        self.said.notify_one();
    }

    /// Stores chunks during the run; `put` writes a chunk, once.
    pub(crate) async fn keep(&self, put: &impl AsyncFn(u16, String) -> Result<(), StoreError>) -> Infallible {
        loop {
            while self.kept.borrow().is_empty() {
                self.said.notified().await;
            }
            let wait = self.kept.borrow_mut().lengthen();
            sleep(wait).await;
            self.kept.borrow_mut().cut_some();
            if let Err(error) = self.store(put).await {
                self.tell(&error.to_string());
            }
        }
    }

    /// Stores the rest, within a short time.
    pub(crate) async fn finish(&self, put: &impl AsyncFn(u16, String) -> Result<(), StoreError>) {
        self.kept.borrow_mut().cut_all();
        match timeout(END_WITHIN, self.store(put)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.tell(&error.to_string()),
            Err(_) => self.tell(&format!("not stored within {END_WITHIN:?}")),
        }
    }

    async fn store(&self, put: &impl AsyncFn(u16, String) -> Result<(), StoreError>) -> Result<(), StoreError> {
        loop {
            let Some((number, text)) = self.kept.borrow().first() else { return Ok(()) };
            let once = || put(number, text.clone());
            once.retry(back_off()).when(StoreError::passes).await?;
            self.kept.borrow_mut().stored();
        }
    }

    /// Reports once that the log in the cluster is missing or incomplete. The run continues.
    fn tell(&self, error: &str) {
        if !self.told.replace(true) {
            print(&format!("driftless: cannot store the log for the cluster; this output has the whole log: {error}"));
        }
    }
}

impl Kept {
    fn add(&mut self, line: &str) {
        self.waiting.push_str(line);
        self.waiting.push('\n');
        if self.waiting.len() > MAX_WAITING {
            // Half of it, so that not every further line moves all others.
            self.leave_out_before(MAX_WAITING / 2);
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.chunks.is_empty()
    }

    /// Returns how long to wait for the next chunk, and lengthens the wait after it.
    fn lengthen(&mut self) -> Duration {
        let longer = LONGEST_WAIT.min(self.wait * 5 / 4);
        mem::replace(&mut self.wait, longer)
    }

    /// Keeps the whole lines within the last `bytes` bytes.
    fn leave_out_before(&mut self, bytes: usize) {
        if self.waiting.len() <= bytes {
            return;
        }
        let from = self.waiting.ceil_char_boundary(self.waiting.len() - bytes);
        let from = self.waiting[from..].find('\n').map_or(self.waiting.len(), |end| from + end + 1);
        self.left_out += self.waiting[..from].matches('\n').count();
        self.waiting.drain(..from);
    }

    /// Makes chunks of the waiting lines, unless earlier chunks are not stored yet.
    fn cut_some(&mut self) {
        if !self.chunks.is_empty() {
            return;
        }
        let more = self.waiting.len() / (MAX_LOG_CHUNK_BYTES - MAX_NOTE_BYTES);
        let is_spare = more <= self.spare;
        if is_spare {
            self.spare -= more;
        }
        self.cut(if is_spare { more + 1 } else { 1 }, END_CHUNKS);
    }

    /// Makes chunks of all waiting lines.
    fn cut_all(&mut self) {
        self.cut(END_CHUNKS, 0);
    }

    /// Makes up to `most` chunks of the newest waiting lines, and leaves `reserved` numbers unused.
    fn cut(&mut self, most: usize, reserved: usize) {
        let used = usize::from(self.next) - 1 + self.chunks.len();
        let most = most.min(usize::from(MAX_LOG_CHUNKS).saturating_sub(used + reserved));
        if most == 0 {
            return;
        }
        // A chunk ends at a character boundary, so it may be some bytes shorter than its maximum.
        self.leave_out_before(most * (MAX_LOG_CHUNK_BYTES - char::MAX_LEN_UTF8) - MAX_NOTE_BYTES);
        let mut rest = mem::take(&mut self.waiting);
        let left_out = mem::take(&mut self.left_out);
        if left_out > 0 {
            rest.insert_str(0, &format!("[{left_out} lines left out; the whole log is at status.driftless.log of the Update]\n"));
        }
        while !rest.is_empty() {
            let after = rest.split_off(rest.floor_char_boundary(MAX_LOG_CHUNK_BYTES));
            self.chunks.push_back(mem::replace(&mut rest, after));
        }
    }

    /// The next chunk to store: its name and its text.
    fn first(&self) -> Option<(u16, String)> {
        self.chunks.front().map(|text| (self.next, text.clone()))
    }

    fn stored(&mut self) {
        self.chunks.pop_front();
        self.next += 1;
    }
}

/// Writes a line to standard output. A closed one is ignored.
pub(crate) fn print(line: &str) {
    let _: io::Result<()> = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use http::{Method, StatusCode};
    use tokio::time::Instant;

    use super::*;

    /// The stored chunks by name, with the seconds since the start.
    #[derive(Default)]
    struct Folder(RefCell<BTreeMap<u16, (u64, String)>>);

    impl Folder {
        fn text(&self) -> String {
            self.0.borrow().values().map(|(_, text)| text.as_str()).collect()
        }
    }

    /// Logs `lines`, each this many seconds after the one before, and ends `last` seconds after them.
    async fn run(lines: impl Iterator<Item = (u64, String)>, last: u64) -> Folder {
        let (log, folder, began) = (Log::default(), Folder::default(), Instant::now());
        let put = async |number: u16, text: String| {
            assert!(text.len() <= MAX_LOG_CHUNK_BYTES, "{number} has {} bytes", text.len());
            let before = folder.0.borrow_mut().insert(number, (began.elapsed().as_secs(), text));
            assert!(before.is_none(), "each chunk is written once");
            Ok(())
        };
        let saying = async {
            for (seconds, line) in lines {
                sleep(Duration::from_secs(seconds)).await;
                log.add(&line);
            }
            sleep(Duration::from_secs(last)).await;
        };
        tokio::select! {
            () = saying => {}
            never = log.keep(&put) => match never {},
        }
        log.finish(&put).await;
        folder
    }

    #[tokio::test(start_paused = true)]
    async fn first_lines_are_stored_soon_and_the_rest_at_the_end() {
        let line = |seconds, line: &str| (seconds, line.to_owned());
        let folder = run([line(5, "a"), line(1, "b"), line(3, "c"), line(60, "d")].into_iter(), 0).await;
        let stored: Vec<_> = folder.0.into_inner().into_iter().collect();
        let expected = [(1, 7, "a\nb\n"), (2, 11, "c\n"), (3, 69, "d\n")];
        assert_eq!(stored, expected.map(|(number, at, text)| (number, (at, text.to_owned()))));
    }

    #[tokio::test(start_paused = true)]
    async fn run_of_any_length_has_all_its_lines_in_few_chunks() {
        for (hours, most) in [(0, 1), (1, 40), (13, 150), (23, 230)] {
            let count = hours * 3600 / 10;
            let lines = || (0..count).map(|n| (10, format!("line {n} é")));
            let folder = run(lines(), 0).await;
            assert_eq!(folder.text(), lines().map(|(_, line)| line + "\n").collect::<String>());
            let chunks = folder.0.borrow().len();
            assert!(chunks <= most, "{chunks} chunks in {hours} hours");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn burst_is_stored_whole_and_of_endless_output_the_newest_lines_are() {
        let lines = |count: u32| (0..count).map(|n| (0, format!("line {n} {}", "é".repeat(1000))));
        let burst = run(lines(200), 10).await.text();
        assert_eq!(burst, lines(200).map(|(_, line)| line + "\n").collect::<String>());
        // 4 KiB a second for 13 hours.
        let folder = run((0..23_400).map(|n| (2, format!("line {n} {}", "é".repeat(4096)))), 0).await;
        let (text, chunks) = (folder.text(), folder.0.borrow().len());
        assert!(chunks <= usize::from(MAX_LOG_CHUNKS), "{chunks}");
        let notes = || text.lines().filter_map(|line| line.strip_prefix('[')?.split_once(" lines left out; "));
        let left_out: usize = notes().map(|(count, _)| count.parse::<usize>().unwrap()).sum();
        let there = text.lines().filter(|line| line.starts_with("line ")).count();
        assert!(notes().count() > 10 && left_out + there == 23_400, "{left_out} of {there}");
        assert!(text.lines().last().unwrap().starts_with("line 23399 "));
        let longest = run([(1, "x".repeat(1 << 20)), (1, "y".into())].into_iter(), 1).await.text();
        assert_eq!(longest, "[1 lines left out; the whole log is at status.driftless.log of the Update]\ny\n");
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_that_run_out_leave_some_for_the_end() {
        let log = Log::default();
        for n in 0..usize::from(MAX_LOG_CHUNKS) {
            let mut kept = log.kept.borrow_mut();
            kept.add(&format!("line {n}"));
            kept.cut_some();
            while kept.first().is_some() {
                kept.stored();
            }
        }
        let mut kept = log.kept.borrow_mut();
        assert_eq!(usize::from(kept.next), usize::from(MAX_LOG_CHUNKS) - END_CHUNKS + 1);
        kept.cut_all();
        assert_eq!(kept.chunks.len(), 1);
        assert!(kept.chunks[0].ends_with("line 399\n"), "{:?}", kept.chunks);
    }

    fn refused(status: u16) -> StoreError {
        let status = StatusCode::from_u16(status).unwrap();
        StoreError::Status { method: Method::PUT, name: "out/log/0001".into(), status, code: String::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_log_delays_the_end_by_seconds_and_is_reported_once() {
        for status in [403, 503] {
            let (log, tries) = (Log::default(), Cell::new(0));
            let put = async |_: u16, _: String| {
                tries.set(tries.get() + 1);
                Err(refused(status))
            };
            let saying = async {
                for n in 0..3600 {
                    log.add(&format!("line {n} {}", "x".repeat(1 << 10)));
                    sleep(Duration::from_secs(1)).await;
                }
            };
            tokio::select! {
                () = saying => {}
                never = log.keep(&put) => match never {},
            }
            let ended = Instant::now();
            log.finish(&put).await;
            assert!(ended.elapsed() <= END_WITHIN && log.told.get());
            assert!((5..500).contains(&tries.get()), "{} tries", tries.get());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn chunk_whose_answer_was_lost_is_written_again_as_it_was() {
        let (log, written) = (Log::default(), RefCell::<Vec<(u16, String)>>::default());
        let put = async |number: u16, text: String| {
            written.borrow_mut().push((number, text));
            if written.borrow().len() == 1 { std::future::pending().await } else { Ok(()) }
        };
        let saying = async {
            log.add("a");
            sleep(Duration::from_secs(3)).await;
            log.add("b");
        };
        tokio::select! {
            () = saying => {}
            never = log.keep(&put) => match never {},
        }
        log.finish(&put).await;
        let chunk = |number, text: &str| (number, text.to_owned());
        assert_eq!(written.into_inner(), [chunk(1, "a\n"), chunk(1, "a\n"), chunk(2, "b\n")]);
    }
}
