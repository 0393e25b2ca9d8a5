//! The log of a run: all that the runner prints. It is also stored in the task's folder, for users
//! without access to AWS: in chunks, which are written once, and as the live log, which is written
//! again whenever there is more.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    convert::Infallible,
    io::{self, Write as _},
    mem,
    time::Duration,
};

use backon::Retryable as _;
use driftless_contract::keys::{MAX_LIVE_LOG_BYTES, MAX_LOG_CHUNK_BYTES, MAX_LOG_CHUNKS};
use tokio::{
    join,
    sync::Notify,
    time::{sleep, timeout},
};

use crate::s3::{StoreError, back_off};

/// How long the first line waits for others to share its chunk.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// Each chunk waits a quarter longer than the last, up to this: a run of 13 h needs 130 chunks, one
/// of 23 h 220.
const LONGEST_WAIT: Duration = Duration::from_secs(400);

/// How long the end of a run waits for its log. ECS gives a task that it stops 12 s more than
/// Pulumi gets.
const END_WITHIN: Duration = Duration::from_secs(3);

/// The maximum size of the waiting lines, in bytes. Beyond it, the oldest lines are in standard
/// output only.
const MAX_WAITING: usize = 7 * MAX_LOG_CHUNK_BYTES;

/// If more lines wait than one chunk holds, they get additional chunks, this many in the whole run.
/// After that, only the newest lines of each wait are stored.
const SPARE_CHUNKS: usize = 150;

/// The chunk numbers that are reserved for the end of the run.
const END_CHUNKS: usize = 16;

/// How long a new line waits for others to share its write of the live log.
const GATHER: Duration = Duration::from_millis(100);

/// The shortest time between two writes of the live log, so that a reader has a line within two
/// seconds.
const LIVE_PERIOD: Duration = Duration::from_millis(900);

/// A write of a longer live log waits this much longer for each MiB of it, because it sends all of
/// it.
const LIVE_PERIOD_PER_MIB: Duration = Duration::from_secs(1);

/// The last line of a live log that is too long.
const LIVE_END: &str = "[the log is too long to continue here; the whole log is at status.driftless.log of the Update]\n";

/// The maximum length of the note about lines that are left out, in bytes.
const MAX_NOTE_BYTES: usize = 128;

/// The log of a run.
pub(crate) struct Log {
    kept: RefCell<Kept>,
    said: Notify,
    live: RefCell<Live>,
    live_said: Notify,
    /// The run has ended: nothing waits for more lines.
    over: Cell<bool>,
    ended: Notify,
    /// A failure was reported.
    told: Cell<bool>,
}

/// The live log.
#[derive(Default)]
struct Live {
    text: String,
    /// The number of stored bytes.
    stored: usize,
    is_full: bool,
}

struct Kept {
    waiting: String,
    /// The number of lines before the waiting ones that are left out.
    left_out: usize,
    /// Chunks that are not known to be stored. A chunk whose answer was lost is written again
    /// unchanged: the first write counts.
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
        let live = RefCell::default();
        Self {
            kept: RefCell::new(kept),
            said: Notify::new(),
            live,
            live_said: Notify::new(),
            over: Cell::new(false),
            ended: Notify::new(),
            told: Cell::new(false),
        }
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
        self.live.borrow_mut().add(line);
        self.live_said.notify_one();
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

    /// Stores the live log during the run, and then the rest of it; `put` replaces it. One write
    /// follows another: S3 may carry out a write that is abandoned, and after the next one.
    pub(crate) async fn show(&self, put: &impl AsyncFn(String) -> Result<(), StoreError>) {
        loop {
            while self.live.borrow().is_stored() {
                if self.over.get() {
                    return;
                }
                self.live_said.notified().await;
            }
            self.rest(GATHER).await;
            let wait = match self.store_live(put).await {
                Ok(()) => self.live.borrow().period(),
                Err(error) => {
                    self.tell(&error.to_string());
                    if self.over.get() {
                        return;
                    }
                    LONGEST_WAIT
                }
            };
            self.rest(wait).await;
        }
    }

    /// Waits, until the run ends at the latest.
    async fn rest(&self, time: Duration) {
        if !self.over.get() {
            tokio::select! {
                () = sleep(time) => {}
                () = self.ended.notified() => {}
            }
        }
    }

    /// Stores the rest of both, within a short time. `live` is what [`Self::show`] returned.
    pub(crate) async fn finish(&self, put: &impl AsyncFn(u16, String) -> Result<(), StoreError>, live: impl Future<Output = ()>) {
        self.over.set(true);
        self.ended.notify_one();
        self.live_said.notify_one();
        self.kept.borrow_mut().cut_all();
        let (chunks, live) = join!(timeout(END_WITHIN, self.store(put)), timeout(END_WITHIN, live));
        for stored in [chunks, live.map(Ok)] {
            match stored {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.tell(&error.to_string()),
                Err(_) => self.tell(&format!("not stored within {END_WITHIN:?}")),
            }
        }
    }

    async fn store_live(&self, put: &impl AsyncFn(String) -> Result<(), StoreError>) -> Result<(), StoreError> {
        if self.live.borrow().is_stored() {
            return Ok(());
        }
        let text = self.live.borrow().text.clone();
        let once = || put(text.clone());
        once.retry(back_off()).when(StoreError::passes).await?;
        self.live.borrow_mut().stored = text.len();
        Ok(())
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

impl Live {
    fn add(&mut self, line: &str) {
        if self.is_full {
            return;
        }
        self.is_full = self.text.len() + line.len() + LIVE_END.len() >= MAX_LIVE_LOG_BYTES;
        if self.is_full {
            self.text.push_str(LIVE_END);
        } else {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    fn is_stored(&self) -> bool {
        self.stored == self.text.len()
    }

    /// How long to wait after a write.
    fn period(&self) -> Duration {
        let mib = u32::try_from(self.text.len() >> 20).unwrap_or(u32::MAX);
        LIVE_PERIOD + LIVE_PERIOD_PER_MIB * mib
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
    use std::{collections::BTreeMap, pin::pin};

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

    /// Logs `lines`, each this many seconds after the one before, and ends `last` seconds after
    /// them.
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
        log.finish(&put, log.show(&async |_| Ok(()))).await;
        folder
    }

    /// The live logs that are stored while lines are printed, each this many milliseconds after the
    /// one before, with the milliseconds since the start.
    async fn run_live(lines: impl Iterator<Item = (u64, String)>) -> Vec<(u128, String)> {
        let (log, stored, began) = (Log::default(), RefCell::new(Vec::new()), Instant::now());
        let put = async |text: String| {
            stored.borrow_mut().push((began.elapsed().as_millis(), text));
            Ok(())
        };
        let saying = async {
            for (millis, line) in lines {
                sleep(Duration::from_millis(millis)).await;
                log.add(&line);
            }
        };
        let mut live = pin!(log.show(&put));
        tokio::select! {
            () = saying => {}
            () = &mut live => unreachable!("the run has not ended"),
        }
        log.finish(&async |_, _| Ok(()), live).await;
        stored.take()
    }

    #[tokio::test(start_paused = true)]
    async fn write_of_the_live_log_ends_before_the_last_one_begins() {
        let (log, begun, ended) = (Log::default(), RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let put = async |text: String| {
            begun.borrow_mut().push(text.clone());
            sleep(Duration::from_secs(1)).await;
            ended.borrow_mut().push(text);
            Ok(())
        };
        let saying = async {
            log.add("a");
            sleep(GATHER * 2).await;
            log.add("b");
        };
        let mut live = pin!(log.show(&put));
        tokio::select! {
            () = saying => {}
            () = &mut live => unreachable!("the run has not ended"),
        }
        log.finish(&async |_, _| Ok(()), live).await;
        assert_eq!(begun.take(), ["a\n", "a\nb\n"]);
        assert_eq!(ended.take(), ["a\n", "a\nb\n"]);
    }

    #[tokio::test(start_paused = true)]
    async fn live_log_has_each_line_within_a_second_and_is_whole_at_the_end() {
        let line = |millis, line: &str| (millis, line.to_owned());
        let stored = run_live([line(5000, "a"), line(50, "b"), line(100, "c"), line(60_000, "d")].into_iter()).await;
        let expected = [(5100, "a\nb\n"), (6100, "a\nb\nc\n"), (65_150, "a\nb\nc\nd\n")];
        assert_eq!(stored, expected.map(|(at, text)| (at, text.to_owned())));
        // A line in each tenth of a second for an hour.
        let stored = run_live((0..36_000).map(|n| (100, format!("line {n}")))).await;
        assert!(stored.len() <= 3_601, "{} writes", stored.len());
        assert!(stored.windows(2).all(|pair| pair[1].1.starts_with(&pair[0].1)), "a write only adds lines");
        let (_, last) = stored.last().unwrap();
        assert_eq!(*last, (0..36_000).map(|n| format!("line {n}") + "\n").collect::<String>());
    }

    #[tokio::test(start_paused = true)]
    async fn live_log_is_bounded_and_a_long_one_is_written_less_often() {
        let stored = run_live((0..10_000).map(|n| (10, format!("line {n} {}", "é".repeat(1000))))).await;
        let (_, last) = stored.last().unwrap();
        assert!(last.len() <= MAX_LIVE_LOG_BYTES && last.ends_with(LIVE_END), "{}", last.len());
        assert!(stored.len() < 30, "{} writes", stored.len());
        assert!(run_live([(0, "x".repeat(MAX_LIVE_LOG_BYTES))].into_iter()).await.last().unwrap().1 == LIVE_END);
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
            log.finish(&put, log.show(&async |_| Err(refused(status)))).await;
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
        log.finish(&put, log.show(&async |_| Ok(()))).await;
        let chunk = |number, text: &str| (number, text.to_owned());
        assert_eq!(written.into_inner(), [chunk(1, "a\n"), chunk(1, "a\n"), chunk(2, "b\n")]);
    }
}
