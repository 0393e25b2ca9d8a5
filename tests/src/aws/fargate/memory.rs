//! The memory of a task, as a limit that the kernel holds its processes to.

use std::{fs, path::PathBuf};

/// Whether the tasks of this machine's worlds are held to their memory.
#[must_use]
pub fn may_limit_memory() -> bool {
    Memory::new(&format!("try-{}", std::process::id()), 1).is_some()
}

/// A memory cgroup, removed when it is dropped.
pub(super) struct Memory(PathBuf);

impl Memory {
    /// A cgroup for a task with so much memory; `None` where this process can make none, and tasks have no limit.
    pub(super) fn new(task: &str, mib: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        // Version 1 takes one below that of this process. In version 2 a cgroup with processes has none below it but the root, which all
        // may be made in.
        let (parent, limit) = match own.lines().find_map(path_of_v1) {
            Some(path) => (format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"),
            None => ("/sys/fs/cgroup".into(), "memory.max"),
        };
        let folder = PathBuf::from(parent).join(format!("driftless-{task}"));
        fs::create_dir(&folder).ok()?;
        let memory = Self(folder);
        fs::write(memory.0.join(limit), (mib << 20).to_string()).ok()?;
        Some(memory)
    }

    /// Where a process writes its id to be in it.
    pub(super) fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// Whether the kernel has killed a process because there was no memory left.
    pub(super) fn has_killed(&self) -> bool {
        let told = ["memory.oom_control", "memory.events"].map(|file| fs::read_to_string(self.0.join(file)).unwrap_or_default());
        let kills = told.iter().flat_map(|text| text.lines()).find_map(|line| line.strip_prefix("oom_kill "));
        kills.is_some_and(|kills| kills != "0")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Nothing but an empty directory is left if a process outlives its task.
        let _: std::io::Result<()> = fs::remove_dir(&self.0);
    }
}

/// The path of the memory controller of version 1 in a line of `/proc/self/cgroup`, such as `4:memory:/user.slice`.
fn path_of_v1(line: &str) -> Option<&str> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    controllers.split(',').any(|controller| controller == "memory").then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_of_memory_is_found_among_others() {
        for (line, path) in [("4:memory:/a:b", Some("/a:b")), ("7:cpu,memory:/", Some("/")), ("0::/user.slice", None), ("", None)]
        {
            assert_eq!(path_of_v1(line), path, "{line}");
        }
    }
}
