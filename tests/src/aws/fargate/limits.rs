//! The memory and the processor time of a task: as limits that the kernel enforces, if this process
//! may create cgroups. Otherwise this module watches the memory itself, and the processor time has
//! no limit.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::time::sleep;

/// The period of the limit of processor time, in microseconds.
const PERIOD: u64 = 100_000;

/// The CPU units of a vCPU.
const VCPU: u64 = 1024;

/// The pause between two measurements of the memory.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The limits of a task, which end when they are dropped.
pub(super) struct Limits {
    memory: Memory,
    cpu: Option<Group>,
}

/// The limit of a task's memory.
enum Memory {
    /// The kernel kills a process that exceeds it.
    Kernel(Group),
    /// The container is to be killed when its processes exceed this number of bytes together.
    Watched { bytes: u64, is_exceeded: AtomicBool },
}

impl Memory {
    fn watched(mib: u64) -> Self {
        Self::Watched { bytes: mib << 20, is_exceeded: AtomicBool::new(false) }
    }
}

impl Limits {
    /// The limits of a task with this much memory and these CPU units.
    pub(super) fn new(task: &str, mib: u64, cpu: u64) -> Self {
        let quota = cpu * PERIOD / VCPU;
        let memory = [("memory.limit_in_bytes", (mib << 20).to_string()), ("memory.max", (mib << 20).to_string())];
        let cpu = [("cpu.cfs_quota_us", quota.to_string()), ("cpu.max", format!("{quota} {PERIOD}"))];
        let memory = Group::new("memory", task, &memory).map_or_else(|| Memory::watched(mib), Memory::Kernel);
        Self { memory, cpu: Group::new("cpu", task, &cpu) }
    }

    /// The files in which a process writes its id to have the limits, separated by spaces.
    pub(super) fn processes(&self) -> String {
        let memory = if let Memory::Kernel(group) = &self.memory { Some(group) } else { None };
        let groups = [memory, self.cpu.as_ref()].into_iter().flatten();
        groups.map(|group| group.0.join("cgroup.procs").display().to_string()).collect::<Vec<_>>().join(" ")
    }

    /// Returns when a container is to be killed for its memory, which `memory` measures in bytes.
    /// Never returns if the kernel enforces the limit.
    pub(super) async fn exceeded(&self, memory: impl Fn() -> u64) {
        let Memory::Watched { bytes, is_exceeded } = &self.memory else { return std::future::pending().await };
        while memory() <= *bytes {
            sleep(BETWEEN_LOOKS).await;
        }
        is_exceeded.store(true, Ordering::Relaxed);
    }

    /// Returns whether a process was killed for lack of memory.
    pub(super) fn has_killed(&self) -> bool {
        let folder = match &self.memory {
            Memory::Kernel(Group(folder)) => folder,
            Memory::Watched { is_exceeded, .. } => return is_exceeded.load(Ordering::Relaxed),
        };
        let told = ["memory.oom_control", "memory.events"].map(|file| fs::read_to_string(folder.join(file)).unwrap_or_default());
        let kills = told.iter().flat_map(|text| text.lines()).find_map(|line| line.strip_prefix("oom_kill "));
        kills.is_some_and(|kills| kills != "0")
    }
}

/// A cgroup.
struct Group(PathBuf);

impl Group {
    /// The cgroup of a task for a controller. The files of its limit, in versions 1 and 2, have
    /// these values.
    fn new(controller: &str, task: &str, [v1, v2]: &[(&str, String); 2]) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        // Version 1 allows one below that of this process. In version 2 a cgroup with processes can
        // have children only if it is the root, in which all may be created; the controllers share
        // one folder.
        let (parent, (file, value)) = match own.lines().find_map(|line| path_of_v1(line, controller)) {
            Some(path) => (format!("/sys/fs/cgroup/{controller}{path}"), v1),
            None => ("/sys/fs/cgroup".into(), v2),
        };
        let folder = PathBuf::from(parent).join(format!("driftless-{task}"));
        fs::create_dir(&folder).or_else(|error| if folder.is_dir() { Ok(()) } else { Err(error) }).ok()?;
        // The folder may be that of another limit: one that cannot be set does not remove it.
        fs::write(folder.join(file), value).ok()?;
        let group = Self(folder);
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // If a process outlives its task, only an empty directory is left.
        let _: std::io::Result<()> = fs::remove_dir(&self.0);
    }
}

/// The path of a controller of version 1 in a line of `/proc/self/cgroup`, such as
/// `4:memory:/user.slice`.
fn path_of_v1<'a>(line: &'a str, wanted: &str) -> Option<&'a str> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    controllers.split(',').any(|controller| controller == wanted).then_some(path)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use anyhow::ensure;
    use tokio::time::timeout;

    use super::*;
    use crate::world::{
        dirs::Dirs,
        process::{Process, command},
        ready,
    };

    const SOON: Duration = Duration::from_secs(30);

    /// Starts a container of two processes that take this many MiB each.
    fn container(test: &str, mib: u64) -> (Dirs, Process) {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp/limits").join(test);
        fs::create_dir_all(&project).unwrap();
        let dirs = Dirs::fresh(&project).unwrap();
        let script =
            format!("import os, signal; os.fork(); taken = b'x' * ({mib} << 20); open('full', 'a').write('x'); signal.pause()");
        let mut python = command(&dirs, "python3");
        python.args(["-c", &script]);
        let process = Process::start(&dirs, "container", python).unwrap();
        (dirs, process)
    }

    fn watched() -> Limits {
        Limits { memory: Memory::watched(256), cpu: None }
    }

    #[tokio::test]
    async fn processes_that_exceed_the_watched_memory_together_are_to_be_killed() {
        let (_dirs, container) = container("more", 200);
        let limits = watched();
        assert!(!limits.has_killed());
        timeout(SOON, limits.exceeded(container.memory())).await.expect("the memory is exceeded");
        assert!(limits.has_killed() && limits.processes().is_empty());
    }

    #[tokio::test]
    async fn processes_within_the_watched_memory_are_left_alone() {
        let (dirs, container) = container("less", 50);
        let (limits, memory) = (watched(), container.memory());
        let full = dirs.root().join("full");
        tokio::select! {
            () = limits.exceeded(&memory) => panic!("{} bytes exceed the memory", memory()),
            full = ready::until("both processes have their memory", SOON, async || {
                ensure!(fs::read_to_string(&full)? == "xx", "one has not");
                Ok(())
            }) => full.unwrap(),
        }
        assert!((100 << 20..256 << 20).contains(&memory()), "{} bytes", memory());
        assert!(!limits.has_killed());
    }

    #[test]
    fn controller_is_found_among_others() {
        for (line, path) in [
            ("4:memory:/a:b", Some("/a:b")),
            ("7:cpu,memory:/", Some("/")),
            ("0::/user.slice", None),
            ("1:cpu:/", None),
            ("", None),
        ] {
            assert_eq!(path_of_v1(line, "memory"), path, "{line}");
        }
    }

    #[test]
    fn task_has_its_share_of_a_processor() {
        let limits = Limits::new(&format!("share-{}", std::process::id()), 64, 256);
        let Some(Group(folder)) = &limits.cpu else {
            println!("skipped: this process may create no cgroup for processor time");
            return;
        };
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let quota = read("cpu.cfs_quota_us").or_else(|| read("cpu.max")).unwrap();
        assert_eq!(quota.split_whitespace().next(), Some("25000"));
        assert!(limits.processes().contains(&folder.display().to_string()));
    }
}
