//! Measures how long an archive of the cache takes to restore beside `tar --zstd -xf` of the same
//! content.
//!
//! `restore DIR` measures below a directory. It calls itself for each part, so that each part has
//! its own peak of memory.

#[path = "../src/archive/mod.rs"]
#[allow(unused_imports, reason = "the runner uses more")]
mod archive;

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs::{self, File},
    io::{BufWriter, Read, Seek, SeekFrom, Write},
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use archive::{Index, Limits, Root, Selection, Tail, index, pack, restore};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const LIMITS: Limits = Limits { content: 4 << 30, entries: 1 << 20, archive: 4 << 30 };
const FILES: u64 = 20_000;
const RUNS: usize = 3;

fn main() -> Outcome {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["pack", content, file] => create(Path::new(content), Path::new(file)),
        ["restore", file, dir, threads] => restore_all(Path::new(file), Path::new(dir), threads.parse()?),
        [dir] => compare(Path::new(dir)),
        _ => Err("usage: restore DIR".into()),
    }
}

fn compare(dir: &Path) -> Outcome {
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let (content, file, tarball, out) = (at("content"), at("archive"), at("content.tar.zst"), at("out"));
    if !dir.join("content").exists() {
        generate(&dir.join("content"))?;
    }
    timed("pack", &mut this(&["pack", &content, &file])?)?;
    timed("tar --zstd -cf", Command::new("tar").args(["--zstd", "-cf", &tarball, "-C", &content, "."]))?;
    println!("archive {} bytes, tar {} bytes", fs::metadata(&file)?.len(), fs::metadata(&tarball)?.len());
    let mut ratios = BTreeMap::<_, Vec<f64>>::new();
    for run in 1..=RUNS {
        let fresh = || -> Outcome {
            if Path::new(&out).exists() {
                fs::remove_dir_all(&out)?;
            }
            Ok(fs::create_dir(&out)?)
        };
        fresh()?;
        let tar = timed("tar --zstd -xf", Command::new("tar").args(["--zstd", "-xf", &tarball, "-C", &out]))?;
        for threads in ["1", "2", "4"] {
            fresh()?;
            let seconds = timed(&format!("{threads} threads"), &mut this(&["restore", &file, &out, threads])?)?;
            println!("run {run}, {threads} threads: {:.2} x tar", seconds / tar);
            ratios.entry(threads).or_default().push(seconds / tar);
        }
    }
    for (threads, ratios) in &mut ratios {
        ratios.sort_by(f64::total_cmp);
        println!("{threads} threads: median {:.2} x tar", ratios[ratios.len() / 2]);
    }
    let is_same = Command::new("diff").args(["-r", "--no-dereference", &content, &out]).status()?.success();
    println!("restored content is the same: {is_same}");
    Ok(())
}

fn this(arguments: &[&str]) -> Outcome<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args(arguments);
    Ok(command)
}

/// Runs a command and returns its time; also prints the processor time, which other programs on the
/// machine change less.
fn timed(what: &str, command: &mut Command) -> Outcome<f64> {
    let (start, before) = (Instant::now(), children()?);
    if !command.status()?.success() {
        return Err(format!("{what} failed").into());
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{what}: {seconds:.2} s, {} ms of processor time", (children()? - before) * 10);
    Ok(seconds)
}

/// The processor time of all children that ended, in hundredths of a second.
fn children() -> Outcome<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.split_whitespace().collect();
    let field = |number: usize| -> Outcome<u64> { Ok(fields.get(number).ok_or("no times")?.parse()?) };
    Ok(field(15)? + field(16)?)
}

/// Writes about 200 MB of files between 180 bytes and 46 KB; every second file is random.
fn generate(dir: &Path) -> Outcome {
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for number in 0..FILES {
        let parent = dir.join(format!("package{}/lib{}", number / 100, number / 10 % 10));
        fs::create_dir_all(&parent)?;
        let size = (180 << (random() % 9)) + random() % 180;
        let mut out = BufWriter::new(File::create(parent.join(format!("file{number}.js")))?);
        for line in 0..size / 20 {
            if number % 2 == 0 {
                write!(out, "export const v{:04}=0;", line % 10_000)?;
            } else {
                for _ in 0..5 {
                    out.write_all(&random().to_le_bytes()[..4])?;
                }
            }
        }
    }
    Ok(())
}

fn create(content: &Path, file: &Path) -> Outcome {
    let root = Root { name: "source".into(), dir: content.into() };
    let selection = Selection { root, paths: vec!["".into()] };
    let packed = pack(&[selection], "bench", &LIMITS, BufWriter::new(File::create(file)?));
    println!("{:?}, peak {}", packed?, peak()?);
    Ok(())
}

fn read_index(archive: &mut File) -> Outcome<Index> {
    let size = archive.metadata()?.len();
    let mut wanted = 64 << 10;
    loop {
        let mut tail = Vec::new();
        archive.seek(SeekFrom::Start(size.saturating_sub(wanted)))?;
        archive.read_to_end(&mut tail)?;
        match index(&tail, size, &LIMITS)? {
            Tail::Index(index) => return Ok(index),
            Tail::Needs(bytes) => wanted = u64::try_from(bytes)?,
        }
    }
}

fn restore_all(file: &Path, dir: &Path, threads: usize) -> Outcome {
    let index = read_index(&mut File::open(file)?)?;
    let roots = [Root { name: "source".into(), dir: dir.into() }];
    let next = AtomicUsize::new(0);
    let work = || -> Outcome {
        let mut archive = File::open(file)?;
        while let Some(frame) = index.frames.get(next.fetch_add(1, Ordering::Relaxed)) {
            archive.seek(SeekFrom::Start(frame.offset))?;
            restore(frame, &archive, &roots)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread panicked")?)
    })?;
    println!("origin {}, {} frames, {:?}, peak {}", index.origin, index.frames.len(), index.counts(), peak()?);
    Ok(())
}

/// The most memory that the process had at one time.
fn peak() -> Outcome<String> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().to_owned())
}
